"""jobs explain: for each reason a job can have to wait, its situation, first line and remedy."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Cli
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import BOOT, add, add_running

Connection = psycopg.Connection[Any]


def worker(
    conn: Connection, kinds: tuple[str, ...] = ("message",), queues: tuple[str, ...] = ()
) -> None:
    """A live worker process that says it knows these kinds."""
    conn.execute(
        "INSERT INTO worker_processes (boot, host, pid, role, slots, kinds, queues)"
        " VALUES (%s, 'web-1', 4242, 'worker', 4, %s, %s)",
        [BOOT, list(kinds), list(queues)],
    )


def answers(db: Cli, job: int) -> list[tuple[str, str, str]]:
    """(check, text, remedy) of each answer; the text for people says the same first."""
    found = db("jobs", "explain", str(job), "--json").json["answers"]
    lines = db("jobs", "explain", str(job)).out.splitlines()
    # the durations of the two calls differ
    assert lines[0].split(": ", 1)[1][:12] == found[0]["text"][:12]
    assert lines[1] == f"  → {found[0]['remedy']}"
    return [(each["check"], each["text"], each["remedy"]) for each in found]


@pytest.mark.quick
def test_a_paused_queue_is_the_first_reason(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add(conn, queue="mail", available_at="9000-01-01 00:00+00")
    db("queues", "pause", "mail")
    (first, text, remedy), (second, *_) = answers(db, job)
    assert (first, second) == ("paused", "scheduled")
    assert text.startswith("queue 'mail' is paused until it is resumed, since 2")
    assert remedy == "reliable-worker queues resume mail"
    db("queues", "pause", "mail", "--for", "1h")
    assert "paused until 2" in answers(db, job)[0][1]
    due = add(conn, queue="mail")
    assert "a free slot takes it when its queue is resumed" in answers(db, due)[1][1]


def test_scheduled_for_later(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add(conn, available_at="9000-01-01 00:00+00")
    ((check, text, remedy),) = answers(db, job)
    assert check == "scheduled"
    assert text.startswith("not due before 9000-01-01 00:00:00Z, in ")
    assert text.endswith("it was enqueued for later")
    assert remedy.startswith("wait")
    snoozed = add(conn, available_at="9000-01-01 00:00+00", snoozes=2)
    assert answers(db, snoozed)[0][1].endswith("its handler snoozed it")


def test_attempts_used_up(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add(conn, attempts=5)
    ((check, text, remedy),) = answers(db, job)
    assert (check, "used up (5 of 5)" in text) == ("exhausted", True)
    assert f"jobs retry {job}" in remedy


def test_backing_off_after_a_failure(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add(conn, attempts=2, last_error="ValueError: no", available_at="9000-01-01 00:00+00")
    ((check, text, remedy),) = answers(db, job)
    assert check == "backoff"
    assert text.startswith("attempt 2 of 5 did not succeed; the next is due at 9000-01-01")
    assert text.endswith("ValueError: no")
    assert "mend the cause" in remedy


def test_nobody_who_could_run_it(db: Cli, conn: Connection) -> None:
    job = add(conn, kind="report", queue="slow")
    ((check, text, remedy),) = answers(db, job)
    assert check == "no worker"
    assert text == "no worker is alive, so nobody runs kind 'report' in queue 'slow'"
    assert remedy == "start one: systemctl start reliable-worker"
    worker(conn, kinds=("mail", "message"))
    ((_, text, remedy),) = answers(db, job)
    assert text == (
        "no live worker knows kind 'report': alive are web-1/4242, and they know 'mail', 'message'"
    )
    assert "deploy an application with a handler for 'report'" in remedy
    conn.execute("UPDATE worker_processes SET kinds = '{report}', queues = '{fast}'")
    ((_, text, remedy),) = answers(db, job)
    assert "serves queue 'slow'" in text
    assert (text.endswith("serve 'fast'"), remedy) == (True, "start one with --queue slow")
    conn.execute("UPDATE worker_processes SET seen_at = now() - interval '1 hour'")
    assert answers(db, job)[0][1].startswith("no worker is alive")


def test_in_quarantine(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add(conn, crashes=2, last_error="killed by signal 9 (SIGKILL)")
    ((check, text, remedy),) = answers(db, job)
    assert check == "quarantine"
    assert text.startswith("its process died 2 times while running it, so it runs alone")
    assert text.endswith("killed by signal 9 (SIGKILL)")
    assert f"jobs cancel {job}" in remedy


@pytest.mark.quick
def test_behind_others_and_next(db: Cli, conn: Connection) -> None:
    """Jobs before it: of its place those due earlier, and places that come first and are served."""
    worker(conn, kinds=("message", "urgent"))
    for n in range(3):
        add(conn, available_at=f"2020-01-01 00:00:0{n}+00")
        add(conn, kind="urgent", priority=1)
        add(conn, kind="strange", priority=0)
        add(conn, priority=7)
    job = add(conn)
    ((check, text, remedy),) = answers(db, job)
    assert (check, text) == ("behind", "behind 6 jobs; none like it has ended in the last minute")
    assert f"jobs reprioritise {job} --to 0" in remedy
    conn.execute("DELETE FROM jobs WHERE id <> %s", [job])
    ((check, text, remedy),) = answers(db, job)
    assert (check, text) == ("next", "nothing is before it: a free slot takes it within 0.5 s")
    assert "raise WORKERS" in remedy


def test_the_time_it_takes_follows_from_the_present_pace(db: Cli, conn: Connection) -> None:
    worker(conn)
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, state, completed_at, ended_at)"
        " SELECT 'd' || n, '{}', 'succeeded', now(), now() FROM generate_series(1, 120) AS n"
    )
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload) SELECT n, '{}' FROM generate_series(1, 600) n"
    )
    job = add(conn)
    ((_, text, _),) = answers(db, job)
    assert text == "behind 600 jobs; at the present pace (2 a second) that takes about 5.0 min"


def test_running_where_and_since_when(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add_running(conn, lease_seconds=20.5, claimed_seconds_ago=600)
    ((check, text, remedy),) = answers(db, job)
    assert check == "running"
    assert text.startswith("running on web-1, pid 4242 (worker), slot 0 for 10.0 min, attempt 1")
    assert "lease for another 20." in text
    assert "last heartbeat 9." in text
    assert remedy == f"wait; or stop it: reliable-worker jobs cancel {job}"
    stranger = add_running(conn, owner=f"{'c' * 32}.3")
    assert f"running by {'c' * 32}.3, whose process has not said" in answers(db, stranger)[0][1]


def test_a_lease_that_has_run_out(db: Cli, conn: Connection) -> None:
    job = add_running(conn, lease_seconds=-5, attempts=3)
    ((check, text, remedy),) = answers(db, job)
    assert check == "expired"
    assert text.startswith("its lease ran out 5.")
    assert text.endswith("it is claimable within 3.0 s")
    assert "no supervisor is alive" in remedy


def test_dead_cancelled_succeeded(db: Cli, conn: Connection) -> None:
    job = add(conn, state="dead", ended_at="2020-01-01Z", attempts=5, last_error="KeyError: x")
    ((check, text, remedy),) = answers(db, job)
    assert check == "dead"
    assert text == "dead since 2020-01-01 00:00:00Z after 5 of 5 attempts: KeyError: x"
    assert f"jobs retry {job}" in remedy
    conn.execute("UPDATE jobs SET crashes = 3, last_error = 'exit code 9' WHERE id = %s", [job])
    assert answers(db, job)[0][1].endswith("died 3 times while running it: exit code 9")
    for verb, check in (("discard", "dead"), ("cancel", "cancelled")):
        job = add(conn)
        db("jobs", verb, str(job))
        ((found, text, _),) = answers(db, job)
        assert found == check
        assert f"@{socket.gethostname()} at 2" in text
    job = add(conn, state="succeeded", completed_at="2020-01-01Z", ended_at="2020-01-01Z")
    assert answers(db, job)[0][:2] == ("succeeded", "succeeded at 2020-01-01 00:00:00Z")


def test_blocked_by_a_lock_and_by_whom(db: Cli, conn: Connection, dsn: str) -> None:
    worker(conn)
    ready, runs = add(conn), add_running(conn)
    with psycopg.connect(dsn, application_name="report") as other:
        other.execute("SELECT 1 FROM jobs FOR UPDATE")
        pid = other.info.backend_pid
        found = [each for job in (ready, runs) for each in answers(db, job) if each[0] == "locked"]
        who = f"postgres (backend {pid}, report, idle in transaction)"
        said = [text.partition(", begun")[0] for _, text, _ in found]
        assert said == [f"its row is locked by a transaction of {who}"] * 2
        assert {remedy for _, _, remedy in found} == {
            f"end that transaction: SELECT pg_terminate_backend({pid})"
        }
    with psycopg.connect(dsn, application_name=f"rw:{BOOT}:work") as finishing:
        finishing.execute("SELECT 1 FROM jobs FOR UPDATE")
        assert [each[0] for each in answers(db, runs)] == ["running"]


def test_a_key_conflict(db: Cli, conn: Connection) -> None:
    worker(conn)
    job = add(conn, idempotency_key="k", kind="message", payload='{"a": 1}')

    def first(*words: str) -> Any:
        return db("jobs", "explain", "--key", "k", *words, "--json").json["answers"][0]

    assert first()["check"] == first("--kind", "message", "--payload", '{"a": 1.0}')["check"]
    assert first()["check"] == "next"
    for words, what in ((("--kind", "mail"), "kind"), (("--payload", "{}"), "payload")):
        answer = first(*words)
        assert answer["check"] == "key"
        assert answer["text"] == (
            f"key conflict: the key is that of job {job}, of kind 'message'; one of another"
            f" {what} under it is refused"
        )
        assert answer["remedy"].startswith("enqueue under a key of its own")


def test_what_cannot_be_explained(db: Cli) -> None:
    missing = db("jobs", "explain", "99")
    assert missing.code == 1
    assert missing.line.startswith("there is no job 99: its time to keep is over, or it was never")
    assert db("jobs", "explain", "--key", "k").line.startswith("no job has this key")
    for words in ((), ("1", "--key", "k")):
        assert db("jobs", "explain", *words).code == 2


def test_a_job_of_a_real_fleet(db: Cli, conn: Connection, fleet: Callable[..., Any]) -> None:
    """Host and pid are those of the process that runs it."""
    job = add(conn, payload='{"message": "m", "sleep_ms": 14000}')
    one = fleet()

    def text() -> str:
        found: str = db("jobs", "explain", str(job), "--json").json["answers"][0]["text"]
        return found if found.startswith("running on") else ""

    words = wait_until(text, 30, "the job runs and its process has said so")
    pid = int(words.partition("pid ")[2].split()[0])
    assert words.startswith(f"running on {socket.gethostname()}, pid ")
    assert pid in one.children()
    assert pid != os.getpid()
