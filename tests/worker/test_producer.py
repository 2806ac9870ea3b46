"""A claim that cannot go through says so, however politely the server refuses it."""

from __future__ import annotations

import psycopg

from reliable_worker.enqueue.app import App
from reliable_worker.jobs.events import Event
from reliable_worker.worker.places import Places
from reliable_worker.worker.presence import Presence
from reliable_worker.worker.producer import Producer
from reliable_worker.worker.shared import Shared
from reliable_worker.worker.slots import Slots
from tests.fixtures.waiting import wait_until


def test_a_locked_table_is_reported_as_a_failed_claim(
    shared: Shared, conn: psycopg.Connection, dsn: str, log: list[Event]
) -> None:
    handlers = App().handlers
    slots = Slots(shared, 1, handlers, on_free=lambda: None)
    places = Places((), handlers, suspects=False)
    presence = Presence(shared, "worker", 1, handlers)
    producer = Producer(shared, slots, places, presence, suspects=False, once=False)
    with psycopg.connect(dsn) as migration:
        migration.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        producer.thread.start()
        try:
            wait_until(lambda: any(event.name == "claim_failed" for event in log), 20, "a word")
        finally:
            producer.stop()
    producer.thread.join(10)
