"""What a job is: the row a claim returns, and what a handler sees of it.

Floor 0, pure: `Job` is a protocol, the worker's context implements it, `enqueue` types handlers
with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from reliable_worker.jobs.lease import Lease

P_co = TypeVar("P_co", covariant=True)

Params = Sequence[Any] | Mapping[str, Any]


class Rows(Protocol):
    """The result of a statement: what psycopg's cursor offers of it."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    """The one short transaction that holds the effects and the job's completion.

    It cannot be committed, rolled back or closed from inside: leaving the block does that.
    """

    def execute(self, query: Any, params: Params | None = None) -> Rows: ...
    def executemany(self, query: Any, params: Iterable[Params]) -> None: ...


class Job(Protocol[P_co]):
    """A job as its handler sees it."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def payload(self) -> P_co: ...
    @property
    def key(self) -> str:
        """The idempotency key: the same at every run; pass it to remote systems."""

    @property
    def attempt(self) -> int:
        """1 at the first run."""

    @property
    def fence(self) -> int:
        """Raised by every claim, never lowered: lets other systems refuse a late writer."""

    @property
    def deadline(self) -> float:
        """When the job times out, on the clock of `time.clock_gettime(CLOCK_BOOTTIME)`."""

    def check(self) -> None:
        """Raise `LeaseLost`, `JobTimeout` or `Draining` when the job should stop."""

    def sleep(self, seconds: float) -> None:
        """Sleep, but raise as `check` does as soon as the job should stop."""

    def effect(self, query: Any, params: Params | None = None) -> None:
        """Record a statement to be committed with the completion, after the handler returns."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Own statements and the completion in one fenced commit; then the job is finished."""

    def finish(self, function: Callable[[Transaction], None]) -> None:
        """The same with a callable, called again when its transaction provably rolled back."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue: the row's id and state, and whether this call made it."""

    id: int
    state: str
    status: Literal["new", "existing"]

    @property
    def new(self) -> bool:
        return self.status == "new"


@dataclass(slots=True)
class ClaimedJob:
    """A row just claimed. The payload stays text until the job's own guard decodes it."""

    lease: Lease
    key: str = field(repr=False)  # a traceback may show a repr: neither key nor payload leaves
    kind: str
    queue: str
    priority: int
    payload_text: str = field(repr=False)
    attempt: int
    max_attempts: int
    crashes: int
    refunds: int
    snoozes: int
    wait_seconds: float  # from available_at to the claim, by the database's clock

    @property
    def id(self) -> int:
        return self.lease.id

    def secrets(self) -> object:
        """Key and payload as stored, to be masked in the texts of errors.

        Not what the handler was given: it may have changed that before it raised.
        """
        try:
            return [self.key, json.loads(self.payload_text, parse_int=str)]
        except (ValueError, RecursionError):  # no handler has seen it either
            return self.key

    def facts(self) -> dict[str, object]:
        """The fields by which every event names a job."""
        return {
            "job_id": self.lease.id,
            "attempt": self.attempt,
            "owner": self.lease.owner,
            "kind": self.kind,
            "queue": self.queue,
        }
