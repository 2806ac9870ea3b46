"""What happened, said once: code emits events, logs and metrics subscribe.

Floor 0, beside every stage of a job's way; imports nothing of the package. The stages know neither
log lines nor metrics: `emit` hands the event to the few subscribers of this process, at once and in
the emitter's own thread. A subscriber that fails is the observer's trouble and never the job's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    `at` is the wall clock in seconds since the epoch: it stamps log lines and decides nothing.
    """

    name: str
    level: str
    at: float
    fields: Mapping[str, object]


Subscriber = Callable[[Event], None]

# Replaced as a whole, never changed in place: emit iterates without a lock, in any thread.
_subscribers: tuple[Subscriber, ...] = ()


def emit(event: str, level: str = "info", /, **fields: object) -> None:
    """Tell every subscriber. Never raises, never blocks; levels: debug info warning error."""
    subscribers = _subscribers
    if not subscribers:
        return
    happened = Event(event, level, time.time(), fields)
    for subscriber in subscribers:
        try:
            subscriber(happened)
        except Exception:
            # A job must not fail, nor a lease be lost, because its log line or metric did.
            continue


def subscribe(subscriber: Subscriber) -> None:
    """Add a subscriber, once. It runs in the emitting thread: it must be quick and never wait."""
    global _subscribers
    if subscriber not in _subscribers:
        _subscribers = (*_subscribers, subscriber)


def clear() -> None:
    """Forget every subscriber: a forked child starts from nothing, its parent's are not its own."""
    global _subscribers
    _subscribers = ()
