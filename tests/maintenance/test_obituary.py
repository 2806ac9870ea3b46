"""Obituaries: every row of a dead process is freed by what is known of its end, however late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from reliable_worker.jobs.events import Event
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.maintenance.obituary import Obituaries
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import BOOT, OTHER_BOOT, add, add_running, get

MakeLane = Callable[..., Lane]


class Book:
    """Obituaries with the acknowledgements they sent."""

    def __init__(self, dsn: str, **settings: object) -> None:
        self.acknowledged: list[str] = []
        made = make_settings(dsn, **settings)
        self.passes_that_freed = 0
        self.listed = Obituaries(made, Marks(), freed=self._count, buried=self.acknowledged.append)

    def _count(self) -> None:
        self.passes_that_freed += 1

    def add(self, cause: str, boot: str = BOOT, **facts: object) -> None:
        self.listed.add({"say": "obituary", "boot": boot, "cause": cause, **facts})


@pytest.fixture
def book(dsn: str) -> Book:
    return Book(dsn)


# What becomes of (a started job, a stuck one, one that never started): attempts (4 before),
# crashes (0 before), whether available_at moved.
BACK, SPENT = 3, 4
REFUND = (BACK, 0, False)
CRASH = (BACK, 1, False)
TIMEOUT = (SPENT, 0, True)


VERDICTS = {
    "crash": (CRASH, TIMEOUT),
    "stall": (CRASH, TIMEOUT),
    "timeout": (REFUND, TIMEOUT),
    "drain": (REFUND, REFUND),
    "exit": (REFUND, REFUND),
}


@pytest.mark.parametrize("cause", VERDICTS)
def test_each_cause_judges_each_job(
    conn: psycopg.Connection,
    make_lane: MakeLane,
    book: Book,
    cause: str,
) -> None:
    started, stuck = VERDICTS[cause]
    jobs = [add_running(conn, f"{BOOT}.{slot}", attempts=4, fence=slot + 1) for slot in range(3)]
    before = [get(conn, job) for job in jobs]
    book.add(
        cause,
        error="killed by signal 9 (SIGKILL)",
        started=[[jobs[0], 1], [jobs[1], 2]],
        stuck=[[jobs[1], 2]],
    )
    assert book.listed.run_once(make_lane()) == 3
    after = [get(conn, job) for job in jobs]
    assert [row["state"] for row in after] == ["ready"] * 3
    assert [row["fence"] for row in after] == [2, 3, 4]
    assert [
        (new["attempts"], new["crashes"], new["available_at"] != old["available_at"])
        for old, new in zip(before, after, strict=True)
    ] == [started, stuck, REFUND]
    assert (book.acknowledged, book.listed.pending()) == ([BOOT], 0)
    named = [row["last_error"] for row in after if row["last_error"]]
    assert all("killed by signal 9 (SIGKILL)" in text for text in named)
    assert len(named) == (started != REFUND) + (stuck != REFUND)


def test_a_locked_row_stays_listed_until_it_is_free(
    conn: psycopg.Connection, dsn: str, make_lane: MakeLane, book: Book
) -> None:
    """It is judged by its own cause then, not refunded with the others."""
    locked, free = (add_running(conn, f"{BOOT}.{slot}") for slot in range(2))
    lane = make_lane()
    book.add("crash", error="killed by signal 11 (SIGSEGV)", started=[[locked, 1], [free, 1]])
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", (locked,))
        assert book.listed.run_once(lane) == 1
        assert book.listed.run_once(lane) == 0
        assert (book.acknowledged, get(conn, locked)["state"]) == ([], "running")
    assert book.listed.run_once(lane) == 1
    assert (get(conn, locked)["crashes"], book.acknowledged) == (1, [BOOT])
    assert book.passes_that_freed == 2  # of three


def test_a_finish_that_commits_after_the_death_stands(
    conn: psycopg.Connection, dsn: str, make_lane: MakeLane, book: Book
) -> None:
    job = add_running(conn)
    lane = make_lane()
    book.add("crash", error="killed by signal 9 (SIGKILL)", started=[[job, 1]])
    with psycopg.connect(dsn, application_name=f"rw:{BOOT}:effects") as finishing:
        finishing.execute(
            "UPDATE jobs SET state = 'succeeded', completed_at = now(), ended_at = now(),"
            " lease_owner = NULL, lease_until = NULL WHERE id = %s",
            (job,),
        )
        assert book.listed.run_once(lane) == 0
        finishing.commit()
    wait_until(lambda: book.listed.run_once(lane) or book.acknowledged, 20, "the end")
    row = get(conn, job)
    assert (row["state"], row["crashes"]) == ("succeeded", 0)


def test_a_claim_that_commits_after_its_process_died_is_freed(
    conn: psycopg.Connection, dsn: str, make_lane: MakeLane, book: Book
) -> None:
    """While a server process of the dead one lives, an empty pass ends nothing."""
    job = add(conn)
    lane = make_lane()
    with psycopg.connect(dsn, application_name=f"rw:{BOOT}:control") as claiming:
        claiming.execute(
            "UPDATE jobs SET state = 'running', attempts = 1, fence = 1, lease_owner = %s,"
            " lease_until = now() + interval '30 s', claimed_at = clock_timestamp() WHERE id = %s",
            (f"{BOOT}.0", job),
        )
        book.add("crash", error="killed by signal 9 (SIGKILL)", started=[])
        for _ in range(3):
            assert book.listed.run_once(lane) == 0
        assert book.acknowledged == []
        claiming.commit()
        claiming.execute("SELECT 1")
        assert book.listed.run_once(lane) == 1  # freed, but the server process lives still
        assert book.acknowledged == []
    wait_until(lambda: book.listed.run_once(lane) or book.acknowledged, 20, "the end")
    row = get(conn, job)
    assert (row["state"], row["attempts"], row["crashes"], row["fence"]) == ("ready", 0, 0, 2)


def test_a_poolers_idle_connection_does_not_count_for_ever(
    conn: psycopg.Connection, dsn: str, make_lane: MakeLane
) -> None:
    book = Book(dsn, lease_seconds=2)
    lane = make_lane()
    book.add("exit")
    with psycopg.connect(dsn, autocommit=True, application_name=f"rw:{BOOT}:control") as pooled:
        pooled.execute("SELECT 1")
        assert book.listed.run_once(lane) == 0
        assert book.acknowledged == []
        wait_until(lambda: book.listed.run_once(lane) or book.acknowledged, 20, "the end")


def test_an_obituary_sent_again_changes_nothing(
    conn: psycopg.Connection, make_lane: MakeLane, book: Book
) -> None:
    job = add_running(conn)
    lane = make_lane()
    facts: dict[str, Any] = {"error": "killed by signal 9 (SIGKILL)", "started": [[job, 1]]}
    book.add("crash", **facts)
    book.add("crash", **facts)
    book.listed.run_once(lane)
    # Claimed again, by another process, and the acknowledgement was lost.
    conn.execute(
        "UPDATE jobs SET state = 'running', attempts = 1, fence = 3, lease_owner = %s,"
        " lease_until = now() + interval '30 s', claimed_at = now() WHERE id = %s",
        (f"{OTHER_BOOT}.0", job),
    )
    before = get(conn, job)
    book.add("crash", **facts)
    assert book.listed.run_once(lane) == 0
    assert get(conn, job)["fence"] == before["fence"]
    assert book.acknowledged == [BOOT, BOOT]


def test_one_obituary_that_fails_keeps_no_other_waiting(
    conn: psycopg.Connection, make_lane: MakeLane, book: Book
) -> None:
    bad = add_running(conn, f"{BOOT}.0", crashes=2_147_483_647)  # one more does not fit
    good = add_running(conn, f"{OTHER_BOOT}.0")
    lane = make_lane()
    book.add("crash", error="x", started=[[bad, 1]])
    book.add("crash", boot=OTHER_BOOT, error="x", started=[[good, 1]])
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        book.listed.run_once(lane)
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        book.listed.run_once(lane)
    assert get(conn, good)["state"] == "ready"
    assert (book.acknowledged, book.listed.pending()) == ([OTHER_BOOT], 1)


def test_the_third_crash_is_told_as_a_dead_suspect(
    conn: psycopg.Connection, make_lane: MakeLane, book: Book, seen: list[Event]
) -> None:
    poison = add_running(conn, f"{BOOT}.0", attempts=1, crashes=2)
    idle = add_running(conn, f"{BOOT}.1", attempts=1)
    book.add("crash", error="killed by signal 9 (SIGKILL)", started=[[poison, 1]])
    book.listed.run_once(make_lane())
    row = get(conn, poison)
    assert row["state"] == "dead"
    assert "killed by signal 9 (SIGKILL)" in row["last_error"]
    told = {event.name: dict(event.fields) for event in seen}
    assert told["suspect_dead"]["job_id"] == poison
    assert told["job_failed"]["job_id"] == poison
    assert (told["job_failed"]["reason"], told["job_failed"]["outcome"]) == ("crash", "dead")
    assert (told["job_released"]["job_id"], told["job_released"]["reason"]) == (idle, "unstarted")
    assert told["obituary"] == {"boot": BOOT, "cause": "crash", "freed": 2, "dead": 1}


def test_an_endless_cause_is_cut_to_what_the_column_holds(
    conn: psycopg.Connection, make_lane: MakeLane, book: Book
) -> None:
    job = add_running(conn)
    book.add("crash", error="é\x00" * 2000, started=[[job, 1]])
    book.listed.run_once(make_lane())
    assert len(get(conn, job)["last_error"]) == 1000


@pytest.mark.parametrize(
    "message", [{}, {"boot": BOOT, "started": "x"}, {"boot": BOOT, "started": [[1]]}]
)
def test_a_garbled_obituary_is_refused(book: Book, message: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        book.listed.add(message)
    assert book.listed.pending() == 0


def test_nothing_listed_is_never_due(book: Book, make_lane: MakeLane) -> None:
    assert book.listed.due_at() == float("inf")
    book.add("exit")
    assert book.listed.due_at() == 0.0
    book.listed.run_once(make_lane())
    assert book.listed.due_at() == float("inf")
