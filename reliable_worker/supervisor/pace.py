"""How soon a dead child is replaced, and when to give up.

Floor 5, in the parent; pure. A child that dies again and again is replaced ever more slowly, so
that a poison job or a broken deploy does not become a fork storm; one that had been well for a
minute starts from the beginning.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 5.0
_HEALTHY_SECONDS = 60.0
# Children dead before they were ready, in a row, until the run ends: enough for a passing cause
# (memory, descriptors), few enough that an operator sees the line within seconds.
START_BUDGET = 5


@dataclass(slots=True)
class Pace:
    """The restarts of one place."""

    rng: random.Random = field(default_factory=random.Random)
    deaths: int = 0

    def died(self, lived_seconds: float) -> float:
        """Seconds until the replacement: 0.1 doubling to 5, half of it at random.

        Jitter, because children that a common cause has killed must not come back in step.
        """
        if lived_seconds >= _HEALTHY_SECONDS:
            self.deaths = 0
        delay = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(self.deaths, 10))
        self.deaths += 1
        return delay * self.rng.uniform(0.5, 1.0)


class StartBudget:
    """Counts, for each role, the children that died before they were ready."""

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}

    def ready(self, role: str) -> None:
        """A child of this role has started well."""
        self._deaths.pop(role, None)

    def died(self, role: str) -> bool:
        """A child of this role died before it was ready; True: that was one too many."""
        self._deaths[role] = self._deaths.get(role, 0) + 1
        return self._deaths[role] >= START_BUDGET
