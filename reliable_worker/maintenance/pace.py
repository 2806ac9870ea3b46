"""How often something may be asked of the database, by what it cost the last time.

Floor 4, pure: local times (CLOCK_BOOTTIME) are handed in, randomness apart. Imports jobs.
"""

from __future__ import annotations

import random

from reliable_worker.jobs.slices import REST_PER_COST

# Several supervisors that started together must not march in step: up to a tenth earlier.
_JITTER = 0.1


class Pace:
    """A service's timer: due at once, then every `interval_seconds`, later when it is costly."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self.due_at = 0.0

    def began(self, at: float) -> None:
        """Say before asking: a failed try, too, is repeated only after the interval."""
        self.due_at = at + self._interval * (1.0 - random.uniform(0.0, _JITTER))

    def cost(self, seconds: float, at: float) -> None:
        """Say what asking cost, and when it ended."""
        self.due_at = max(self.due_at, at + REST_PER_COST * seconds - seconds)

    def hurry(self, at: float) -> None:
        """There is more to do at once, when those due before have had their turn."""
        self.due_at = at


class Reconnect:
    """Pauses between tries to reach the database: full jitter, at most a second.

    Where the server refuses the password at least a second passes, so that no account is locked
    and no log flooded.
    """

    FIRST_SECONDS = 0.1
    MOST_SECONDS = 1.0

    def __init__(self) -> None:
        self._ceiling = self.FIRST_SECONDS

    def pause(self, *, refused: bool = False) -> float:
        """Seconds to wait after one more failure in a row."""
        ceiling, self._ceiling = self._ceiling, min(self._ceiling * 2, self.MOST_SECONDS)
        pause = random.uniform(0.0, ceiling)
        return self.MOST_SECONDS + pause if refused else pause

    def succeeded(self) -> None:
        self._ceiling = self.FIRST_SECONDS
