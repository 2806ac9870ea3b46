"""What operators ask reads a bounded number of pages, however many rows the table holds.

Counted in buffers of the worst case, a filter that fits nothing, on a table many times as large as
what may be looked at; so a million rows, or a hundred, cost the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from reliable_worker.postgres import operators
from reliable_worker.postgres.database import Connection, connect
from reliable_worker.postgres.operators import FEW_ROWS, LOOK_ROWS, Filters
from tests.fixtures.configuration import make_settings
from tests.fixtures.postgres import Server
from tests.postgres.test_plans import explain, scans, walk

ROWS = 200_000
# A row looked at costs its index entry and its page, an index some pages on the way.
PER_ROW, WAY = 2.2, 200
COUNTED = 1_000  # what the numbers are counted to here

FILL = """
INSERT INTO jobs (idempotency_key, payload, queue, state, ended_at, completed_at, crashes)
SELECT 'k' || n, '{{}}', 'q' || n % 5, state,
    CASE WHEN state IN ('dead', 'succeeded') THEN now() END,
    CASE WHEN state = 'succeeded' THEN now() END,
    CASE WHEN n % 7 = 0 THEN 1 ELSE 0 END
FROM generate_series(1, {rows}) AS n, LATERAL (
    SELECT CASE n % 4 WHEN 0 THEN 'ready' WHEN 1 THEN 'dead' ELSE 'succeeded' END
) AS s (state)
"""


@pytest.fixture(scope="module")
def full(server: Server, template: str) -> Iterator[str]:
    """A database of ROWS jobs: a quarter ready, a quarter dead, in five queues."""
    name = f"rw_{uuid.uuid4().hex[:12]}"
    server.create(name, template)
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        conn.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
        conn.execute(FILL.format(rows=ROWS).encode())
        conn.execute("VACUUM ANALYZE jobs")
    yield server.dsn(name)
    server.drop(name)


@pytest.fixture
def ours(full: str) -> Iterator[Connection]:
    with connect(make_settings(full), lane="cli") as conn:
        yield conn


NONE = ["NULL"] * 3
NOTHING = ["NULL", "NULL", "'nonesuch'"]
ASKED = [
    ("jobs_floor", ["NULL", str(LOOK_ROWS)], LOOK_ROWS),
    (
        "jobs_list",
        [*NOTHING, "NULL", "20", str(ROWS - LOOK_ROWS), "NULL", *NONE],
        LOOK_ROWS,
    ),
    ("jobs_list", [*NONE, "NULL", "20", "0", "NULL", *NONE], 20),
    ("jobs_list", [*NONE, "NULL", "20", "NULL", "'k7'", *NONE], 1),
    *(
        (
            "jobs_list_open",
            [f"'{state}'", "NULL", "'nonesuch'", "NULL", "20", str(FEW_ROWS), *NONE],
            2 * FEW_ROWS,  # of two indexes for those that wait
        )
        for state in ("ready", "dead", "running")
    ),
    ("queues_split", ["ARRAY['q0', 'q1', 'q2', 'q3', 'q4']", str(COUNTED)], 10 * COUNTED),
    ("census_ready", [str(COUNTED)], 10 * COUNTED),
    ("census_running", ["'-Infinity'", str(COUNTED)], COUNTED),
    ("census_dead", [str(COUNTED)], 5 * COUNTED),
    ("prune", ["0", "500", "86400", "86400", "86400"], 2 * 500),
    ("top_running", ["20"], 20),
    ("top_last", [], 1),
]


@pytest.mark.parametrize(
    ("name", "arguments", "rows"), ASKED, ids=[f"{i}-{a[0]}" for i, a in enumerate(ASKED)]
)
def test_nothing_reads_the_table(
    ours: Connection, name: str, arguments: list[str], rows: int
) -> None:
    plan = explain(ours, name, *arguments, options=", ANALYZE, BUFFERS, TIMING OFF")
    assert "Seq Scan" not in {used for _, used in scans(plan)}
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= rows * PER_ROW + WAY
    read = max(
        (
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in walk(plan)
            if node.get("Relation Name") == "jobs"
        ),
        default=0,
    )
    assert read <= rows + 1


def test_pages_lead_from_one_to_the_next_to_what_is_far_away(
    ours: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest job, found behind looks that fit nothing; each look says where the next begins."""
    monkeypatch.setattr(operators, "LOOK_SECONDS", 0.0)
    filters = Filters(kind="message", state="succeeded", queue="q2")
    found, pages, before = [], 0, None
    while before is not None or not pages:
        page = operators.list_jobs(ours, filters, before=before, limit=1000)
        assert before is None or page.before is None or page.before < before
        found += page.jobs
        before, pages = page.before, pages + 1
    assert found[-1].id == 2
    assert len(found) == len({job.id for job in found}) == ROWS // 2 // 5
    assert pages >= ROWS // LOOK_ROWS
