"""`job.transaction()` tears nothing apart, whatever the block does (D5)."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]


def test_a_swallowed_sql_error_commits_nothing_and_fails_the_job(
    worker: Worker, truth: Connection
) -> None:
    (job,) = add_jobs(truth, "swallow", ["{}"], max_attempts=1)
    fleet = worker()
    row = looking.wait_state(truth, job, "dead", 20)
    assert row.error is not None
    assert "swallowed" in row.error
    assert looking.effects(truth, job) == 0
    assert not fleet.find("job_succeeded")
    assert_sound(truth)


ENDS = ["COMMIT", "ROLLBACK", "ROLLBACK; BEGIN", "COMMIT; BEGIN", "COMMIT AND CHAIN", "ABORT"]


@pytest.mark.parametrize("statement", ENDS)
def test_ending_the_transaction_from_inside_parts_no_effect_from_its_completion(
    worker: Worker, truth: Connection, statement: str
) -> None:
    """A COMMIT inside commits completion and effect together; a ROLLBACK undoes both."""
    (job,) = add_jobs(truth, "statement", [json.dumps({"sql": statement})], max_attempts=1)
    fleet = worker()
    expected = "succeeded" if "COMMIT" in statement else "dead"
    looking.wait_state(truth, job, expected, 20)
    assert looking.effects(truth, job) == (1 if expected == "succeeded" else 0)
    assert looking.starts(truth, job) == 1
    name = "error_after_commit" if expected == "succeeded" else "job_failed"
    assert "ended from inside the block" in fleet.wait_event(name, 5, job_id=job)["error"]
    assert_sound(truth)
    # the worker lives on with clean sessions
    (next_job,) = add_jobs(truth, "work", ['{"how": "transaction"}'])
    looking.wait_state(truth, next_job, "succeeded", 20)


def test_an_effect_that_would_end_the_transaction_is_refused(
    worker: Worker, truth: Connection
) -> None:
    jobs = [
        add_jobs(
            truth,
            "statement",
            [json.dumps({"sql": end, "how": "effect"})],
            prefix=f"end-{number}",
            max_attempts=1,
        )[0]
        for number, end in enumerate((*ENDS, "/* */ commit", "-- why\nEND"))
    ]
    add_jobs(truth, "work", ["{}"] * 10)
    worker(workers=4)
    looking.wait_states(truth, {"dead": len(jobs), "succeeded": 10}, 20)
    for job in jobs:
        assert looking.effects(truth, job) == 0
        assert looking.starts(truth, job) == 1
        assert looking.row(truth, job).error
    assert_sound(truth)


def test_a_second_block_is_refused(worker: Worker, truth: Connection) -> None:
    (job,) = add_jobs(truth, "second", ["{}"])
    worker()
    looking.wait_state(truth, job, "succeeded", 20)
    refused = looking.scalar(truth, "SELECT count(*) FROM hist WHERE event = 'refused'")
    assert refused == 1
    assert looking.effects(truth, job) == 1
    assert_sound(truth)


def test_an_exception_after_the_block_is_no_failure(worker: Worker, truth: Connection) -> None:
    (job,) = add_jobs(truth, "after", ["{}"])
    fleet = worker()
    event = fleet.wait_event("error_after_commit", 20, job_id=job)
    assert "after the commit" in event["error"]
    row = looking.wait_state(truth, job, "succeeded", 20)
    assert (row.attempts, row.error) == (1, None)
    assert not fleet.find("job_failed")
    assert_sound(truth)


def test_an_exception_inside_the_block_rolls_back_and_fails_the_attempt(
    worker: Worker, truth: Connection
) -> None:
    (job,) = add_jobs(truth, "inside", ['{"times": 1}'])
    fleet = worker(retry_base_seconds=0.2)
    row = looking.wait_state(truth, job, "succeeded", 20)
    assert row.attempts == 2
    assert len(fleet.find("job_failed", job_id=job)) == 1
    assert looking.effects(truth, job) == 1
    assert_sound(truth)


def test_a_rollback_with_the_lease_past_writes_nothing_of_that_run(
    worker: Worker, truth: Connection
) -> None:
    """The block sleeps past the lease without a word to the database; the server ends its
    session, the lease runs out unrenewed, and another run does the work."""
    payload = json.dumps({"times": 1, "seconds": 3.5})
    (job,) = add_jobs(truth, "inside", [payload], max_attempts=3)
    fleet = worker(lease_seconds=2, workers=2)
    pid = looking.wait_start(truth, job)
    looking.wait_state(truth, job, "succeeded", 30)
    wait_until(lambda: looking.ends(truth, job) == 2, 20, "the first run ended")
    assert not fleet.find("job_failed", job_id=job)
    assert looking.effects(truth, job) == 1
    # the first run's process neither failed nor retried it: it was expired or released
    first_end = truth.execute(
        "SELECT new_state, new_error FROM audit WHERE id = %s AND old_state = 'running'"
        " AND new_state <> 'running' ORDER BY seq LIMIT 1",
        (job,),
    ).fetchone()
    assert first_end == ("ready", None)
    # it slept through its cancellation, so its thread overlaps the next run; its effect does not
    assert_sound(truth, killed=[pid])


def test_a_failing_effect_fails_its_own_job_only(worker: Worker, truth: Connection) -> None:
    payload = json.dumps({"sql": "SELECT 1/0", "how": "effect"})
    (bad,) = add_jobs(truth, "statement", [payload], max_attempts=1)
    add_jobs(truth, "work", ["{}"] * 20)
    worker(workers=4)
    row = looking.wait_state(truth, bad, "dead", 20)
    assert row.error is not None
    assert "22012" in row.error
    looking.wait_states(truth, {"succeeded": 20, "dead": 1}, 20)
    assert looking.effects(truth, bad) == 0
    assert_sound(truth)


BAD = {
    "not an object": "[1, 2]",
    "a wrong type": '{"number": "one"}',
    "a missing field": "{}",
    "nesting": '{"number": ' + "[" * 3000 + "]" * 3000 + "}",
    "digits": '{"number": ' + "9" * 5000 + "}",
}


def test_an_undecodable_row_fails_alone(worker: Worker, truth: Connection) -> None:
    """Claimed together with good ones: each bad one fails by itself, in its own guard."""
    good = add_jobs(truth, "typed", ['{"number": 1}'] * 5, prefix="first")
    bad = add_jobs(truth, "typed", list(BAD.values()), max_attempts=1)
    good += add_jobs(truth, "typed", ['{"number": 1}'] * 5, prefix="last")
    fleet = worker(workers=4, prefetch=8)
    looking.wait_states(truth, {"succeeded": len(good), "dead": len(bad)}, 30)
    for job in bad:
        row = looking.row(truth, job)
        assert row.error is not None
        assert row.error.startswith("decode payload: ")
        assert looking.starts(truth, job) == 0
        assert fleet.find("job_failed", job_id=job, reason="decode")
    assert not fleet.find("child_restarted")
    assert_sound(truth)
