"""Operators' changes: cancel, discard, reprioritise, retry, pauses; audited, with dry runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from reliable_worker.postgres import operators, store
from reliable_worker.postgres.operators import Filters
from reliable_worker.postgres.store import Combination
from tests.cli.conftest import Cli
from tests.fixtures.waiting import wait_until

Connection = psycopg.Connection[Any]
INSERT = "INSERT INTO jobs ({}) VALUES ({}) RETURNING id"
OWNER = f"{'b' * 32}.0"


def put(conn: Connection, key: str, **columns: object) -> int:
    """A row with these columns; its id."""
    given = {"idempotency_key": key, "payload": "{}", **columns}
    insert = INSERT.format(", ".join(given), ", ".join(["%s"] * len(given)))
    row = conn.execute(insert.encode(), list(given.values())).fetchone()
    assert row is not None
    return int(row[0])


def running(conn: Connection, key: str, **columns: object) -> int:
    lease = {"lease_owner": OWNER, "lease_until": "9999-01-01", "claimed_at": "2020-01-01"}
    return put(conn, key, state="running", fence=3, attempts=1, **lease, **columns)


def dead(conn: Connection, key: str, **columns: object) -> int:
    return put(conn, key, state="dead", ended_at="2020-01-01", **columns)


def states(conn: Connection) -> dict[int, str]:
    return dict(conn.execute("SELECT id, state FROM jobs").fetchall())


def audit(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(
        "SELECT action, queue, job_ids, details FROM operator_actions ORDER BY id"
    ).fetchall()


@pytest.mark.quick
def test_cancel_takes_ready_and_running_jobs_and_raises_the_fence(
    db: Cli, conn: Connection
) -> None:
    ready, runs, over = put(conn, "a"), running(conn, "b"), dead(conn, "c")
    assert db("jobs", "cancel", str(ready)).out == f"job {ready} cancelled\n"
    assert db("jobs", "cancel", str(runs), "--json").json == [{"id": runs, "state": "cancelled"}]
    rows = conn.execute(
        "SELECT state, fence, lease_owner, ended_at > now() - interval '1 h' FROM jobs"
        " WHERE id <= 2 ORDER BY id"
    ).fetchall()
    assert rows == [("cancelled", 0, None, True), ("cancelled", 4, None, True)]
    refused = db("jobs", "cancel", str(over))
    assert (refused.code, refused.line) == (
        1,
        f"job {over} is dead: only a ready or running job can be cancelled",
    )
    assert audit(conn) == [("cancel", None, [ready], {}), ("cancel", None, [runs], {})]
    (step,) = conn.execute("SELECT attempt, owner, outcome FROM job_attempts").fetchall()
    assert step == (1, OWNER, "cancelled")


def test_discard_buries_what_waits_and_nothing_else(db: Cli, conn: Connection) -> None:
    ready, runs = put(conn, "a"), running(conn, "b")
    assert db("jobs", "discard", str(ready)).code == 0
    row = conn.execute("SELECT state, last_error FROM jobs WHERE id = %s", [ready]).fetchone()
    assert row == ("dead", "discarded by operator")
    refused = db("jobs", "discard", str(runs))
    assert refused.line.endswith("only a ready job can be discarded: cancel it instead")
    assert db("jobs", "discard", "99").line == "there is no job 99"


def test_reprioritise_moves_what_waits(db: Cli, conn: Connection) -> None:
    ids = [str(put(conn, key, queue="mail")) for key in "ab"]
    assert db("jobs", "reprioritise", *ids, "--to", "1").code == 0
    assert db("jobs", "reprioritise", "--queue", "mail", "--to", "12").code == 2
    assert db("jobs", "reprioritise", "--queue", "mail").code == 2
    assert conn.execute("SELECT priority FROM jobs").fetchall() == [(1,), (1,)]
    assert audit(conn)[0] == ("reprioritise", None, [1], {"priority": 1})


def test_filters_choose_and_a_dry_run_changes_nothing(db: Cli, conn: Connection) -> None:
    for n in range(3):
        dead(conn, f"t{n}", kind="mail", last_error=f"Timeout after {n} s")
    dead(conn, "other", kind="mail", last_error="refused")
    words = ("jobs", "retry", "--kind", "mail", "--error", "TIMEOUT")
    dry = db(*words, "--dry-run")
    assert dry.out.splitlines()[-1] == "3 jobs would be retried"
    assert set(states(conn).values()) == {"dead"}
    assert audit(conn) == []
    two = db(*words, "--limit", "2")
    assert two.out == "2 jobs retried; there may be more: repeat, or raise --limit\n"
    assert db(*words, "--json").json == [{"id": 1, "state": "ready"}]
    assert states(conn) == {1: "ready", 2: "ready", 3: "ready", 4: "dead"}
    assert audit(conn)[0] == ("retry", None, [2, 3], {"kind": "mail", "error": "TIMEOUT"})


@pytest.mark.parametrize("words", [("retry",), ("cancel", "1", "--kind", "k"), ("discard",)])
def test_jobs_are_named_one_way(db: Cli, words: tuple[str, ...]) -> None:
    done = db("jobs", *words)
    assert (done.code, "by id, or by filters" in done.line) == (2, True)


def test_a_key_is_found_but_not_audited(db: Cli, conn: Connection) -> None:
    put(conn, "secret-key")
    put(conn, "another")
    assert [job["id"] for job in db("jobs", "list", "--key", "secret-key", "--json").json] == [1]
    assert db("jobs", "cancel", "--key", "secret-key").out == "1 job cancelled\n"
    assert states(conn) == {1: "cancelled", 2: "ready"}
    assert "secret-key" not in str(audit(conn))


def test_ages_are_those_of_enqueueing(db: Cli, conn: Connection) -> None:
    old, new = put(conn, "old", created_at="2020-01-01"), put(conn, "new")

    def ids(*words: str) -> list[int]:
        return [job["id"] for job in db("jobs", "list", "--json", *words).json]

    assert (ids("--older", "1h"), ids("--newer", "1h")) == ([old], [new])
    assert ids("--older", "1h", "--state", "ready") == [old]
    assert ids("--state", "cancelled") == []


def test_a_long_list_is_walked_page_by_page_without_a_gap(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing fits for longer than one look, and where few are in the state."""
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, queue)"
        " SELECT 'k' || n, '{}', CASE WHEN n % 50 = 7 THEN 'rare' ELSE 'common' END"
        " FROM generate_series(1, 1000) AS n"
    )
    expected = [n for n in range(1000, 0, -1) if n % 50 == 7]
    for look_rows, few in ((10, 5), (10_000, 5), (10, 5_000)):
        monkeypatch.setattr(operators, "LOOK_ROWS", look_rows)
        monkeypatch.setattr(operators, "FEW_ROWS", few)
        monkeypatch.setattr(operators, "LOOK_SECONDS", 0.0)
        for state in (None, "ready"):
            found: list[int] = []
            before, pages = None, 0
            while before is not None or not pages:
                page = operators.list_jobs(
                    conn, Filters(queue="rare", state=state), before=before, limit=7
                )
                found += [job.id for job in page.jobs]
                before, pages = page.before, pages + 1
            assert found == expected
            assert pages > 2


def test_show_tells_what_became_of_each_attempt(db: Cli, conn: Connection) -> None:
    job = put(conn, "a")
    places = [(Combination("default", "message", 5), 0)]

    def claim() -> Any:
        (claimed,) = store.claim(conn, places, [OWNER], lease_seconds=30, margin_seconds=3).jobs
        return claimed.lease

    assert store.retry(conn, claim(), 0.0, "ValueError: bad")
    assert store.refund(conn, claim(), 0.0)
    assert store.snooze(conn, claim(), 0.0)
    assert store.release(conn, [claim()]) == {job}
    assert store.bury(conn, claim(), "KeyError: worse")
    assert db("jobs", "retry", str(job)).code == 0
    assert store.complete(conn, claim())
    steps = db("jobs", "show", str(job), "--json").json["timeline"]
    assert [(s["outcome"], s["attempt"], s["error"]) for s in steps] == [
        ("failed", 1, "ValueError: bad"),
        ("refunded", 2, None),
        ("snoozed", 2, None),
        ("released", 2, None),
        ("dead", 2, "KeyError: worse"),
        ("retry", None, None),
        ("succeeded", 1, None),
    ]
    assert {s["owner"] for s in steps if s["what"] == "attempt"} == {OWNER}
    assert all(0 <= s["seconds"] < 60 for s in steps if s["what"] == "attempt")
    assert "failed" in db("jobs", "show", str(job)).out


@pytest.mark.quick
def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(db: Cli, conn: Connection) -> None:
    put(conn, "a", queue="mail")
    put(conn, "b", queue="mail", crashes=1)
    place = [(Combination("mail", "message", 5), 0)]

    def claimed() -> int:
        with conn.transaction(force_rollback=True):
            return sum(
                len(
                    store.claim(
                        conn, place, [OWNER], lease_seconds=30, margin_seconds=3, suspects=alone
                    ).jobs
                )
                for alone in (False, True)
            )

    assert claimed() == 2
    assert db("queues", "pause", "mail").out == "queue mail paused until resumed\n"
    assert claimed() == 0
    listed = {q["queue"]: q for q in db("queues", "list", "--json").json}["mail"]
    assert (listed["paused"], listed["paused_until"], listed["ready"]) == (True, None, 2)
    assert db("queues", "resume", "mail").out == "queue mail resumed\n"
    assert db("queues", "resume", "mail").out == "queue mail was not paused\n"
    assert claimed() == 2
    assert db("queues", "pause", "mail", "--for", "1h", "--json").json["paused_until"][-1] == "Z"
    assert claimed() == 0
    conn.execute("UPDATE queues SET paused_until = now() - interval '1 s'")
    assert claimed() == 2
    assert [(row[0], row[1]) for row in audit(conn)] == [
        ("pause", "mail"), ("resume", "mail"), ("pause", "mail")]  # fmt: skip
    for word in ("0s", "400d", "soon"):
        assert db("queues", "pause", "mail", "--for", word).code == 2


def test_a_running_job_that_is_cancelled_stops_and_commits_nothing(
    db: Cli, conn: Connection, fleet: Callable[..., Any]
) -> None:
    """Its holder finds the lease lost at the next renewal, long before the handler's own end."""
    job = put(conn, "a", payload='{"message": "m", "sleep_ms": 15000}')
    one = fleet(lease_seconds=3)
    wait_until(lambda: states(conn)[job] == "running", 30, "the job runs")
    assert db("jobs", "cancel", str(job)).code == 0
    lost = one.wait_event("lease_lost", 10, job_id=job)
    assert lost["job_id"] == job
    one.terminate()
    assert one.wait(20) == 0
    assert states(conn) == {job: "cancelled"}
    assert conn.execute("SELECT count(*) FROM processed_messages").fetchone() == (0,)


def test_a_drain_does_not_wait_for_a_paused_queue(
    db: Cli, conn: Connection, fleet: Callable[..., Any]
) -> None:
    """Nor does it run a job of it, suspects included; everything else runs."""
    message = '{"message": "m"}'
    paused = [put(conn, "a", queue="mail", payload=message)]
    paused.append(put(conn, "b", queue="mail", payload=message, crashes=1))
    free = put(conn, "c", payload=message)
    db("queues", "pause", "mail")
    assert fleet("--drain").wait(60) == 0
    assert states(conn) == {**dict.fromkeys(paused, "ready"), free: "succeeded"}
    db("queues", "resume", "mail")
    assert fleet("--drain").wait(60) == 0
    assert set(states(conn).values()) == {"succeeded"}
