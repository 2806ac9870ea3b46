"""Jobs claimed ahead of the free slots run or are given back; none waits beside an idle slot."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from reliable_worker.enqueue.app import App
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.worker.places import Places
from reliable_worker.worker.presence import Presence
from reliable_worker.worker.producer import Producer
from reliable_worker.worker.shared import Shared
from reliable_worker.worker.slots import Slots
from tests.fixtures.waiting import wait_until

Claim = Callable[..., list[ClaimedJob]]


def test_a_job_claimed_ahead_while_the_last_slot_ended_runs_all_the_same(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    handlers = App().handlers
    slots = Slots(shared, 1, handlers, on_free=lambda: None)
    places = Places((), handlers, suspects=False)
    presence = Presence(shared, "worker", 1, handlers)
    producer = Producer(shared, slots, places, presence, suspects=False, once=False)
    slots.prefetch(job)  # as a claim does whose slot ended while it was under way
    slots.start()
    shared.finisher.thread.start()
    producer.thread.start()
    try:
        wait_until(lambda: not slots.waiting and not len(shared.book), 10, "the job's end")
    finally:
        producer.stop()
        producer.thread.join(10)
        slots.close()
    assert conn.execute("SELECT attempts, last_error FROM jobs").fetchall() == [
        (1, "message is required")
    ]
