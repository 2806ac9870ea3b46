"""Where a claim begins its scans: nothing that is due is ever passed over for good."""

from __future__ import annotations

import psycopg
import pytest

from reliable_worker.postgres import store
from reliable_worker.worker.places import Places
from reliable_worker.worker.shared import Shared


@pytest.mark.parametrize("date", ["0001-01-01 00:00:00+00", "1969-12-31 23:59:59.999999+00"])
def test_a_job_due_before_1970_is_claimed(
    shared: Shared, conn: psycopg.Connection, date: str
) -> None:
    """A zero date of another language: 0001-01-01 is Go's."""
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, available_at) VALUES ('old', '{}', %s)",
        (date,),
    )
    places = Places((), ["message"], suspects=False)
    with shared.control.use(2, "claim_timeout_seconds") as control:
        for _ in range(2):  # from the head, and from the mark of the first
            places.refresh(control, idle=True)
            asked = places.turn()
            claim = store.claim(control, asked, ["a.0"], lease_seconds=6, margin_seconds=0.6)
            places.claimed(asked, claim, 0.0)
            assert len(claim.jobs) == 1
            conn.execute("UPDATE jobs SET state = 'ready', lease_owner = NULL, lease_until = NULL")


def test_an_idle_process_looks_from_the_head_no_oftener_than_it_can_afford(
    shared: Shared, conn: psycopg.Connection
) -> None:
    """Somebody's old snapshot makes each look from the head read all that was done since."""
    conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('one', '{}')")
    places = Places((), ["message"], suspects=False)
    with shared.control.use(2, "claim_timeout_seconds") as control:
        places.refresh(control, idle=False)
        asked = places.turn()
        claim = store.claim(control, asked, ["a.0"], lease_seconds=6, margin_seconds=0.6)
    places.claimed(asked, claim, cost_seconds=100.0)
    ((_, mark),) = places.turn()
    assert mark > store.HEAD_US
    places.claimed([(place, mark) for place, _ in asked], store.Claim([], {}, None), 0.001)
    assert places.turn() == [(asked[0][0], mark)]
    places.heard([asked[0][0]])  # a notification makes it due at once
    with shared.control.use(2, "claim_timeout_seconds") as control:
        places.refresh(control, idle=False)
    assert places.turn() == [(asked[0][0], store.HEAD_US)]
