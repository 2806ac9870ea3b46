"""The finisher: group commit keeps each job's fence, and no job suffers for its neighbour."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from reliable_worker.jobs.events import Event
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.outcome import (
    Bury,
    Complete,
    Outcome,
    Refund,
    Release,
    RetryLater,
    SnoozeUntil,
)
from reliable_worker.worker.finish import Finished
from reliable_worker.worker.shared import Shared
from tests.fixtures.waiting import wait_until

Claim = Callable[..., list[ClaimedJob]]
EFFECT = "INSERT INTO effects (job) VALUES (%s)"


@pytest.fixture(autouse=True)
def effects_table(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE effects (job bigint NOT NULL CHECK (job > 0))")


def finish(shared: Shared, items: list[Finished]) -> None:
    """Hand in together, then let the finisher write them all."""
    for item in items:
        shared.finisher.submit(item)
    shared.finisher.thread.start()
    wait_until(lambda: not shared.finisher.backlog, 20, "everything acknowledged")


def states(conn: psycopg.Connection) -> dict[int, str]:
    return dict(conn.execute("SELECT id, state FROM jobs").fetchall())


def effects(conn: psycopg.Connection) -> list[int]:
    return [row[0] for row in conn.execute("SELECT job FROM effects ORDER BY job").fetchall()]


def complete(job: ClaimedJob) -> Finished:
    return Finished(job, Complete(), [(EFFECT, (job.id,))])


def names(log: list[Event]) -> list[str]:
    return [event.name for event in log]


def test_a_group_is_one_transaction(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    jobs = claimed(40)
    conn.execute("ALTER TABLE effects ADD xid xid8 DEFAULT pg_current_xact_id()")
    finish(shared, [complete(job) for job in jobs])
    assert set(states(conn).values()) == {"succeeded"}
    assert effects(conn) == sorted(job.id for job in jobs)
    counted = conn.execute("SELECT count(DISTINCT xid) FROM effects").fetchone()
    assert counted is not None
    assert counted[0] == 1
    assert len(shared.book) == 0


def test_in_a_group_each_row_is_fenced_alone(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, log: list[Event]
) -> None:
    kept, taken = claimed(2)
    conn.execute("UPDATE jobs SET fence = fence + 1 WHERE id = %s", (taken.id,))
    finish(shared, [complete(kept), complete(taken)])
    assert states(conn) == {kept.id: "succeeded", taken.id: "running"}
    assert effects(conn) == [kept.id]
    assert names(log).count("stale_finish") == 1


def test_a_failing_effect_fails_its_own_job_only(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    good, bad, also_good = claimed(3)
    wrong = Finished(bad, Complete(), [(EFFECT, (-1,))])
    finish(shared, [complete(good), wrong, complete(also_good)])
    assert states(conn) == {good.id: "succeeded", bad.id: "ready", also_good.id: "succeeded"}
    assert effects(conn) == [good.id, also_good.id]
    error = conn.execute("SELECT last_error FROM jobs WHERE id = %s", (bad.id,)).fetchone()
    assert error is not None
    assert error[0].startswith("CheckViolation [23514] constraint effects_job_check")


@pytest.mark.parametrize(
    "statement",
    [
        "ROLLBACK",
        "/* x */ commit",
        "/* /* */ x */ COMMIT",
        "ROLLBACK; BEGIN",
        "SELECT 1; COMMIT",
        "end",
    ],
)
def test_an_effect_that_ends_the_transaction_hurts_nobody_else(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, statement: str
) -> None:
    good, bad, also_good = claimed(3)
    wrong = Finished(bad, Complete(), [(statement, None)])
    finish(shared, [complete(good), wrong, complete(also_good)])
    found = states(conn)
    assert found[good.id] == found[also_good.id] == "succeeded"
    assert effects(conn) == [good.id, also_good.id]
    assert found[bad.id] == "ready"


def test_a_row_locked_by_somebody_is_waited_for_and_not_lost(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, dsn: str, log: list[Event]
) -> None:
    free, locked = claimed(2)
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", (locked.id,))
        shared.finisher.submit(complete(free))
        shared.finisher.submit(complete(locked))
        shared.finisher.thread.start()
        wait_until(lambda: states(conn)[free.id] == "succeeded", 10, "the free one completed")
        assert states(conn)[locked.id] == "running"
    wait_until(lambda: not shared.finisher.backlog, 20, "the locked one completed")
    assert states(conn)[locked.id] == "succeeded"
    assert effects(conn) == sorted([free.id, locked.id])
    assert "stale_finish" not in names(log)


def test_each_other_outcome_is_one_fenced_statement(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    jobs = claimed(5)
    outcomes: list[Outcome] = [
        RetryLater(60, "no luck", "error"),
        Bury("no hope", "error"),
        Release(),
        Refund(60),
        SnoozeUntil(60),
    ]
    finish(shared, [Finished(job, what) for job, what in zip(jobs, outcomes, strict=True)])
    rows = conn.execute(
        "SELECT state, attempts, refunds, snoozes, last_error, available_at > now() + '50 s',"
        " lease_owner FROM jobs ORDER BY id"
    ).fetchall()
    assert rows == [
        ("ready", 1, 0, 0, "no luck", True, None),
        ("dead", 1, 0, 0, "no hope", False, None),
        ("ready", 0, 0, 0, None, False, None),
        ("ready", 0, 1, 0, None, True, None),
        ("ready", 0, 0, 1, None, True, None),
    ]


def test_a_late_failure_writes_nothing_on_another_workers_row(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, log: list[Event]
) -> None:
    (job,) = claimed(1)
    conn.execute("UPDATE jobs SET fence = fence + 1, lease_owner = 'another.0'")
    finish(shared, [Finished(job, RetryLater(1, "late", "error"))])
    row = conn.execute("SELECT state, lease_owner, last_error FROM jobs").fetchone()
    assert row == ("running", "another.0", None)
    assert "stale_finish" in names(log)


def test_effects_leave_nothing_in_the_session(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    leak = [("SELECT set_config('search_path', 'nowhere', false)", None)]
    finish(shared, [Finished(job, Complete(), leak)])
    assert states(conn) == {job.id: "succeeded"}
    with shared.pool.connection() as pooled:
        row = pooled.execute("SELECT current_setting('search_path')").fetchone()
    assert row is not None
    assert row[0] != "nowhere"


def test_backends_that_die_cost_no_attempt_and_lose_nothing(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    jobs = claimed(30)
    shared.finisher.thread.start()
    for number, job in enumerate(jobs):
        if number % 10 == 5:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'rw:%:work'"
            )
        shared.finisher.submit(complete(job))
    wait_until(lambda: not shared.finisher.backlog, 30, "everything acknowledged")
    assert set(states(conn).values()) == {"succeeded"}
    assert effects(conn) == sorted(job.id for job in jobs)


def test_settings_of_one_jobs_effects_do_not_reach_its_neighbours(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    """SET LOCAL lasts until COMMIT: a tenant's search_path must not send others' rows there."""
    tenant, other, also_other = claimed(3)
    conn.execute("CREATE SCHEMA tenant CREATE TABLE effects (job bigint)")
    own = [("SET LOCAL search_path = tenant, public", None), (EFFECT, (tenant.id,))]
    two = [(EFFECT, (also_other.id,)), (EFFECT, (also_other.id,))]
    finish(
        shared,
        [Finished(tenant, Complete(), own), complete(other), Finished(also_other, Complete(), two)],
    )
    assert set(states(conn).values()) == {"succeeded"}
    assert effects(conn) == [other.id, also_other.id, also_other.id]
    assert conn.execute("SELECT job FROM tenant.effects").fetchall() == [(tenant.id,)]


def test_a_row_that_stays_locked_keeps_nobody_else_waiting(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, dsn: str
) -> None:
    """An operator's open transaction on one row must not stop the process's other completions."""
    locked, *others = claimed(4)
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", (locked.id,))
        shared.finisher.submit(complete(locked))
        for job in others:
            shared.finisher.submit(Finished(job, RetryLater(60, "later", "error")))
        shared.finisher.thread.start()
        wait_until(lambda: shared.finisher.backlog == 1, 20, "the others written")
        assert not shared.finisher.troubled
    wait_until(lambda: not shared.finisher.backlog, 20, "the locked one completed")
    assert states(conn)[locked.id] == "succeeded"


def test_a_write_the_server_refuses_is_given_up_and_holds_nobody_up(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, log: list[Event]
) -> None:
    good, refused = claimed(2)
    conn.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF new.id = {refused.id} THEN RAISE EXCEPTION 'refused' USING errcode = '23514'; END IF;"
        " RETURN new; END $$"
    )
    conn.execute("CREATE TRIGGER no BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION no()")
    finish(shared, [complete(refused), complete(good)])
    assert states(conn) == {good.id: "succeeded", refused.id: "running"}
    assert not shared.finisher.troubled
    (given_up,) = [event for event in log if event.name == "job_abandoned"]
    assert given_up.fields["reason"] == "refused"
    assert len(shared.book) == 0
