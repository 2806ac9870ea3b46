"""The runner applies each file once, whoever runs it and however it ends, or says what is wrong."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from reliable_worker.postgres import migrate
from reliable_worker.postgres.database import Connection, connect
from reliable_worker.postgres.lines import BadMigration, Line
from tests.faults.proxy import Proxy
from tests.faults.wire import is_commit
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.postgres.migrator import make_line, write_line

ROOT = Path(__file__).parents[2]
PROCESS_SECONDS = 60.0

TABLE = "CREATE TABLE a (id int PRIMARY KEY, n int);\nINSERT INTO a SELECT i, 7 FROM\n"
TABLE += "generate_series(1, 1000) AS i;\n"
INDEX = "-- transactional: no\nCREATE INDEX CONCURRENTLY a_n ON a (n);\n"
UNIQUE = "-- transactional: no\nCREATE UNIQUE INDEX CONCURRENTLY a_u ON a (n);\n"
# Stops for as long as there is a table `gate` (a test drops it where a file has to go through).
HELD = "SELECT pg_sleep(60) WHERE to_regclass('gate') IS NOT NULL;\n"


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Connection]:
    with connect(make_settings(empty_dsn), lane="migrate") as connection:
        yield connection


def ask(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def states(dsn: str) -> list[tuple[object, ...]]:
    return ask(dsn, "SELECT version, state FROM tried_migrations ORDER BY version")


def start(directory: Path, dsn: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.postgres.migrator", str(directory), dsn]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def end_in_the_gate(directory: Path, dsn: str, by: signal.Signals) -> None:
    """Start a migrator, wait until it stands in the held file, end it."""
    ask(dsn, "CREATE TABLE gate ()")
    process = start(directory, dsn)
    sleeping = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    try:
        wait_until(lambda: ask(dsn, sleeping), PROCESS_SECONDS, "the migrator in its file")
    finally:
        process.send_signal(by)
        process.communicate(timeout=PROCESS_SECONDS)
    ask(dsn, "DROP TABLE gate")


@pytest.mark.quick
def test_files_are_applied_in_order_and_once(conn: Connection, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_index": INDEX})
    assert [each.label for each in migrate.up(conn, line)] == ["0001_a", "0002_index"]
    assert migrate.up(conn, line) == []
    found = migrate.status(conn, line)
    assert (found.version, found.problem, found.drift, found.pending) == (2, None, (), ())
    assert migrate.verify(conn, line) == []
    write_line(tmp_path, {"0003_b": "CREATE TABLE b ();"})
    assert [each.version for each in migrate.up(conn, make_line(tmp_path))] == [3]


def test_migrators_at_once(empty_dsn: str, tmp_path: Path) -> None:
    """A blocking lock instead of a polled one would deadlock with the CONCURRENTLY here."""
    write_line(tmp_path, {"0001_a": TABLE, "0002_index": INDEX, "0003_b": "CREATE TABLE b ();"})
    processes = [start(tmp_path, empty_dsn) for _ in range(3)]
    said = [process.communicate(timeout=PROCESS_SECONDS)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(said) == ["", "", "0001_a 0002_index 0003_b"]
    assert states(empty_dsn) == [(1, "applied"), (2, "applied"), (3, "applied")]


def test_a_held_lock_is_not_waited_for_longer_than_asked(
    conn: Connection, empty_dsn: str, tmp_path: Path
) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE})
    with connect(make_settings(empty_dsn), lane="other") as other:
        migrate.up(other, line)
        with pytest.raises(migrate.LockHeld, match="another migrator"):
            migrate.up(conn, line, wait_seconds=0)
    assert migrate.up(conn, line) == []


def test_a_killed_migrator_leaves_a_dirty_schema(empty_dsn: str, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_b": f"CREATE TABLE b ();\n{HELD}"})
    end_in_the_gate(tmp_path, empty_dsn, signal.SIGKILL)
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        with pytest.raises(migrate.SchemaMismatch, match="dirty: migration 0002_b"):
            migrate.up(conn, line)  # waits until the server has noticed that its client is gone
        before = states(empty_dsn)
        assert before == [(1, "applied"), (2, "running")]
        asked = migrate.force(conn, line, 1, confirmed=False)
        assert asked.found == ("0002_b: one transaction, so all of it or nothing; missing: b",)
        assert asked.changes == ("0002_b: mark removed, `up` will run it again",)
        assert states(empty_dsn) == before
        assert migrate.force(conn, line, 1, confirmed=True).done
        assert states(empty_dsn) == [(1, "applied")]
        assert [each.label for each in migrate.up(conn, line)] == ["0002_b"]


def test_a_migrator_killed_outside_a_transaction(empty_dsn: str, tmp_path: Path) -> None:
    steps = "\n-- next statement\n".join(["CREATE TABLE b ();", HELD, "CREATE TABLE c ();"])
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_b": f"-- transactional: no\n{steps}"})
    end_in_the_gate(tmp_path, empty_dsn, signal.SIGKILL)
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        forced = migrate.force(conn, line, 2, confirmed=True)
        assert forced.found == (
            "0002_b: 3 statements without a transaction; exists: b; missing: c",
        )
        assert forced.changes == ("0002_b: marked applied",)
        assert migrate.up(conn, line) == []
        assert migrate.status(conn, line).problem is None


def test_an_interrupted_migrator_leaves_nothing(empty_dsn: str, tmp_path: Path) -> None:
    """Ctrl-C cancels the statement, and its file is rolled back in the same session."""
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_b": f"CREATE TABLE b ();\n{HELD}"})
    end_in_the_gate(tmp_path, empty_dsn, signal.SIGINT)
    assert states(empty_dsn) == [(1, "applied")]
    with connect(make_settings(empty_dsn), lane="migrate") as conn:
        assert [each.label for each in migrate.up(conn, line)] == ["0002_b"]


def test_a_lost_answer_to_the_commit(dsn: str, proxy: Proxy, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE})
    trap = proxy.drop_reply(is_commit)
    with connect(make_settings(proxy.url(dsn)), lane="migrate") as conn:
        with pytest.raises(psycopg.OperationalError):
            migrate.up(conn, line)
        trap.wait(PROCESS_SECONDS)
    with connect(make_settings(dsn), lane="migrate") as conn:
        assert migrate.up(conn, line) == []
        migrate.check_range(conn, line)


def test_a_session_lost_before_the_commit(dsn: str, proxy: Proxy, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE})
    trap = proxy.drop_request(is_commit)
    with connect(make_settings(proxy.url(dsn)), lane="migrate") as conn:
        with pytest.raises(psycopg.OperationalError):
            migrate.up(conn, line)
        trap.wait(PROCESS_SECONDS)
    with connect(make_settings(dsn), lane="migrate") as conn:
        with pytest.raises(migrate.SchemaMismatch, match="dirty"):
            migrate.up(conn, line)
        assert "missing: a" in migrate.force(conn, line, 0, confirmed=True).found[0]
        assert len(migrate.up(conn, line)) == 1


def test_a_migration_in_progress_is_not_dirty(empty_dsn: str, tmp_path: Path) -> None:
    """A worker that restarts during a long migration goes on with the schema it knows."""
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_b": HELD})
    ask(empty_dsn, "CREATE TABLE gate ()")
    process = start(tmp_path, empty_dsn)
    try:
        with connect(make_settings(empty_dsn), lane="worker") as conn:
            wait_until(
                lambda: migrate.status(conn, line).in_progress, PROCESS_SECONDS, "the mark of 2"
            )
            wait_until(
                lambda: migrate.status(conn, line).problem is None, PROCESS_SECONDS, "1 applied"
            )
            migrate.check_range(conn, line)
    finally:
        process.kill()
        process.communicate(timeout=PROCESS_SECONDS)


def test_a_failing_file_is_rolled_back_and_may_be_mended(
    conn: Connection, empty_dsn: str, tmp_path: Path
) -> None:
    line = write_line(tmp_path, {"0001_a": "CREATE TABLE a ();\nSELECT 1 FROM nowhere;"})
    with pytest.raises(migrate.MigrationFailed, match=r'0001_a .* "nowhere" .*42P01'):
        migrate.up(conn, line)
    assert states(empty_dsn) == []
    mended = write_line(tmp_path, {"0001_a": "CREATE TABLE a ();"})
    assert len(migrate.up(conn, mended)) == 1


def test_values_of_rows_stay_out_of_the_error(conn: Connection, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": "SELECT ('sec' || 'ret')::int;"})
    with pytest.raises(migrate.MigrationFailed) as caught:
        migrate.up(conn, line)
    assert "22P02" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_ends_its_transaction(conn: Connection, empty_dsn: str, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": "CREATE TABLE a ();\nCOMMIT;\nCREATE TABLE b ();"})
    with pytest.raises(migrate.MigrationFailed, match="ends its own transaction"):
        migrate.up(conn, line)
    assert states(empty_dsn) == [(1, "running")]


def test_an_index_left_invalid(conn: Connection, empty_dsn: str, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_index": UNIQUE})
    with pytest.raises(migrate.MigrationFailed, match=r"statement 1 of 1.*dirty"):
        migrate.up(conn, line)
    assert states(empty_dsn) == [(1, "applied"), (2, "running")]
    assert any("a_u on a is invalid" in problem for problem in migrate.verify(conn, line))
    (found,) = migrate.force(conn, line, 1, confirmed=True).found
    assert "exists: a_u; index a_u on a is invalid" in found


def test_if_not_exists_does_not_hide_an_invalid_index(
    conn: Connection, empty_dsn: str, tmp_path: Path
) -> None:
    write_line(tmp_path, {"0001_a": TABLE})
    migrate.up(conn, make_line(tmp_path))
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("CREATE UNIQUE INDEX CONCURRENTLY a_n ON a (n)")
    line = write_line(tmp_path, {"0002_index": INDEX.replace("LY a_n", "LY IF NOT EXISTS a_n")})
    with pytest.raises(migrate.MigrationFailed, match="a_n on a is invalid"):
        migrate.up(conn, line)
    assert states(empty_dsn) == [(1, "applied"), (2, "running")]


def test_a_changed_file_is_drift(conn: Connection, empty_dsn: str, tmp_path: Path) -> None:
    migrate.up(conn, write_line(tmp_path, {"0001_a": TABLE}))
    line = write_line(tmp_path, {"0001_a": TABLE + "-- a word\n", "0002_b": "CREATE TABLE b ();"})
    with pytest.raises(migrate.MigrationFailed, match="0001_a was changed"):
        migrate.up(conn, line)
    assert migrate.verify(conn, line)[0].startswith("0001_a was changed")
    migrate.check_range(conn, line)  # a comment stops no worker
    assert states(empty_dsn) == [(1, "applied")]
    migrate.force(conn, line, 1, confirmed=True)
    assert [each.version for each in migrate.up(conn, line)] == [2]


@pytest.fixture
def blocked(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A table `busy` that a transaction holds, and a runner that gives up sooner than usual."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(migrate, "LOCK_TRIES", 2)
    ask(empty_dsn, "CREATE TABLE busy ()")
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("LOCK TABLE busy")
        yield connection
        connection.rollback()


ALTER = {"0001_b": "CREATE TABLE b ();\nALTER TABLE busy ADD COLUMN n int;"}


def test_a_table_in_use_is_tried_again(
    blocked: psycopg.Connection, conn: Connection, tmp_path: Path
) -> None:
    def say(text: str) -> None:
        if "trying again" in text:
            blocked.rollback()

    assert len(migrate.up(conn, write_line(tmp_path, ALTER), say=say)) == 1


def test_a_table_in_use_for_too_long(
    blocked: psycopg.Connection, conn: Connection, empty_dsn: str, tmp_path: Path
) -> None:
    with pytest.raises(migrate.LockHeld, match="table is in use"):
        migrate.up(conn, write_line(tmp_path, ALTER))
    assert states(empty_dsn) == []
    assert not blocked.closed


RANGES = [
    ({1: "expand"}, {"minimum": 1, "maximum": 1}, None),
    ({1: "expand"}, {"minimum": 2, "maximum": 3}, "older"),
    ({1: "expand", 2: "expand"}, {"minimum": 1, "maximum": 1}, None),
    ({1: "expand", 2: "contract"}, {"minimum": 1, "maximum": 1}, "newer"),
    ({1: "expand", 2: "contract", 3: "expand"}, {"minimum": 1, "maximum": 1}, "newer"),
    ({1: "expand", 2: "contract", 3: "expand"}, {"minimum": 2, "maximum": 2}, None),
    ({1: "expand", 99: "expand"}, {"minimum": 1, "maximum": 1}, "gaps"),
    ({}, {"minimum": 1, "maximum": 1}, "no schema"),
]


@pytest.mark.parametrize(("kinds", "bounds", "problem"), RANGES)
def test_the_range_of_schemas(
    conn: Connection,
    tmp_path: Path,
    kinds: dict[int, str],
    bounds: dict[str, int],
    problem: str | None,
) -> None:
    line = make_line(tmp_path, **bounds)
    if kinds:
        conn.execute(line.marks_definition.encode())
    for version, kind in kinds.items():
        conn.execute(
            "INSERT INTO tried_migrations (version, name, kind, checksum, state, applied_at) "
            "VALUES (%s, 'x', %s, '', 'applied', now())",
            [version, kind],
        )
    if problem is None:
        migrate.check_range(conn, line)
        return
    with pytest.raises(migrate.SchemaMismatch, match=problem) as caught:
        migrate.check_range(conn, line)
    assert "\n" not in str(caught.value)


def test_force_keeps_to_versions_it_knows(conn: Connection, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE, "0002_b": "CREATE TABLE b ();"})
    with pytest.raises(migrate.MigrationFailed, match="0 to 2"):
        migrate.force(conn, line, 3, confirmed=True)
    migrate.up(conn, line)
    (tmp_path / "0002_b.sql").unlink()
    with pytest.raises(migrate.MigrationFailed, match="newer release"):
        migrate.force(conn, make_line(tmp_path), 1, confirmed=True)


def test_force_adopts_a_schema_made_by_hand(conn: Connection, tmp_path: Path) -> None:
    line = write_line(tmp_path, {"0001_a": TABLE})
    conn.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    with pytest.raises(migrate.MigrationFailed, match="42P07"):
        migrate.up(conn, line)
    migrate.force(conn, line, 1, confirmed=True)
    migrate.check_range(conn, line)


BAD_FILES: list[tuple[dict[str, str], str]] = [
    ({"0002_b": "-- expand\n"}, "expected version 1"),
    ({"0001_a": "-- expand\n", "0001_b": "-- expand\n"}, "expected version 2"),
    ({"1_a": "-- expand\n"}, "is called"),
    ({"0001_a": "CREATE TABLE a ();"}, "either"),
    ({"0001_a": "-- expand\n-- contract\n"}, "either"),
]


@pytest.mark.parametrize(("files", "problem"), BAD_FILES)
def test_files_that_break_the_rules(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.sql").write_text(text, encoding="utf-8")
    with pytest.raises(BadMigration, match=problem):
        _ = make_line(tmp_path).migrations


def test_a_table_name_that_needs_quotes(tmp_path: Path) -> None:
    with pytest.raises(BadMigration):
        Line("x", tmp_path, 'marks"; DROP TABLE jobs; --', 1, 1, 1, "x")
