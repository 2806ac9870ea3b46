"""Where a claim begins its scans: nothing that is due is ever passed over for good."""

from __future__ import annotations

import math

import psycopg
import pytest

from reliable_worker.jobs.slices import Walk
from reliable_worker.postgres import store
from reliable_worker.worker.places import Places
from reliable_worker.worker.shared import Shared
from tests.fixtures.waiting import wait_until


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
            places.claimed(asked, claim)
            assert len(claim.jobs) == 1
            conn.execute("UPDATE jobs SET state = 'ready', lease_owner = NULL, lease_until = NULL")


def claim_once(shared: Shared, places: Places) -> tuple[int, list[int]]:
    """One turn as the producer does it: the ids claimed, and where the scans began."""
    with shared.control.use(2, "claim_timeout_seconds") as control:
        places.refresh(control, idle=True)
        places.look_below(control)
        asked = places.turn()
        claim = store.claim(control, asked, ["a.0"], lease_seconds=6, margin_seconds=0.6)
    places.claimed(asked, claim)
    return sum(job.id for job in claim.jobs), [mark for _, mark in asked]


def test_an_idle_process_begins_its_scans_at_the_present(
    shared: Shared, conn: psycopg.Connection
) -> None:
    """Somebody's old snapshot makes each look from the beginning read all that was done since."""
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, available_at)"
        " VALUES ('later', '{}', now() + interval '1 hour')"
    )
    places = Places((), ["message"], suspects=False)
    assert claim_once(shared, places) == (0, [store.HEAD_US])
    _, (mark,) = claim_once(shared, places)
    row = conn.execute("SELECT extract(epoch FROM now()) * 1000000").fetchone()
    assert row is not None
    assert 0 < float(row[0]) - mark < 60e6


def test_what_became_due_below_the_mark_is_found(
    shared: Shared, conn: psycopg.Connection, dsn: str
) -> None:
    """A job given back in its old place, or committed long after it was written."""
    places = Places((), ["message"], suspects=False)
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('first', '{}')")
        late.execute(
            "INSERT INTO jobs (idempotency_key, payload, available_at)"
            " VALUES ('late', '{}', now() - interval '1 day')"
        )
        conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('soon', '{}')")
        assert claim_once(shared, places)[0]
        assert claim_once(shared, places)[0] == 0
    claimed: set[int] = set()

    def both() -> bool:
        claimed.update({claim_once(shared, places)[0]} - {0})
        return len(claimed) == 2

    wait_until(both, 20, "both found")


def test_a_slice_that_is_cut_is_halved_and_the_walk_goes_on_from_there() -> None:
    walk = Walk(rest_seconds=1.0, first_seconds=math.inf)
    now = 1e9
    assert walk.slice(now) == (-math.inf, now)
    walk.cut(2.0)
    assert walk.slice(now) == (now - 5e8, now)
    walk.cut(2.0)
    since, before = walk.slice(now)
    assert (since, before) == (now - 2.5e8, now)
    walk.looked(1.0, 0.0)
    assert walk.due(0.0)  # at once: the walk is not over
    assert walk.slice(now)[1] == since
    for _ in range(10):
        if not walk.due(0.0):
            break
        walk.slice(now)
        walk.looked(0.01, 0.0)
    assert walk.complete
    assert not walk.due(100.0)  # thirty times what all of it cost
    assert walk.due(1000.0)
    since, _ = walk.slice(now)
    assert now - since == 1e9  # four times what fitted: not all of it again at once
