"""What a handler did to its payload does not show it in last_error or the logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

import reliable_worker as rw
from reliable_worker.enqueue.app import App
from reliable_worker.jobs.events import Event
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.worker.shared import Shared
from reliable_worker.worker.slots import Slots
from tests.fixtures.waiting import wait_until

Claim = Callable[..., list[ClaimedJob]]

CANARY = "4111-1111-1111"


@dataclass(slots=True)
class Card:
    number: str


def popped(job: rw.Job[dict[str, str]]) -> None:
    raise ValueError(f"no such card: {job.payload.pop('number')} of {job.key}")


def slotted(job: rw.Job[Card]) -> None:
    raise ValueError(f"no such card: {job.payload.number}")


def in_an_effect(job: rw.Job[dict[str, str]]) -> None:
    job.effect("SELECT fail(%s)", [f"card {job.payload.pop('number')}"])


@pytest.mark.parametrize("handler", [popped, slotted, in_an_effect])
def test_the_payload_as_it_was_stored_is_masked(
    shared: Shared,
    claimed: Claim,
    conn: psycopg.Connection,
    log: list[Event],
    handler: Callable[..., None],
) -> None:
    conn.execute(
        "CREATE FUNCTION fail(words text) RETURNS void LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE '%', words; END $$"
    )
    app = App()
    app.handler("card")(handler)
    (job,) = claimed(1, kind="card", payload=f'{{"number": "{CANARY}"}}')
    slots = Slots(shared, 1, app.handlers, on_free=lambda: None)
    slots.start()
    shared.finisher.thread.start()
    slots.reserve()
    slots.give(0, job)
    try:
        wait_until(lambda: not len(shared.book), 20, "the failure written")
    finally:
        slots.close()
    row = conn.execute("SELECT last_error FROM jobs").fetchone()
    assert row is not None
    assert "card […]" in row[0] or "card: […]" in row[0]
    assert job.key not in row[0]
    assert CANARY not in str([event.fields for event in log])
