"""No statement of maintenance reads the table, or a backlog, to find the few rows it is after."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from reliable_worker.postgres import statements
from reliable_worker.postgres.database import Connection, connect
from tests.fixtures.configuration import make_settings
from tests.fixtures.postgres import Server
from tests.maintenance.rows import BOOT

Plan = dict[str, Any]

ROWS = 100_000
RUNNING = 200
FEW = 50

# Most are a backlog due now in 5 queues, the rest done; beside them the few rows that matter.
FILL = """
INSERT INTO jobs (idempotency_key, payload, queue, state, completed_at, ended_at, attempts,
    crashes, lease_owner, lease_until, claimed_at, available_at)
SELECT class || n, '{}', 'q' || mod(n, 5),
    CASE class WHEN 'done' THEN 'succeeded' WHEN 'dead' THEN 'dead' WHEN 'running' THEN 'running'
        ELSE 'ready' END,
    CASE class WHEN 'done' THEN now() END,
    CASE WHEN class IN ('done', 'dead') THEN now() END,
    CASE class WHEN 'spent' THEN 5 WHEN 'running' THEN 1 ELSE 0 END,
    CASE class WHEN 'suspect' THEN 1 ELSE 0 END,
    CASE class WHEN 'running' THEN %(boot)s || '.' || mod(n, 4) END,
    CASE class WHEN 'running' THEN now() - interval '1 second' END,
    CASE WHEN class IN ('running', 'done') THEN now() END,
    now() - interval '1 hour'
FROM (VALUES ('done', %(half)s), ('due', %(half)s), ('running', %(running)s), ('dead', %(few)s),
    ('spent', %(few)s), ('suspect', %(few)s)) AS wanted (class, size),
    generate_series(1, size) AS n
"""

ALWAYS = "-infinity"
RUNS = [list(range(1, FEW)), [1] * (FEW - 1)]
SERVED: list[object] = [["message"], []]

# statement, its parameters, the indexes it may use, the pages it may touch
KEY = "jobs_pkey"
CASES: list[tuple[str, list[object], set[str], int]] = [
    ("oldest_running", [ALWAYS, "infinity"], {"jobs_expired_idx"}, 50),
    ("expire", [ALWAYS, 0.0, 100], {"jobs_expired_idx", KEY}, 5_000),
    ("date_running", [], {"jobs_expired_idx", KEY}, 50),
    ("sweep", [100], {"jobs_exhausted_idx", KEY}, 2_000),
    ("obituary_crash", [BOOT, *RUNS, 3, "x"], {KEY}, 500),
    ("obituary_timeout", [BOOT, *RUNS, "x", 1.0, 64.0, 0.1], {KEY}, 500),
    ("obituary_refund", [BOOT, *RUNS, ALWAYS], {"jobs_expired_idx", KEY}, 10_000),
    ("obituary_left", [BOOT, ALWAYS], {"jobs_expired_idx"}, 100),
    ("claimable", [*SERVED, "", "", -1, 100], {"jobs_claimable_idx"}, 500),
    ("suspects", [*SERVED, 100], {"jobs_suspect_idx"}, 100),
    ("eligible", [*SERVED, 100], {"jobs_claimable_idx", "jobs_suspect_idx"}, 500),
    ("census_ready", [100], {"jobs_claimable_idx", "jobs_suspect_idx"}, 2_000),
    ("census_running", [ALWAYS, 100], {"jobs_expired_idx"}, 500),
    ("census_dead", [100], {"jobs_dead_idx"}, 200),
]


@pytest.fixture(scope="module", params=[True, False], ids=["fresh", "stale"])
def full(request: pytest.FixtureRequest, server: Server, template: str) -> Iterator[Connection]:
    """100,000 jobs; the planner knows them (fresh) or saw the table empty (stale)."""
    name = f"rw_{uuid.uuid4().hex[:12]}"
    server.create(name, template)
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        conn.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
        conn.execute("ANALYZE jobs")
        conn.execute(FILL, {"boot": BOOT, "half": ROWS // 2, "running": RUNNING, "few": FEW})
        if request.param:
            conn.execute("ANALYZE jobs")
    with connect(make_settings(server.dsn(name)), lane="reaper") as ours:
        yield ours
    server.drop(name)


@pytest.mark.parametrize(
    ("name", "params", "indexes", "pages"), CASES, ids=[case[0] for case in CASES]
)
def test_a_statement_finds_its_rows_by_index(
    full: Connection, name: str, params: list[object], indexes: set[str], pages: int
) -> None:
    asked = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + statements.text(name)
    with full.budget(20, "test"), full.transaction(force_rollback=True):
        cursor = psycopg.RawCursor(full)
        row = (
            cursor.execute("SET LOCAL statement_timeout = '20s'").execute(asked, params).fetchone()
        )
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    nodes = list(_walk(plan))
    read = {node.get("Relation Name") for node in nodes if "Seq Scan" in node["Node Type"]}
    assert "jobs" not in read
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert used <= indexes
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= pages


def _walk(plan: Plan) -> Iterator[Plan]:
    yield plan
    for below in plan.get("Plans", []):
        yield from _walk(below)
