"""Which child must be killed, and why: a stalled main loop, a stuck thread.

Floor 5, in the parent; pure: facts in, verdict out. A child that is merely slow is left alone
until a lease is in danger; the watcher does not believe its own clock after it was itself stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_worker.settings import Settings

# A turn of the parent's loop takes a fifth of a second; one that took ten times as long was not
# slow but stopped (SIGSTOP, a suspended machine), and has heard no beats meanwhile.
GAP_SECONDS = 2.0
# Importing an application may take its time, and beats nothing.
_BOOT_SECONDS = 60.0


class Cause(StrEnum):
    """Why a child died, as its obituary says it."""

    CRASH = "crash"  # by itself: signal or exit; its started jobs are suspects
    STALL = "stall"  # killed because its main loop stood still; likewise
    TIMEOUT = "timeout"  # killed for a thread that outlived its cancellation
    DRAIN = "drain"  # left, or was killed, because the run ends
    EXIT = "exit"  # left in order: asked to, or with nothing to do


@dataclass(frozen=True, slots=True)
class Facts:
    """What the parent knows of a living child; times on CLOCK_BOOTTIME."""

    now: float
    born_at: float
    ready: bool  # it has said so
    beat_at: float
    deadline: float  # of its earliest lease; 0.0: holds none
    held: int
    started: int  # runs under way
    stuck: int  # of them, those whose thread is stuck
    stuck_since: float  # 0.0: none
    watched_since: float  # the parent has heard every beat since then


def verdict(facts: Facts, settings: Settings) -> Cause | None:
    """The cause to kill this child for, or None to let it live."""
    if _stalled(facts, settings):
        return Cause.STALL
    if facts.stuck and _alone(facts, settings):
        return Cause.TIMEOUT
    return None


def silence(facts: Facts) -> float:
    """Seconds since the last beat that the parent was awake to hear."""
    return facts.now - max(facts.beat_at, facts.born_at, facts.watched_since)


def _stalled(facts: Facts, settings: Settings) -> bool:
    patience = settings.stall_seconds
    if not facts.ready:
        patience = max(patience, _BOOT_SECONDS)
    if silence(facts) < patience:
        return False
    # The last fifth of a lease is what it takes to kill, reap and tell, before others expire it.
    return not facts.deadline or facts.now >= facts.deadline - settings.lease_seconds / 5


def _alone(facts: Facts, settings: Settings) -> bool:
    """Nobody but stuck threads is left.

    Each of the others ends or becomes stuck within its own budget, which only the child knows. What
    has ended but waits for the database to take its outcome is given the time any job may take.
    """
    if facts.started > facts.stuck:
        return False
    if facts.held <= facts.stuck:
        return True
    limit = settings.job_timeout_seconds + settings.stuck_grace_seconds
    return facts.now - facts.stuck_since >= limit
