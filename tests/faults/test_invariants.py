"""The checker finds nothing in a sound history and names each kind of unsound one."""

from typing import Any

import psycopg
import pytest

from tests.faults import evidence
from tests.faults.invariants import violations

Connection = psycopg.Connection[Any]

CLAIM = """
UPDATE jobs SET state = 'running', attempts = attempts + 1, fence = fence + 1,
    lease_owner = 'aa.0', lease_until = now() + interval '1 min', claimed_at = now()
"""
DONE = """
BEGIN;
UPDATE jobs SET state = 'succeeded', completed_at = now(), ended_at = now(), lease_owner = NULL,
    lease_until = NULL;
INSERT INTO effects (key, job_id, fence) SELECT idempotency_key, id, fence FROM jobs;
COMMIT
"""
BACK = "UPDATE jobs SET state = 'ready', lease_owner = NULL, lease_until = NULL"
START = (
    "INSERT INTO hist (job_id, fence, event, pid, tid) SELECT id, fence, 'start', 7, 7 FROM jobs"
)
END = START.replace("'start'", "'end'")


@pytest.fixture
def evidenced(conn: Connection) -> Connection:
    """A connection that looks like a worker's, to a database with evidence and one job."""
    evidence.install(conn)
    conn.execute("SET application_name = 'rw:aa:work'")
    evidence.add_jobs(conn, "work", ["{}"])
    return conn


def test_a_sound_history_is_sound(evidenced: Connection) -> None:
    for step in (CLAIM, START, END, BACK, CLAIM, START, DONE, END):
        evidenced.execute(step)
    assert violations(evidenced, keys=["work-1"]) == []


UNSOUND = {
    "I1 key lost": (),
    "I2 key work-1 has 2 effects": (
        CLAIM,
        DONE,
        "INSERT INTO effects (key, job_id, fence) SELECT key, job_id, fence FROM effects",
    ),
    "is succeeded with 0 effects": (CLAIM, DONE, "DELETE FROM effects"),
    "is ready with 1 effects": (
        "INSERT INTO effects (key, job_id, fence) SELECT idempotency_key, id, fence FROM jobs",
    ),
    "in another transaction": (
        CLAIM,
        "INSERT INTO effects (key, job_id, fence) SELECT idempotency_key, id, fence FROM jobs",
        DONE,
    ),
    "went succeeded → ready": (
        CLAIM,
        DONE,
        f"{BACK}, completed_at = NULL, ended_at = NULL",
    ),
    "claimed with fence 0 → 0": (CLAIM.replace("fence + 1", "fence"),),
    "changed its holder": (CLAIM, "UPDATE jobs SET lease_owner = 'bb.0'"),
    "left running by rw:bb:work": (CLAIM, "SET application_name = 'rw:bb:work'", BACK),
    "before its lease ended": (CLAIM, f"-- expire: so\n{BACK}, fence = fence + 1"),
    "has its fence lowered": (CLAIM, f"{BACK}, fence = 0"),
    "attempts 1 → 3": (CLAIM, f"{BACK}, attempts = 3"),
    "is ready with 5 of 5 attempts": ("UPDATE jobs SET attempts = 5",),
    "died with 1 of 5": (
        CLAIM,
        BACK.replace("'ready'", "'dead'") + ", ended_at = now()",
    ),
    "I7 job": (CLAIM, "UPDATE jobs SET lease_until = now() - interval '1 min'"),
    "had no end": (CLAIM, START, BACK, CLAIM, START),
    "lasted until": (CLAIM, START, BACK, CLAIM, START, END.replace("fence, 'end'", "1, 'end'")),
    "ran 2 times under fence 1": (CLAIM, START, START),
}


@pytest.mark.parametrize("said", UNSOUND)
def test_an_unsound_history_is_named(evidenced: Connection, said: str) -> None:
    for step in UNSOUND[said]:
        evidenced.execute(step)
    found = violations(evidenced, keys=["work-1", "lost"] if "I1" in said else None)
    what = "I1 key lost is lost" if "I1" in said else said
    assert any(what in line for line in found), found


def test_a_run_whose_process_the_test_killed_needs_no_end(evidenced: Connection) -> None:
    for step in (CLAIM, START, BACK, CLAIM, START.replace("7, 7", "8, 8"), DONE):
        evidenced.execute(step)
    assert any(line.startswith("I8") for line in violations(evidenced))
    assert violations(evidenced, killed=[7, 8]) == []
