"""Truth 1: schema.sql applies, is the migrations, and refuses every row that is no job."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from reliable_worker.postgres import migrate, operators, snapshot, store
from reliable_worker.postgres.database import connect
from reliable_worker.postgres.lines import WORKER
from tests.fixtures.configuration import make_settings
from tests.fixtures.postgres import Server
from tests.postgres.migrator import write_line

ROOT = Path(__file__).parents[2]
Conn = psycopg.Connection

INSERT = "INSERT INTO jobs (idempotency_key, payload, {}) VALUES ('k', '{{}}', {})"
INSERT_PAYLOAD = "INSERT INTO jobs (idempotency_key, payload) VALUES ('k', {})"
UPDATE = "UPDATE jobs SET {} = {}"
RUNNING = "state, lease_owner, lease_until, claimed_at"
OVER = "state, completed_at, ended_at"


def dump(server: Server, dsn: str) -> str:
    """pg_dump of everything, with the times of the marks and the dump's own random words out."""
    command = [str(server.pg_bin / "pg_dump"), "--inserts", "--no-owner", "-d", dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    text = re.sub(r"'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^']*'", "'TIME'", text)
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


@pytest.mark.quick
def test_schema_installs_on_an_empty_database(server: Server, empty_dsn: str) -> None:
    server.psql(empty_dsn.rpartition("/")[2], "-f", str(ROOT / "schema.sql"))
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        found = migrate.status(conn)
        assert found.problem is None
        assert not found.pending
        assert not found.drift
        assert migrate.verify(conn) == []
        migrate.check_range(conn)


def test_schema_is_the_migrations(server: Server, dsn: str, empty_dsn: str) -> None:
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        applied = migrate.up(conn)
    assert [each.version for each in applied] == list(range(1, WORKER.maximum + 1))
    assert dump(server, empty_dsn) == dump(server, dsn)


def test_the_code_runs_on_the_version_before(empty_dsn: str, tmp_path: Path) -> None:
    """As in a rolling deploy or after a rollback: claim, finish, cancel, pause and expire there."""
    before = [each for each in WORKER.migrations if each.version <= WORKER.minimum]
    assert WORKER.minimum == WORKER.maximum - 1
    marks = WORKER.directory.joinpath("marks.sql").read_text("utf-8")
    (tmp_path / "marks.sql").write_text(marks, encoding="utf-8")
    for each in before:
        (tmp_path / f"{each.label}.sql").write_text(each.text, encoding="utf-8")
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        migrate.up(conn, replace(WORKER, directory=tmp_path, maximum=WORKER.minimum))
        migrate.check_range(conn)
        conn.execute("INSERT INTO jobs (idempotency_key, payload) SELECT n, '{}'"
                     " FROM generate_series(1, 3) AS n")  # fmt: skip
        place = [(store.Combination("default", "message", 5), 0)]
        claim = store.claim(conn, place, ["a.0", "a.1"], lease_seconds=30, margin_seconds=3)
        done, failed = (job.lease for job in claim.jobs)
        assert store.complete(conn, done)
        assert store.bury(conn, failed, "KeyError: x")
        assert operators.change(conn, "cancel", [3], "somebody", {}) == {3: "ready"}
        assert operators.pause(conn, "mail", None, "somebody") is None
        states = conn.execute("SELECT id, state FROM jobs ORDER BY id").fetchall()
        assert states == [(1, "succeeded"), (2, "dead"), (3, "cancelled")]


def test_snapshot_of_files_without_a_transaction(
    server: Server, dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    """Such files stand outside BEGIN and COMMIT in the snapshot, in their place."""
    steps = ["CREATE INDEX CONCURRENTLY a_n ON a (n);", "CREATE INDEX CONCURRENTLY a_m ON a (m);"]
    files = {
        "0001_a": "CREATE TABLE a (n int, m int);\n",
        "0002_index": "-- transactional: no\n" + "\n-- next statement\n".join(steps),
        "0003_b": "-- contract\nALTER TABLE a DROP COLUMN m;\n",
    }
    line = write_line(tmp_path, files)
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        migrate.up(conn, line)
    with psycopg.connect(dsn, autocommit=True) as plain:
        plain.execute(
            "DROP TABLE jobs, processed_messages, reliable_worker_migrations, queues,"
            " job_attempts, operator_actions, worker_processes CASCADE"
        )
        plain.execute("DROP DOMAIN job_payload")
    path = tmp_path / "snapshot"
    path.write_text(snapshot.render(line), encoding="utf-8")
    server.psql(dsn.rpartition("/")[2], "-f", str(path))
    assert dump(server, empty_dsn) == dump(server, dsn)


def test_schema_is_up_to_date() -> None:
    assert (ROOT / "schema.sql").read_text(encoding="utf-8") == snapshot.render()


def test_a_second_installation_changes_nothing(server: Server, dsn: str) -> None:
    before = dump(server, dsn)
    with pytest.raises(subprocess.CalledProcessError):
        server.psql(dsn.rpartition("/")[2], "-f", str(ROOT / "schema.sql"))
    assert dump(server, dsn) == before


@pytest.mark.quick
def test_the_plain_insert_of_any_language(conn: Conn) -> None:
    row = conn.execute(
        "INSERT INTO jobs (idempotency_key, payload) VALUES ('welcome-1', '{\"message\": \"hi\"}') "
        "RETURNING state, attempts, max_attempts, queue, kind, priority, fence, crashes, snoozes, "
        "refunds, lease_owner, lease_until, last_error, claimed_at, completed_at, ended_at, "
        "available_at = created_at"
    ).fetchone()
    counts = (0, 5, "default", "message", 5, 0, 0, 0, 0)
    assert row == ("ready", *counts, None, None, None, None, None, None, True)
    with pytest.raises(errors.UniqueViolation):
        conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('welcome-1', '{}')")


REFUSED = [
    ("jobs_state_known", "state", "'asleep'"),
    ("jobs_queue_length", "queue", "''"),
    ("jobs_queue_length", "queue", "repeat('q', 129)"),
    ("jobs_queue_length", "queue", "repeat('ü', 65)"),
    ("jobs_kind_length", "kind", "''"),
    ("jobs_kind_length", "kind", "repeat('k', 129)"),
    ("jobs_priority_range", "priority", "-1"),
    ("jobs_priority_range", "priority", "10"),
    ("jobs_max_attempts_positive", "max_attempts", "0"),
    ("jobs_counters_not_negative", "attempts", "-1"),
    ("jobs_counters_not_negative", "fence", "-1"),
    ("jobs_counters_not_negative", "crashes", "-1"),
    ("jobs_counters_not_negative", "snoozes", "-1"),
    ("jobs_counters_not_negative", "refunds", "-1"),
    ("jobs_available_at_range", "available_at", "'infinity'"),
    ("jobs_available_at_range", "available_at", "'-infinity'"),
    ("jobs_available_at_range", "available_at", "'10000-01-01 00:00:00+00'"),
    ("jobs_available_at_range", "available_at", "'0001-12-31 00:00:00+00 BC'"),
    ("jobs_last_error_length", "last_error", "repeat('é', 1001)"),
    ("jobs_lease_while_running", "state", "'running'"),
    ("jobs_lease_while_running", "state, lease_owner", "'running', 'o'"),
    ("jobs_lease_while_running", "state, lease_until", "'running', now()"),
    ("jobs_lease_while_running", "lease_owner", "'o'"),
    ("jobs_lease_while_running", "lease_until", "now()"),
    ("jobs_lease_while_running", "lease_owner, lease_until", "'o', now()"),
    ("jobs_completed_when_succeeded", "completed_at", "now()"),
    ("jobs_completed_when_succeeded", "state, ended_at", "'succeeded', now()"),
    ("jobs_completed_when_succeeded", OVER, "'dead', now(), now()"),
    ("jobs_ended_when_over", "state", "'dead'"),
    ("jobs_ended_when_over", "state", "'cancelled'"),
    ("jobs_ended_when_over", "ended_at", "now()"),
    ("jobs_ended_when_over", "state, completed_at", "'succeeded', now()"),
]


@pytest.mark.parametrize(("constraint", "columns", "values"), REFUSED)
def test_rows_that_are_no_job(conn: Conn, constraint: str, columns: str, values: str) -> None:
    with pytest.raises(errors.CheckViolation) as caught:
        conn.execute(INSERT.format(columns, values).encode())
    assert caught.value.diag.constraint_name == constraint


ACCEPTED = [
    ("queue", "repeat('q', 128)"),
    ("kind", "repeat('ü', 64)"),
    ("priority", "0"),
    ("priority", "9"),
    ("max_attempts", "2147483647"),
    ("fence", "9223372036854775807"),
    ("available_at", "'9999-12-31 23:59:59+00'"),
    ("last_error", "repeat('é', 1000)"),
    (RUNNING, "'running', 'o', now(), now()"),
    (OVER, "'succeeded', now(), now()"),
    ("state, ended_at", "'dead', now()"),
    ("state, ended_at", "'cancelled', now()"),
]


@pytest.mark.parametrize(("columns", "values"), ACCEPTED)
def test_rows_at_the_limits(conn: Conn, columns: str, values: str) -> None:
    conn.execute(INSERT.format(columns, values).encode())


NOT_NULL = [
    "idempotency_key",
    "payload",
    "state",
    "available_at",
    "queue",
    "kind",
    "priority",
    "attempts",
    "max_attempts",
    "fence",
    "crashes",
    "snoozes",
    "refunds",
    "created_at",
]


@pytest.mark.parametrize("column", NOT_NULL)
def test_columns_that_are_never_null(conn: Conn, column: str) -> None:
    conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('k', '{}')")
    with pytest.raises((errors.NotNullViolation, errors.CheckViolation)):
        conn.execute(UPDATE.format(column, "NULL").encode())


@pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (512, True), (513, False)])
def test_key_length_in_bytes(conn: Conn, length: int, fits: bool) -> None:
    statement = "INSERT INTO jobs (idempotency_key, payload) VALUES (repeat('k', %s), '{}')"
    if fits:
        conn.execute(statement, [length])
        return
    with pytest.raises(errors.CheckViolation) as caught:
        conn.execute(statement, [length])
    assert caught.value.diag.constraint_name == "jobs_key_length"


# As text: {"m": "…"} is the string and 9 bytes around it; 1e131071 is 131,072 digits.
PAYLOADS = [
    ("jsonb_build_object('m', repeat('x', 1048576 - 9))", True),
    ("jsonb_build_object('m', repeat('x', 1048576 - 8))", False),
    ("jsonb_build_object('m', repeat('ü', 524284))", False),
    ("'[1e131071, 1e131071, 1e131071, 1e131071]'::jsonb", True),
    ("('[' || repeat('1e131071,', 8) || '1]')::jsonb", False),
]


@pytest.mark.parametrize(("payload", "fits"), PAYLOADS)
def test_payload_size_as_text(conn: Conn, payload: str, fits: bool) -> None:
    insert = INSERT_PAYLOAD.format(payload).encode()
    if fits:
        conn.execute(insert)
    else:
        with pytest.raises(errors.CheckViolation) as caught:
            conn.execute(insert)
        assert caught.value.diag.constraint_name == "jobs_payload_size"
        conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('k', '{}')")
        with pytest.raises(errors.CheckViolation):
            conn.execute(UPDATE.format("payload", payload).encode())


def test_drivers_see_the_payload_as_jsonb(conn: Conn) -> None:
    row = conn.execute(
        "SELECT data_type, udt_name FROM information_schema.columns "
        "WHERE table_name = 'jobs' AND column_name = 'payload'"
    ).fetchone()
    assert row == ("jsonb", "jsonb")
    conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('k', '{\"a\": 1}')")
    cursor = conn.execute("SELECT payload FROM jobs WHERE payload = '{\"a\": 1}' FOR UPDATE")
    assert cursor.fetchone() == ({"a": 1},)


def test_copy_fills_the_table(conn: Conn) -> None:
    with (
        conn.cursor() as cursor,
        cursor.copy("COPY jobs (idempotency_key, payload) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types(["text", "jsonb"])
        for number in range(3):
            copy.write_row((f"k{number}", Jsonb({"n": number})))
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (3,)


def test_no_index_holds_the_time_of_a_lease(conn: Conn) -> None:
    """A renewal writes lease_until alone and so touches no index (a HOT update)."""
    row = conn.execute(
        "SELECT count(*) FROM pg_indexes WHERE tablename = 'jobs' AND indexdef ~ 'lease_until'"
    ).fetchone()
    assert row == (0,)


def test_keys_are_bytes(conn: Conn) -> None:
    """Also after an upgrade of the system's collations, which no index here depends on."""
    for key in ("key", "Key", " key", "caf\u00e9", "cafe\u0301", "\ud55c", "\u1112\u1161\u11ab"):
        conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES (%s, '{}')", [key])
    row = conn.execute(
        "SELECT count(*) FROM pg_index, unnest(indcollation) AS used "
        "WHERE indrelid IN ('jobs'::regclass, 'processed_messages'::regclass) "
        "AND used NOT IN (0, '\"C\"'::regcollation)"
    ).fetchone()
    assert row == (0,)
