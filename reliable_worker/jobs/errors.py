"""What can go wrong, in an operator's words.

Floor 0. Cancellations (`LeaseLost`, `JobTimeout`, `Draining`) are BaseExceptions, so that a
handler's `except Exception` lets them pass. `describe` makes the text of `last_error`: it keeps
what helps and drops what could hold a payload (PostgreSQL's DETAIL and HINT repeat whole rows).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

ERROR_CHARACTERS = 1000  # the CHECK on jobs.last_error

# Ten years: a later date is a mistake in the handler's arithmetic, and far from what an interval
# or a timestamp can hold.
_LONGEST_DELAY_SECONDS = 10 * 366 * 86400.0

# A quoted string of an error text that also stands in the payload is masked from this length on;
# shorter ones ("id", "a") would mask ordinary words and reveal nothing.
_MASK_CHARACTERS = 4
# A longer string is masked where it begins so: errors shorten what they quote.
_HEAD_CHARACTERS = 16


class ReliableWorkerError(Exception):
    """Base of what this package raises and a caller may catch."""


class BudgetExceeded(ReliableWorkerError):
    """A wait used up its budget, which it names."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"{name} exceeded its budget of {seconds:g} s")
        self.name = name
        self.seconds = seconds


class InvalidJob(ReliableWorkerError, ValueError):
    """A job that cannot be enqueued; says which field and why."""


class KeyConflict(ReliableWorkerError):
    """The idempotency key already stands for another kind or payload."""

    def __init__(self, job_id: int, kind: str) -> None:
        super().__init__(
            f"the idempotency key belongs to job {job_id} of kind {kind!r} with another kind "
            "or payload; use a new key, or enqueue exactly the same job"
        )
        self.job_id = job_id


class DecodeError(ReliableWorkerError):
    """The payload is not what the handler's annotation asks for."""


class UnknownKind(ReliableWorkerError, LookupError):
    """No handler is registered for this kind."""


class AlreadyFinished(ReliableWorkerError):
    """The job was already finished by an earlier transaction() or finish()."""


class TransactionBroken(ReliableWorkerError):
    """The transaction that should have been committed is not the one that was begun."""


class OutcomeUnknown(ReliableWorkerError):
    """Whether the COMMIT happened could not be learned within the budget."""


def _check_delay(name: str, seconds: float) -> None:
    if not 0.0 <= seconds <= _LONGEST_DELAY_SECONDS:  # NaN fails every comparison
        raise ValueError(f"{name} must be between 0 and {_LONGEST_DELAY_SECONDS:g} seconds")


class Snooze(ReliableWorkerError):
    """Raised by a handler: run me again in `seconds`; this run costs no attempt."""

    def __init__(self, seconds: float) -> None:
        _check_delay("Snooze(seconds)", seconds)
        super().__init__(f"snoozed for {seconds:g} s")
        self.seconds = seconds


class Discard(ReliableWorkerError):
    """Raised by a handler: never run me again; `reason` becomes last_error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(ReliableWorkerError):
    """Raised by a handler: this run failed; try again after `after_seconds`."""

    def __init__(self, after_seconds: float, reason: str = "") -> None:
        _check_delay("Retry(after_seconds)", after_seconds)
        super().__init__(reason or f"retry asked for after {after_seconds:g} s")
        self.after_seconds = after_seconds


class Cancelled(BaseException):
    """Base of the reasons a running handler is asked to stop."""


class LeaseLost(Cancelled):
    """Another worker may own the job; nothing of this run may be committed."""


class JobTimeout(Cancelled):
    """The handler used up its job_timeout_seconds."""


class Draining(Cancelled):
    """The worker is shutting down; the job will be released and run again."""


def clean(text: str, limit: int = ERROR_CHARACTERS) -> str:
    """Text PostgreSQL accepts: no NUL, no surrogate, at most `limit` characters."""
    kept = text[: limit * 2].replace("\x00", "\ufffd")
    return kept.encode("utf-8", "replace").decode("utf-8", "replace")[:limit]


def describe(error: BaseException, payload: object = None) -> str:
    """One line for last_error: class, SQLSTATE and constraint, first line of the message.

    `payload` is what must not be shown (`ClaimedJob.secrets`): its strings are masked in messages
    of foreign errors. Never raises, whatever the error's own `__str__` does.
    """
    try:
        return _describe(error, payload)
    except BaseException as failure:
        return clean(
            f"{type(error).__name__} (its message could not be read: {type(failure).__name__})"
        )


def _describe(error: BaseException, payload: object) -> str:
    if isinstance(error, ReliableWorkerError | Cancelled):
        return clean(str(error) or type(error).__name__)
    name = type(error).__name__
    state = getattr(error, "sqlstate", None)
    state = state if isinstance(state, str) else ""
    if state or type(error).__module__.startswith("psycopg"):
        # The message of a database error may quote a value of the row as well as its DETAIL
        # does, and one of libpq a piece of a mistyped URL's password that it took for a host:
        # only its own words outside quotation marks are kept.
        diag = getattr(error, "diag", None)
        constraint = getattr(diag, "constraint_name", None)
        words = _first_line(getattr(diag, "message_primary", None) or str(error))
        place = f" constraint {constraint}" if constraint else ""
        words = _mask(re.sub(r'"[^"]*"|\'[^\']*\'', "[…]", words), payload)
        return clean(f"{name}{f' [{state}]' if state else ''}{place}: {words}")
    return clean(f"{name}: {_mask(_first_line(str(error)), payload)}".rstrip(": "))


def _first_line(text: str) -> str:
    for line in text[: ERROR_CHARACTERS * 4].splitlines():
        if line.strip():
            return line.strip()
    return ""


def _mask(text: str, payload: object) -> str:
    found = {part for part in _strings(payload) if part[:_HEAD_CHARACTERS] in text}
    for secret in sorted(found, key=len, reverse=True):
        at = text.find(secret[:_HEAD_CHARACTERS])
        while at >= 0:
            pairs = zip(text[at:], secret, strict=False)
            quoted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            text = f"{text[:at]}[…]{text[at + quoted :]}"
            at = text.find(secret[:_HEAD_CHARACTERS], at + 1)
    return text


def _strings(payload: object) -> Iterator[str]:
    """The payload's strings and long numbers, as an error's first line may show them."""
    left: list[object] = [payload]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list | tuple):
            left.extend(item)
        elif isinstance(item, str):
            for part in {item, repr(item)[1:-1], *item.splitlines()}:
                if len(part) >= _MASK_CHARACTERS:
                    yield part
        elif (
            isinstance(item, int | float)
            and not isinstance(item, bool)
            and len(str(item)) >= _MASK_CHARACTERS
        ):
            yield str(item)
