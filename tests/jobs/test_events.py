"""Events reach every subscriber in order, and a subscriber's failure never reaches the emitter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reliable_worker.jobs import events
from reliable_worker.jobs.events import Event


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Leave the subscribers of other tests as they were."""
    before = events._subscribers
    events.clear()
    yield
    events._subscribers = before


def test_every_subscriber_hears_everything_in_order() -> None:
    heard: list[tuple[str, Event]] = []
    events.subscribe(lambda event: heard.append(("first", event)))
    events.subscribe(lambda event: heard.append(("second", event)))
    events.emit("job_started", "debug", job_id=7)
    events.emit("job_succeeded", job_id=7)
    assert [(who, event.name) for who, event in heard] == [
        ("first", "job_started"),
        ("second", "job_started"),
        ("first", "job_succeeded"),
        ("second", "job_succeeded"),
    ]
    started = heard[0][1]
    assert (started.level, started.fields) == ("debug", {"job_id": 7})
    assert heard[2][1].level == "info"
    assert started.at <= heard[2][1].at


@pytest.mark.parametrize("error", [ValueError("x"), RecursionError(), MemoryError(), OSError(28)])
def test_a_failing_subscriber_reaches_neither_the_emitter_nor_the_next(error: Exception) -> None:
    heard: list[Event] = []

    def fail(event: Event) -> None:
        raise error

    events.subscribe(fail)
    events.subscribe(heard.append)
    events.emit("claim_failed", "error", error="x")
    assert [event.name for event in heard] == ["claim_failed"]


def test_a_field_may_have_any_name_but_level() -> None:
    heard: list[Event] = []
    events.subscribe(heard.append)
    events.emit("log", event="the handler's own", at=3)
    assert heard[0].fields == {"event": "the handler's own", "at": 3}


def test_subscribing_while_emitting_is_for_the_next_event() -> None:
    heard: list[str] = []

    def late(event: Event) -> None:
        heard.append(f"late {event.name}")

    def early(event: Event) -> None:
        heard.append(f"early {event.name}")
        if event.name == "a":
            events.subscribe(late)

    events.subscribe(early)
    events.emit("a")
    events.emit("b")
    assert heard == ["early a", "early b", "late b"]


def test_clear_forgets_everyone() -> None:
    heard: list[Event] = []
    events.subscribe(heard.append)
    events.clear()
    events.emit("a")
    assert heard == []
