"""Each statement of maintenance, on a real row: exactly these columns change, exactly so."""

from __future__ import annotations

import psycopg
import pytest

from reliable_worker.jobs.retry import Backoff
from reliable_worker.postgres import upkeep
from reliable_worker.postgres.database import Connection
from tests.maintenance.rows import BOOT, OTHER_BOOT, add, add_running, change, get

ALWAYS = float("-inf")
BACKOFF = Backoff(1.0, 64.0, 0.1)

LEASE_GONE = {"state": "ready", "lease_owner": None, "lease_until": None}


def expire(conn: Connection) -> list[upkeep.Taken]:
    return upkeep.expire(conn, mark=ALWAYS, server_age_seconds=0.0, limit=100)


def test_expire_keeps_the_attempt_spent_and_pushes_back(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, lease_seconds=-1, attempts=3, fence=7)
    before = get(conn, job)
    assert [taken.job_id for taken in expire(upkeep_conn)] == [job]
    after = get(conn, job)
    available_at = after["available_at"]
    assert change(before, after) == {**LEASE_GONE, "fence": 8, "available_at": available_at}
    assert 1.0 < after["delay"] <= 2.0  # attempts - 1


def test_a_first_expiry_does_not_push_back(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, lease_seconds=-1)
    expire(upkeep_conn)
    assert get(conn, job)["delay"] <= 0.0


@pytest.mark.parametrize(
    ("stands", "says"),
    [(None, "lease expired after final attempt"), ("it broke", "it broke")],
)
def test_expire_buries_after_the_final_attempt(
    conn: psycopg.Connection, upkeep_conn: Connection, stands: str | None, says: str
) -> None:
    job = add_running(conn, lease_seconds=-1, attempts=2, max_attempts=2, last_error=stands)
    before = get(conn, job)
    (taken,) = expire(upkeep_conn)
    assert (taken.dead, taken.attempt, taken.owner) == (True, 2, f"{BOOT}.0")
    after = get(conn, job)
    assert after["ended_at"] is not None
    assert change(before, after) == {
        **LEASE_GONE,
        "state": "dead",
        "fence": 2,
        "ended_at": after["ended_at"],
        **({"last_error": says} if stands is None else {}),
    }


def test_expire_leaves_live_leases_and_other_states_alone(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    jobs = [add_running(conn, lease_seconds=30), add(conn), add(conn, attempts=5)]
    before = [get(conn, job) for job in jobs]
    assert expire(upkeep_conn) == []
    assert [change(was, get(conn, was["id"])) for was in before] == [{}, {}, {}]


def test_expire_waits_while_the_server_is_young(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    add_running(conn, lease_seconds=-1)
    young = upkeep.expire(upkeep_conn, mark=ALWAYS, server_age_seconds=86_400.0, limit=100)
    assert young == []
    assert len(expire(upkeep_conn)) == 1


def test_expire_works_in_batches_from_the_mark_on(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    old = add_running(conn, lease_seconds=-1, claimed_seconds_ago=600)
    new = [add_running(conn, lease_seconds=-1) for _ in range(3)]
    mark = upkeep.clock(upkeep_conn) - 300
    first = upkeep.expire(upkeep_conn, mark=mark, server_age_seconds=0.0, limit=2)
    rest = upkeep.expire(upkeep_conn, mark=mark, server_age_seconds=0.0, limit=2)
    assert [one.job_id for one in first + rest] == new
    assert get(conn, old)["state"] == "running"


def test_rows_without_a_claim_time_are_dated_and_then_found(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    """Plain SQL can write a running row so; without this it would run for ever."""
    job = add_running(conn, lease_seconds=-1)
    conn.execute("UPDATE jobs SET claimed_at = NULL WHERE id = %s", (job,))
    seen = upkeep.oldest_running(upkeep_conn, ALWAYS, float("inf"))
    assert (seen.claimed_at, seen.undated) == (None, True)
    before = get(conn, job)
    assert upkeep.date_running(upkeep_conn) == 1
    after = get(conn, job)
    assert change(before, after) == {"claimed_at": after["claimed_at"]}
    assert upkeep.date_running(upkeep_conn) == 0
    assert [taken.job_id for taken in expire(upkeep_conn)] == [job]


def test_sweep_buries_what_cannot_run_and_keeps_its_last_error(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    spent = add(conn, attempts=5, last_error="it broke")
    left = [
        add(conn, attempts=4),
        add_running(conn, attempts=5),
        add(conn, attempts=4, available_at="9999-01-01"),
    ]
    before = get(conn, spent)
    others = [get(conn, job) for job in left]
    assert upkeep.sweep(upkeep_conn, 100) == 1
    after = get(conn, spent)
    assert change(before, after) == {"state": "dead", "ended_at": after["ended_at"]}
    assert after["ended_at"] is not None
    assert [change(was, get(conn, was["id"])) for was in others] == [{}, {}, {}]


def test_a_crash_gives_the_attempt_back_and_is_counted(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, attempts=5, fence=9, refunds=2, snoozes=1)
    before = get(conn, job)
    (taken,) = upkeep.obituary_crash(upkeep_conn, BOOT, [(job, 9)], 3, "killed by signal 9")
    assert (taken.dead, taken.attempt) == (False, 5)
    assert change(before, get(conn, job)) == {
        **LEASE_GONE,
        "attempts": 4,
        "crashes": 1,
        "fence": 10,
        "last_error": "killed by signal 9",
    }


def test_the_third_crash_buries_and_names_the_cause(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, crashes=2)
    before = get(conn, job)
    (taken,) = upkeep.obituary_crash(upkeep_conn, BOOT, [(job, 1)], 3, "killed by signal 9")
    assert taken.dead
    after = get(conn, job)
    assert change(before, after) == {
        **LEASE_GONE,
        "state": "dead",
        "attempts": 0,
        "crashes": 3,
        "fence": 2,
        "last_error": "killed by signal 9",
        "ended_at": after["ended_at"],
    }


def test_a_stuck_job_has_failed_an_attempt_and_backs_off(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, attempts=3, refunds=2, snoozes=1)
    before = get(conn, job)
    upkeep.obituary_timeout(upkeep_conn, BOOT, [(job, 1)], "stuck", BACKOFF)
    after = get(conn, job)
    assert change(before, after) == {
        **LEASE_GONE,
        "fence": 2,
        "refunds": 0,
        "snoozes": 0,
        "last_error": "stuck",
        "available_at": after["available_at"],
    }
    assert 3.0 < after["delay"] <= 4.4  # 1 s doubled twice, plus 0…10 %


def test_a_stuck_job_is_dead_after_its_last_attempt(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, attempts=5)
    before = get(conn, job)
    (taken,) = upkeep.obituary_timeout(upkeep_conn, BOOT, [(job, 1)], "stuck", BACKOFF)
    assert taken.dead
    after = get(conn, job)
    assert change(before, after) == {
        **LEASE_GONE,
        "state": "dead",
        "fence": 2,
        "last_error": "stuck",
        "ended_at": after["ended_at"],
    }


def test_a_huge_attempt_number_backs_off_to_the_maximum(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, attempts=2_000_000_000, max_attempts=2_147_483_647)
    upkeep.obituary_timeout(upkeep_conn, BOOT, [(job, 1)], "stuck", BACKOFF)
    assert 60.0 < get(conn, job)["delay"] <= 64.0 * 1.1


def test_a_refund_gives_the_attempt_back_and_keeps_the_place(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    job = add_running(conn, attempts=5, crashes=1, refunds=2)
    before = get(conn, job)
    (taken,) = upkeep.obituary_refund(upkeep_conn, BOOT, [], ALWAYS)
    assert (taken.job_id, taken.attempt, taken.dead) == (job, 5, False)
    assert change(before, get(conn, job)) == {**LEASE_GONE, "attempts": 4, "fence": 2}


def test_a_refund_leaves_the_judged_and_the_foreign_alone(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    judged = add_running(conn, f"{BOOT}.0")
    again = add_running(conn, f"{BOOT}.1", fence=6)  # judged at an older fence: another run
    foreign = add_running(conn, f"{OTHER_BOOT}.0")
    alike = add_running(conn, f"{BOOT}9.0")  # a prefix, but not this boot id
    refunded = upkeep.obituary_refund(upkeep_conn, BOOT, [(judged, 1), (again, 5)], ALWAYS)
    assert [taken.job_id for taken in refunded] == [again]
    for job in (judged, foreign, alike):
        assert get(conn, job)["state"] == "running"
    assert upkeep.obituary_left(upkeep_conn, BOOT, ALWAYS) == 1


@pytest.mark.parametrize("owner", [f"{OTHER_BOOT}.0", f"{BOOT}9.0"])
@pytest.mark.parametrize("fence", [1, 2, 3])
def test_no_verdict_touches_a_run_it_does_not_name(
    conn: psycopg.Connection, upkeep_conn: Connection, owner: str, fence: int
) -> None:
    """Another owner at the same fence, or this owner's later or earlier run of the job."""
    theirs = add_running(conn, owner, fence=2)
    ours = add_running(conn, f"{BOOT}.0", fence=2)
    runs = [(theirs, fence), (ours, fence)]
    crashed = upkeep.obituary_crash(upkeep_conn, BOOT, runs, 3, "x")
    stuck = upkeep.obituary_timeout(upkeep_conn, BOOT, runs, "x", BACKOFF)
    assert [one.job_id for one in crashed + stuck] == ([ours] if fence == 2 else [])
    assert get(conn, theirs)["state"] == "running"
