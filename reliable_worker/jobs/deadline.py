"""Local time: how long something may still take.

Floor 0, used everywhere a wait needs a budget. Rows are never judged by this clock, only by the
database's. CLOCK_BOOTTIME goes on while the machine is suspended, so a lease that ran out during
a suspend is seen as run out on waking (CLOCK_MONOTONIC would still believe in it).
"""

from __future__ import annotations

import time

from reliable_worker.jobs.errors import BudgetExceeded

# macOS, for development, has no boot clock: its monotonic clock is the nearest there is.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since boot, suspends included."""
    return time.clock_gettime(_CLOCK)


class Deadline:
    """A named budget of seconds that began when it was made."""

    __slots__ = ("at", "name", "seconds")

    def __init__(self, seconds: float, name: str) -> None:
        self.seconds = seconds
        self.name = name
        self.at = boottime() + seconds

    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - boottime())

    @property
    def passed(self) -> bool:
        return boottime() >= self.at

    def check(self) -> None:
        """Raise `BudgetExceeded`, naming the budget, once the time is over."""
        if self.passed:
            raise BudgetExceeded(self.name, self.seconds)
