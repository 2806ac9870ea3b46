"""Hot statements use their index, whatever the table holds and whatever the statistics say.

Plans are asked for with PREPARE and EXPLAIN EXECUTE, as a custom and as a generic plan; a generic
one made for an empty table may be in use when the table is full.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from reliable_worker.postgres.database import connect
from tests.fixtures.configuration import make_settings
from tests.fixtures.postgres import Server
from tests.postgres.matrix import FENCE, OWNER

Conn = psycopg.Connection[Any]
Plan = dict[str, Any]

SIZES = (1_000, 100_000)
CLAIMED = 50

# Per `size`: due jobs of our kind, as many of a foreign kind before them, as many scheduled, as
# many suspects due, as many succeeded; and a few running ones.
FILL = """
INSERT INTO jobs (idempotency_key, payload, kind, available_at, state, completed_at, ended_at,
    crashes)
SELECT class || n, '{{}}', CASE class WHEN 'foreign' THEN 'foreign' ELSE 'message' END,
    CASE class
        WHEN 'scheduled' THEN now() + n * interval '1 second' + interval '1 hour'
        WHEN 'foreign' THEN now() - n * interval '1 second' - interval '1 hour'
        ELSE now() - n * interval '1 millisecond' - interval '1 second'
    END,
    CASE class WHEN 'done' THEN 'succeeded' ELSE 'ready' END,
    CASE class WHEN 'done' THEN now() END,
    CASE class WHEN 'done' THEN now() END,
    CASE class WHEN 'suspect' THEN 1 ELSE 0 END
FROM generate_series(1, {size} / 5) AS n,
    unnest(ARRAY['due', 'foreign', 'scheduled', 'suspect', 'done']) AS class
"""
RUNNING = """
INSERT INTO jobs (idempotency_key, payload, state, lease_owner, lease_until, claimed_at, fence)
SELECT 'running' || n, '{}', 'running', %s, now() + interval '1 hour', now(), %s
FROM generate_series(1, 20) AS n
"""


@dataclass(frozen=True)
class Table:
    """A database with `size` jobs; `analyzed`: the planner knows them, else it saw it empty."""

    dsn: str
    size: int
    analyzed: bool


def _tables(server: Server, template: str, size: int, analyzed: bool) -> Iterator[Table]:
    name = f"rw_{uuid.uuid4().hex[:12]}"
    server.create(name, template)
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        conn.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
        conn.execute("ANALYZE jobs")
        fill(conn, size)
        if analyzed:
            conn.execute("ANALYZE jobs")
    yield Table(server.dsn(name), size, analyzed)
    server.drop(name)


@pytest.fixture(
    scope="module",
    params=[(size, analyzed) for size in SIZES for analyzed in (False, True)],
    ids=lambda given: f"{given[0]}-{'fresh' if given[1] else 'stale'}",
)
def table(request: pytest.FixtureRequest, server: Server, template: str) -> Iterator[Table]:
    yield from _tables(server, template, *request.param)


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def conn(request: pytest.FixtureRequest, table: Table) -> Iterator[Conn]:
    with psycopg.connect(table.dsn, autocommit=True) as connection:
        connection.execute(f"SET plan_cache_mode = {request.param}")
        yield connection


def fill(conn: Conn, size: int) -> None:
    conn.execute(FILL.format(size=size).encode())
    conn.execute(RUNNING, [OWNER, FENCE])


def statement(name: str) -> str:
    return files("reliable_worker.postgres").joinpath("sql", f"{name}.sql").read_text("utf-8")


def explain(conn: Conn, name: str, *arguments: str, options: str = "") -> Plan:
    """The plan of a statement with these SQL arguments; with ANALYZE it is run and undone."""
    with conn.transaction(force_rollback=True):
        conn.execute(f"PREPARE asked AS {statement(name)}".encode())
        call = f"EXECUTE asked ({', '.join(arguments)})" if arguments else "EXECUTE asked"
        row = conn.execute(f"EXPLAIN (FORMAT JSON{options}) {call}".encode()).fetchone()
        conn.execute("DEALLOCATE asked")
    assert row is not None
    found: Plan = row[0][0]["Plan"]
    return found


def walk(plan: Plan) -> Iterator[Plan]:
    yield plan
    for below in plan.get("Plans", []):
        yield from walk(below)


def scans(plan: Plan) -> list[tuple[str, str]]:
    """(alias, index or 'Seq Scan') of each read of jobs."""
    found = []
    for node in walk(plan):
        if node.get("Relation Name") != "jobs" or node["Node Type"] == "ModifyTable":
            continue
        bitmaps = [below for below in walk(node) if below["Node Type"] == "Bitmap Index Scan"]
        for read in bitmaps or [node]:
            found.append((str(node["Alias"]), str(read.get("Index Name", read["Node Type"]))))
    return found


PLACES = "ARRAY['default', 'other'], ARRAY['message', 'message'], ARRAY[5, 5]::int2[], ARRAY[0, 0]"
OWNERS = f"array_fill('{OWNER}'::text, ARRAY[{CLAIMED}])"
CLAIM = [PLACES, str(CLAIMED), OWNERS, "30"]
ONE = ["7", f"'{OWNER}'", str(FENCE)]
# Ten leases, as a process renews or completes them together.
LEASES = [
    "ARRAY[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]",
    f"array_fill('{OWNER}'::text, ARRAY[10])",
    f"array_fill({FENCE}::bigint, ARRAY[10])",
]
RUNS = [LEASES[0], LEASES[2]]

BY_KEY = [
    ("complete", ONE),
    ("complete_many", LEASES),
    ("renew", [*LEASES, "30"]),
    ("probe", LEASES),
    ("release", LEASES),
    ("retry", [*ONE, "1", "'no'"]),
    ("bury", [*ONE, "'no'"]),
    ("refund", [*ONE, "1"]),
    ("snooze", [*ONE, "1"]),
    ("resolve", ["7"]),
]


@pytest.mark.parametrize(
    ("name", "index"), [("claim", "jobs_claimable_idx"), ("claim_suspects", "jobs_suspect_idx")]
)
def test_claims_walk_their_index(conn: Conn, table: Table, name: str, index: str) -> None:
    plan = explain(conn, name, *CLAIM, options=", ANALYZE, BUFFERS, TIMING OFF")
    read = scans(plan)
    assert {used for alias, used in read if alias.startswith("r")} == {index}
    assert {used for alias, used in read if alias.startswith("j")} <= {"jobs_pkey"}
    taken = [node for node in walk(plan) if node.get("Index Name") == index]
    # what is taken, and nothing foreign or scheduled on the way to it
    rows = sum(node["Actual Rows"] * node["Actual Loops"] for node in taken)
    assert rows == min(CLAIMED, table.size)
    assert sum(node.get("Rows Removed by Filter", 0) for node in taken) == 0
    # 50 rows with six index entries each, whatever the table holds
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 3_000


@pytest.mark.parametrize(("name", "arguments"), BY_KEY, ids=[name for name, _ in BY_KEY])
def test_a_holder_finds_its_rows_by_key(
    conn: Conn, table: Table, name: str, arguments: list[str]
) -> None:
    """Not by the index of running rows: a pinned snapshot would make that one grow."""
    used = {used for _, used in scans(explain(conn, name, *arguments))}
    # ten rows of a table of a few pages are as well found by reading the pages
    few = {"Seq Scan"} if table.size <= 1_000 and arguments[0] != ONE[0] else set()
    assert used <= {"jobs_pkey"} | few


BOOT = f"'{OWNER[:32]}'"
SERVED = "ARRAY['message'], ARRAY[]::text[]"
BELOW = ["ARRAY['default'], ARRAY['message']", "ARRAY[5]::smallint[]", "ARRAY[0]", "ARRAY[1]"]
CLAIMABLE, SUSPECT, RUNNING_IDX = "jobs_claimable_idx", "jobs_suspect_idx", "jobs_expired_idx"

# Upkeep runs every second for ever: nothing it reads may grow with the table.
UPKEEP = [
    ("expire", ["0", "0", "100"], {RUNNING_IDX, "jobs_pkey"}),
    ("sweep", ["100"], {"jobs_exhausted_idx", "jobs_pkey"}),
    ("date_running", [], {RUNNING_IDX, "jobs_pkey"}),
    ("oldest_running", ["'-Infinity'", "'Infinity'"], {RUNNING_IDX}),
    ("obituary_crash", [BOOT, *RUNS, "3", "'killed'"], {"jobs_pkey"}),
    ("obituary_timeout", [BOOT, *RUNS, "'late'", "1", "64", "0"], {"jobs_pkey"}),
    ("obituary_refund", [BOOT, *RUNS, "0"], {RUNNING_IDX, "jobs_pkey"}),
    ("obituary_left", [BOOT, "0"], {RUNNING_IDX}),
    ("held", [BOOT], {RUNNING_IDX}),
    ("combinations", [], {CLAIMABLE}),
    ("suspect_combinations", [], {SUSPECT}),
    ("look_below", BELOW, {CLAIMABLE}),
    ("claimable", [SERVED, "''", "''", "-1", "100"], {CLAIMABLE}),
    ("suspects", [SERVED, "100"], {SUSPECT}),
    ("eligible", [SERVED, "100"], {CLAIMABLE, SUSPECT}),
    ("census_ready", ["1000"], {CLAIMABLE, SUSPECT}),
    ("census_running", ["0", "1000"], {RUNNING_IDX}),
    ("census_dead", ["1000"], {"jobs_dead_idx"}),
]


@pytest.mark.parametrize(("name", "arguments", "indexes"), UPKEEP, ids=[u[0] for u in UPKEEP])
def test_upkeep_reads_partial_indexes(
    table: Table, name: str, arguments: list[str], indexes: set[str]
) -> None:
    with connect(make_settings(table.dsn), lane="maintenance") as conn:
        used = {used for _, used in scans(explain(conn, name, *arguments))}
    few = {"Seq Scan"} if table.size <= 1_000 else set()
    assert used <= indexes | few


DEAD_IDX = "jobs_dead_idx"
NO_FILTERS = ["NULL"] * 3

# Asked by hand or once a minute: on the statistics that autovacuum keeps.
OPERATED = [
    ("prune", ["0", "500", "1", "1", "1"], {"jobs_pkey"}),
    ("queues_split", ["ARRAY['default']", "1000"], {CLAIMABLE, SUSPECT}),
    ("job_cancel", [LEASES[0], "'me'", "'{}'"], {"jobs_pkey"}),
    ("job_retry", [LEASES[0], "'me'", "'{}'"], {"jobs_pkey", DEAD_IDX}),
    ("job_discard", [LEASES[0], "'me'", "'{}'"], {"jobs_pkey"}),
    ("job_reprioritise", [LEASES[0], "'me'", "'{}'", "1"], {"jobs_pkey"}),
    ("jobs_floor", ["NULL", "20000"], {"jobs_pkey"}),
    ("jobs_list", [*NO_FILTERS, "NULL", "20", "5", *["NULL"] * 4], {"jobs_pkey"}),
    (
        "jobs_list_open",
        ["'running'", "NULL", "NULL", "NULL", "20", "5000", *NO_FILTERS],
        {RUNNING_IDX, "jobs_pkey"},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "indexes"), OPERATED, ids=[u[0] for u in OPERATED])
def test_what_operators_ask_does_not_read_the_table(
    table: Table, name: str, arguments: list[str], indexes: set[str]
) -> None:
    if not table.analyzed or table.size <= 1_000:
        return
    with connect(make_settings(table.dsn), lane="cli") as conn:
        used = {used for _, used in scans(explain(conn, name, *arguments))}
    assert used <= indexes


@pytest.mark.parametrize(
    ("name", "arguments"), [("claim", CLAIM), ("complete", ONE), ("renew", [*LEASES, "30"])]
)
def test_a_plan_made_for_an_empty_table_is_not_kept(
    dsn: str, name: str, arguments: list[str]
) -> None:
    """Our sessions plan each execution anew.

    A generic plan from before a burst reads the whole table: a claim took 4 s among 500,000 rows,
    until autovacuum came to analyze them.
    """
    with (
        connect(make_settings(dsn), lane="control") as ours,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        other.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
        other.execute("ANALYZE jobs")
        ours.execute(f"PREPARE asked AS {statement(name)}".encode())
        call = f"EXECUTE asked ({', '.join(arguments)})".encode()
        for _ in range(8):  # the server thinks of a generic plan from the sixth on
            ours.execute(call)
        fill(other, 20_000)
        row = ours.execute(b"EXPLAIN (FORMAT JSON) " + call).fetchone()
        assert row is not None
        assert "Seq Scan" not in {used for _, used in scans(row[0][0]["Plan"])}
