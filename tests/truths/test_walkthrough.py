"""The walkthrough by psql, with every default: release, restart, one effect, a dead invalid job."""

from collections.abc import Callable
from typing import Any

import psycopg

from tests.faults.evidence import install
from tests.fixtures.commands import Fleet
from tests.fixtures.postgres import Server
from tests.truths import looking

ENQUEUE = """
INSERT INTO jobs (idempotency_key, payload, max_attempts) VALUES
    ('welcome-1001', '{"message":"welcome","sleep_ms":8000}', 5),
    ('invalid-1002', '{"sleep_ms":0}', 3);
"""


def test_the_walkthrough(
    server: Server, fleet: Callable[..., Fleet], dsn: str, conn: psycopg.Connection[Any]
) -> None:
    install(conn)
    name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
    server.psql(name, "-c", ENQUEUE)
    welcome, invalid = (
        looking.scalar(conn, "SELECT id FROM jobs WHERE idempotency_key = %s", key)
        for key in ("welcome-1001", "invalid-1002")
    )
    first = fleet(workers=1)
    looking.wait_state(conn, welcome, "running", 20)
    first.terminate()
    assert first.wait(10) == 0
    released = looking.row(conn, welcome)
    assert (released.state, released.attempts, released.error) == ("ready", 0, None)
    first.wait_event("job_released", 1, job_id=welcome)

    fleet(workers=1)
    looking.wait_state(conn, welcome, "succeeded", 30)
    assert looking.row(conn, welcome).attempts == 1
    rows = conn.execute("SELECT idempotency_key, message FROM processed_messages").fetchall()
    assert rows == [("welcome-1001", "welcome")]
    dead = looking.wait_state(conn, invalid, "dead", 20)
    assert (dead.attempts, dead.error) == (3, "message is required")
    one, two = looking.gaps(looking.claims(conn, invalid))
    assert one >= 1
    assert two >= 2
