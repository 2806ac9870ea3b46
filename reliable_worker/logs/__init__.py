"""The log: every event as one JSON object (or text) a line on stdout, and nothing else there.

Floor 0; imports `jobs`. In the parent, in this order:

    logs.take_stdout()         # at exec, before anything could print
    logs.start("info")         # once the settings are read: events, logging, warnings become lines
    logs.watch(selector)       # in the loop: wakes it while lines wait for room (key.data is logs)
    logs.pump()                # in the loop: writes what goes, never waits
    logs.close(0.5)            # before exit

and in a forked child `logs.start_child()` after `events.clear()`, `logs.close()` before it leaves.
A process that stops reading our stdout costs log lines, counted, and nothing else. Where stdout is
the journal's, each line goes there with its fields.
"""

from __future__ import annotations

import math
import os
import selectors
import sys
import time

from reliable_worker.jobs import events
from reliable_worker.jobs.events import Event
from reliable_worker.logs import capture
from reliable_worker.logs.formats import (
    Shape,
    as_coloured_text,
    as_json,
    as_text,
    for_journal,
)
from reliable_worker.logs.line import ALLOWED, LineFormatter
from reliable_worker.logs.outlet import Outlet
from reliable_worker.logs.outlet import take_stdout as _take_stdout
from reliable_worker.logs.repeats import Repeats
from reliable_worker.logs.sink import Sink

# As in `logging`, which names the same levels.
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_outlet: Outlet | None = None
_sink: Sink | None = None
_threshold = LEVELS["info"]
_formatter = LineFormatter()
_repeats = Repeats()
_watched: selectors.BaseSelector | None = None


def take_stdout() -> None:
    """Keep fd 1 for the log and point it at stderr for everybody else. Once, first thing."""
    global _outlet, _sink
    if _outlet is None:
        _outlet = _take_stdout()
        _sink = Sink(_outlet, _notice)


def start(level: str = "info", shape: str = "json") -> None:
    """Write events, `logging` records, warnings and lost exceptions from now on.

    Levels: debug, info, warning, error; shapes: json, text. KeyError for another level.
    """
    global _threshold, _formatter
    _threshold = LEVELS[level]
    take_stdout()
    _formatter = LineFormatter(_shape(shape))
    events.subscribe(_on_event)
    capture.install(_put, _threshold, _formatter, _admit)


def start_child() -> None:
    """In a forked child: a fresh queue, and a thread that empties it."""
    events.subscribe(_on_event)
    if _sink is not None:
        _sink.start()


def pump() -> None:
    """Write what goes without waiting (the parent's loop; harmless elsewhere)."""
    if _sink is not None:
        _tell_repeats(time.monotonic())
        _sink.pump()


def pending() -> bool:
    """Lines wait for room."""
    return _sink is not None and _sink.pending


def watch(selector: selectors.BaseSelector) -> None:
    """Register stdout for writing while lines wait, else unregister it. Call before each select.

    The key's `data` is this module; when it comes up, call `pump`.
    """
    global _watched
    if _outlet is None or _outlet.fileno() < 0:
        return
    wanted = selector if pending() else None
    if wanted is _watched:
        return
    if _watched is not None:
        _watched.unregister(_outlet)
    if wanted is not None:
        wanted.register(_outlet, selectors.EVENT_WRITE, sys.modules[__name__])
    _watched = wanted


def close(seconds: float = 0.5) -> None:
    """Write what is left, for at most so long."""
    if _sink is not None:
        _tell_repeats(math.inf)
        _sink.close(seconds)


def _on_event(event: Event) -> None:
    # logs_dropped is for the meters; its line is the sink's notice, once lines go out again.
    severity = LEVELS.get(event.level, 20)
    if severity < _threshold or event.name == "logs_dropped":
        return
    about_a_job = "job_id" in event.fields
    if severity < LEVELS["warning"] or about_a_job or _admit(event.name, event.level, _said(event)):
        _put(_formatter.event(event))


def _said(event: Event) -> str:
    """What tells a repetition from another line: every field that is written."""
    return repr(sorted((k, str(v)) for k, v in event.fields.items() if k in ALLOWED))


def _admit(name: str, level: str, text: str) -> bool:
    now = time.monotonic()
    _tell_repeats(now)
    return _repeats.admit(name, level, text, now)


def _tell_repeats(now: float) -> None:
    for one in _repeats.ended(now):
        fields = {"of": one.name, "message": one.text, "count": one.count}
        _put(_formatter.event(Event("repeated", one.level, time.time(), fields)))


def _shape(name: str) -> Shape:
    shape = as_json
    if name == "text":
        colours = (
            _outlet is not None
            and _outlet.is_terminal
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        shape = as_coloured_text if colours else as_text
    return for_journal(shape) if _outlet is not None and _outlet.is_journal else shape


def _put(text: str) -> None:
    if _sink is not None:
        _sink.put(_bytes(text))


def _notice(count: int) -> bytes:
    event = Event("logs_dropped", "warning", time.time(), {"count": count})
    return _bytes(_formatter.event(event))


def _bytes(text: str) -> bytes:
    return f"{text}\n".encode("ascii")


def _after_fork() -> None:
    """A child writes its own lines only: its parent's unwritten ones are still the parent's."""
    global _sink, _watched, _repeats
    _watched = None
    _repeats = Repeats()
    if _outlet is not None:
        _sink = Sink(_outlet, _notice)


os.register_at_fork(after_in_child=_after_fork)
