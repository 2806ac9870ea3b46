"""Deciding what becomes of a job after its handler ended: one pure function.

Floor 0. The closed set of outcomes is the union `Outcome`; the worker carries it out, the
database only enforces it (0 rows = another owns the job).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reliable_worker.jobs.errors import (
    DecodeError,
    Discard,
    Draining,
    JobTimeout,
    Retry,
    Snooze,
)
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.retry import Backoff


@dataclass(frozen=True, slots=True)
class Complete:
    """The handler returned: commit its effects with the completion."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The attempt failed, attempts are left."""

    delay_seconds: float
    error: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bury:
    """The attempt failed and was the last, or the handler gave the job up."""

    error: str
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Interrupted by a drain: the attempt is given back, the job keeps its place."""

    reason: str = "drain"


@dataclass(frozen=True, slots=True)
class Refund:
    """Interrupted by the infrastructure: the attempt is given back, backed off, counted."""

    delay_seconds: float
    reason: str = "fault"


@dataclass(frozen=True, slots=True)
class SnoozeUntil:
    """The handler asked for later: the attempt is given back, counted."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """The lease is lost: nothing may be written."""

    reason: str = "lease_lost"


Outcome = Complete | RetryLater | Bury | Release | Refund | SnoozeUntil | Abandon


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits a decision needs, from the settings."""

    backoff: Backoff
    max_refunds: int
    max_snoozes: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How the handler ended."""

    error: BaseException | None
    text: str = ""  # the error described for last_error
    infrastructure: bool = False  # the error is the database's or the network's, not the job's
    stop: Literal["run", "drain", "orphaned"] = "run"  # how far the process has to stop


def decide(job: ClaimedJob, ending: Ending, policy: Policy) -> Outcome:
    """What becomes of `job`. Pure but for the backoff's jitter."""
    lease, error = job.lease, ending.error
    if lease.lost:
        return Abandon()
    if lease.overdue:
        return _refund(job, "no contact with the database for a lease", policy, "deadline")
    if error is None:
        return Complete()
    if isinstance(error, Snooze):
        if job.snoozes >= policy.max_snoozes:
            return _fail(job, f"snoozed more than {policy.max_snoozes} times in a row", policy)
        return SnoozeUntil(max(0.0, error.seconds))
    if isinstance(error, Discard):
        return Bury(ending.text, "discarded")
    if isinstance(lease.cancellation.reason, Draining) and not isinstance(error, Retry):
        # whatever the handler made of its cancellation: it was interrupted, not given its chance
        if ending.stop == "orphaned":
            return _refund(job, "the supervisor died", policy, "orphaned")
        return Release()
    if ending.infrastructure:
        return _refund(job, ending.text, policy, "fault")
    if isinstance(error, Retry):
        return _fail(job, ending.text, policy, "error", max(0.0, error.after_seconds))
    return _fail(job, ending.text, policy, _reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, JobTimeout):
        return "timeout"
    return "decode" if isinstance(error, DecodeError) else "error"


def _refund(job: ClaimedJob, text: str, policy: Policy, reason: str) -> Outcome:
    """Infrastructure costs no attempt, but not without end: the cause may be the job itself."""
    if job.refunds >= policy.max_refunds:
        return _fail(job, text, policy, reason)
    return Refund(policy.backoff.seconds(job.refunds + 1), reason)


def _fail(
    job: ClaimedJob,
    text: str,
    policy: Policy,
    reason: str = "error",
    delay_seconds: float | None = None,
) -> Outcome:
    if job.attempt >= job.max_attempts:
        return Bury(text, reason)
    delay = policy.backoff.seconds(job.attempt) if delay_seconds is None else delay_seconds
    return RetryLater(delay, text, reason)
