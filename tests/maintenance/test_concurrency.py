"""Maintenance beside others on the same rows: nothing is taken twice, nobody waits for a lock."""

from __future__ import annotations

import threading

import psycopg

from reliable_worker.jobs.retry import Backoff
from reliable_worker.postgres import upkeep
from reliable_worker.postgres.database import connect
from tests.fixtures.configuration import make_settings
from tests.maintenance.rows import BOOT, add, add_running, get

ALWAYS = float("-inf")
JOBS = 200


def test_two_passes_at_once_take_each_job_once(conn: psycopg.Connection, dsn: str) -> None:
    for number in range(JOBS):
        add_running(conn, f"{BOOT}.{number % 4}", lease_seconds=-1)
    settings = make_settings(dsn)
    start = threading.Barrier(4)
    taken: list[list[int]] = []

    def work() -> None:
        with connect(settings, lane="test") as mine:
            start.wait(timeout=20)
            ids = []
            while batch := upkeep.expire(mine, ALWAYS, 0.0, 7):
                ids += [one.job_id for one in batch]
                ids += [one.job_id for one in upkeep.obituary_refund(mine, BOOT, [], ALWAYS)]
            taken.append(ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    everything = sorted(job for ids in taken for job in ids)
    assert len(taken) == 4
    assert everything == sorted(set(everything))
    assert len(everything) == JOBS
    fences = conn.execute("SELECT DISTINCT fence, state FROM jobs").fetchall()
    assert fences == [(2, "ready")]


def test_a_locked_row_is_skipped_and_its_finish_stands(conn: psycopg.Connection, dsn: str) -> None:
    """The row lock of a finishing transaction is the lease, even past lease_until."""
    finishing = add_running(conn, lease_seconds=-1)
    lapsed = add_running(conn, lease_seconds=-1)
    settings = make_settings(dsn)
    with psycopg.connect(dsn) as holder, connect(settings, lane="test") as ours:
        holder.execute(
            "UPDATE jobs SET state = 'succeeded', completed_at = now(), ended_at = now(),"
            " lease_owner = NULL, lease_until = NULL WHERE id = %s",
            (finishing,),
        )
        assert [one.job_id for one in upkeep.expire(ours, ALWAYS, 0.0, 100)] == [lapsed]
        assert upkeep.obituary_crash(ours, BOOT, [(finishing, 1)], 3, "x") == []
        backoff = Backoff(1.0, 64.0, 0.1)
        assert upkeep.obituary_timeout(ours, BOOT, [(finishing, 1)], "x", backoff) == []
        assert upkeep.obituary_refund(ours, BOOT, [], ALWAYS) == []
        assert upkeep.obituary_left(ours, BOOT, ALWAYS) == 1
        holder.commit()
        assert upkeep.expire(ours, ALWAYS, 0.0, 100) == []
        assert upkeep.obituary_left(ours, BOOT, ALWAYS) == 0
    row = get(conn, finishing)
    assert (row["state"], row["fence"]) == ("succeeded", 1)


def test_no_lease_renewed_under_the_statement_is_taken(conn: psycopg.Connection, dsn: str) -> None:
    """Renewals run into expiry from the other end; a trigger sees every row that changes hands."""
    conn.execute(
        "CREATE FUNCTION live() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'a live lease was taken: job %', OLD.id; END $$"
    )
    conn.execute(
        "CREATE TRIGGER live BEFORE UPDATE ON jobs FOR EACH ROW WHEN (OLD.state = 'running'"
        " AND NEW.state <> 'running' AND OLD.lease_until > clock_timestamp())"
        " EXECUTE FUNCTION live()"
    )
    jobs = [add_running(conn, lease_seconds=-1) for _ in range(JOBS)]
    start = threading.Barrier(2)
    renewed: list[int] = []

    def renew() -> None:
        with psycopg.connect(dsn, autocommit=True) as holder:
            start.wait(timeout=20)
            for job in reversed(jobs):
                count = holder.execute(
                    "UPDATE jobs SET lease_until = clock_timestamp() + interval '1 hour'"
                    " WHERE id = %s AND fence = 1 AND state = 'running'",
                    (job,),
                ).rowcount
                renewed.extend([job] * count)

    thread = threading.Thread(target=renew)
    thread.start()
    taken: list[int] = []
    with connect(make_settings(dsn), lane="test") as ours:
        start.wait(timeout=20)
        while thread.is_alive() or len(taken) + len(renewed) < JOBS:
            taken += [one.job_id for one in upkeep.expire(ours, ALWAYS, 0.0, 3)]
    thread.join(timeout=60)
    assert sorted(taken + renewed) == jobs


def test_a_sweep_skips_a_row_somebody_is_repairing(conn: psycopg.Connection, dsn: str) -> None:
    job = add(conn, attempts=5)
    with psycopg.connect(dsn) as operator, connect(make_settings(dsn), lane="test") as ours:
        operator.execute("UPDATE jobs SET attempts = 0 WHERE id = %s", (job,))
        assert upkeep.sweep(ours, 100) == 0
        operator.commit()
        assert upkeep.sweep(ours, 100) == 0
    assert get(conn, job)["state"] == "ready"
