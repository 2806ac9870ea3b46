"""What a log line looks like: one JSON object, from a list of allowed fields, within PIPE_BUF.

Floor 0; imports `jobs`, its siblings and python-json-logger. Whoever reads lines may rely on
`time`, `level` and `event`; the other fields stand where they apply. A field not listed here is not
written: payloads, keys of jobs and database URLs have no field. Everything is ASCII with escapes,
so that no text of a user can end a line, forge one, or colour a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import Event
from reliable_worker.logs.about import ABOUT
from reliable_worker.logs.formats import Shape, as_json

# A write of up to PIPE_BUF bytes (4,096 on Linux) into a pipe is whole or does not happen, so the
# lines of many processes never mix.
LINE_BYTES = 4096

# Characters a text may have, by field; 200 where nothing else stands here.
_CAPS = {"error": 1000, "message": 1000, "line": 1000, "stack": 2000}
_CAP = 200
_ITEMS = 50

_OF_A_JOB = {
    *("job_id", "attempt", "owner", "fence", "kind", "queue", "error", "reason", "outcome"),
    *("duration_seconds", "wait_seconds", "retry_seconds"),
}
_OF_A_PROCESS = {
    *("role", "pid", "boot", "cause", "index", "signal", "exit", "killed", "freed", "dead"),
    *("stack", "started", "stuck", "held"),
}
_OF_THE_WHOLE = {
    *("count", "lane", "address", "kinds", "queues", "workers", "processes", "version"),
    *("setting", "timeout_seconds", "line", "service", "untold", "statement"),
    *("succeeded", "cancelled", "attempts"),
}
_OF_OTHERS = {"logger", "message", "where", "of"}
# The ledger's log has the key of a transfer, by which its sender asks what became of it.
_OF_THE_LEDGER = {"transfer_key", "transfer_id", "status", "code"}
ALLOWED = frozenset(_OF_A_JOB | _OF_A_PROCESS | _OF_THE_WHOLE | _OF_OTHERS | _OF_THE_LEDGER)

_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))

# What may not appear even inside an error text: a database URL, a password of a connection string,
# and the user part of any URL.
_SECRETS = re.compile(
    r"postgres(?:ql)?://\S*|\bpassword\s*=\s*(?:'[^']*'|\S+)|(?<=://)[^\s/@]*:[^\s/@]*(?=@)", re.I
)


class LineFormatter(JsonFormatter):
    """Formats events and the records of `logging` alike, in the shape given."""

    def __init__(self, shape: Shape = as_json) -> None:
        super().__init__(json_ensure_ascii=True)
        self._shape = shape

    def event(self, event: Event) -> str:
        """The line of an event, without its line end."""
        return self._line(_fields(event.at, event.level, event.name, event.fields))

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        """Instead of the whole record: what is allowed of it. Called by `format`."""
        extra = dict(ABOUT.get())
        extra |= {name: value for name, value in record.__dict__.items() if name in ALLOWED}
        # A record has a message by itself; these two must not come from `extra`.
        extra["logger"] = record.name
        extra["message"] = record.message or str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            extra["error"] = record.exc_info[1]
        level = next((name for least, name in _LEVELS if record.levelno >= least), "debug")
        log_data.update(_fields(record.created, level, "log", extra))

    def serialize_log_record(self, log_record: dict[str, Any]) -> str:
        """One line within the limit."""
        return self._line(log_record)

    def _line(self, fields: dict[str, Any]) -> str:
        return self._shape(fields, _fit(fields))

    def formatException(self, ei: object) -> str:
        """Nothing: the exception's class and first line are the field `error`."""
        return ""

    def formatStack(self, stack_info: str) -> str:
        """Nothing: stacks go to stderr."""
        return ""


def _fit(fields: dict[str, Any]) -> str:
    """The JSON text, its longest texts halved until it fits into a line with its end."""
    text = _json(fields)
    while len(text) >= LINE_BYTES:
        fields["truncated"] = True
        name = max(fields, key=lambda name: len(_json(fields[name])))
        value = fields[name]
        fields[name] = value[: len(value) // 2] if isinstance(value, str | list) else None
        text = _json(fields)
    return text


def _fields(at: float, level: str, name: str, given: Mapping[str, object]) -> dict[str, Any]:
    fields: dict[str, Any] = {"time": stamp(at), "level": level, "event": name}
    for key, value in given.items():
        if key in ALLOWED and value is not None:
            fields[key] = _value(value, _CAPS.get(key, _CAP))
    return fields


def stamp(at: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    milliseconds = int(at * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03d}Z"


def _value(value: object, cap: int) -> object:
    """A value as JSON may hold it; of unknown things only the class."""
    if isinstance(value, str):
        return _text(value, cap)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Beyond 64 bits no reader of JSON agrees, and beyond 4,300 digits Python refuses.
        return int(value) if abs(value) < 2**63 else "huge"
    if isinstance(value, float):
        return round(value, 6) if abs(value) < float("inf") else str(value)
    if isinstance(value, BaseException):
        return _text(describe(value), cap)
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(item, _CAP) for item in list(value)[:_ITEMS]]
    return type(value).__name__


def _text(text: str, cap: int) -> str:
    """A text within its cap, free of secrets, its lone surrogates made visible."""
    # Masked before it is cut, lest the cut hide from the mask what a secret is.
    text = str(text[: cap * 4])
    if "://" in text or "assword" in text.lower():
        text = _SECRETS.sub("[redacted]", text)
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= cap else text[: cap - 1] + "…"


def _json(value: object) -> str:
    # DEL is the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")
