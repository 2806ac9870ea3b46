"""A walk back through time in slices: for scans that must not be cut before they have got anywhere.

Floor 0, pure: times of the database are handed in as epoch seconds, local times as CLOCK_BOOTTIME.
While some transaction pins an old snapshot, an index keeps an entry for everything done since, and
a scan of all of it may outlast its budget. The walk takes what fits: a slice that was cut is
halved, the next one begins where the last one ended, and a whole walk rests in proportion to its
cost.
"""

from __future__ import annotations

import math

# What costs more than a thirtieth of its interval comes less often: 3 % of one connection at most.
REST_PER_COST = 30.0

_LEAST_SLICE_SECONDS = 1.0
_CHEAP_SECONDS = 0.1
# Past a slice of thirty years the rest of time is one slice.
_WIDEST_SLICE_SECONDS = 1e9


class Walk:
    """From a mark back to the beginning of time, slice by slice, resumed where it was.

    `rest_seconds`: a finished walk rests at least so long. `first_seconds`: how far the first slice
    reaches back; each next one twice as far while they are cheap. math.inf: all of it at once.
    """

    def __init__(self, *, rest_seconds: float, first_seconds: float) -> None:
        self.complete = False  # one walk has ended since this process began
        self._rest = rest_seconds
        self._widest_first = first_seconds
        self._first = first_seconds
        self._walking = False
        self._before = 0.0
        self._width = first_seconds
        self._cost = 0.0
        self._due_at = -math.inf

    def due(self, at: float) -> bool:
        """Whether there is a slice to look at now."""
        return self._walking or at >= self._due_at

    def slice(self, mark: float) -> tuple[float, float]:
        """The next stretch of time: from, before. `mark` is where a new walk starts."""
        if not self._walking:
            self._walking = True
            self._before, self._width, self._cost = mark, self._first, 0.0
        return self._lower(), self._before

    def looked(self, seconds: float, at: float) -> None:
        """The slice was looked at, which took `seconds` until `at`."""
        self._cost += seconds
        self._before = self._lower()
        if self._before == -math.inf:
            self._walking = False
            self.complete = True
            self._due_at = at + max(self._rest, REST_PER_COST * self._cost)
            self._first = min(self._first * 4, self._widest_first)
        elif seconds < _CHEAP_SECONDS:
            self._width *= 2

    def cut(self, seconds: float) -> None:
        """The slice was too long for its budget: the next try takes half of it."""
        self._cost += seconds
        self._width = max(min(self._width, _WIDEST_SLICE_SECONDS) / 2, _LEAST_SLICE_SECONDS)
        self._first = min(self._first, self._width)

    def _lower(self) -> float:
        return self._before - self._width if self._width <= _WIDEST_SLICE_SECONDS else -math.inf
