"""Where scans of running rows start, and the full scan that keeps this honest.

On a job's way: beside a running job. Completed jobs leave dead entries at the low end of
jobs_expired_idx, and while some transaction pins an old snapshot nothing can remove them. Expire,
census and obituaries therefore start at a mark just below the oldest claim found running. What a
mark could hide (a claim that committed very late, a clock set back, a row written by plain SQL) a
full scan of the time before it finds, in slices, now and then.

Pure: database times are handed in as epoch seconds, local times as CLOCK_BOOTTIME. Floor 4.
"""

from __future__ import annotations

import math

from reliable_worker.maintenance.pace import REST_PER_COST

# A claim is stamped before it commits; it commits within its budget of 2 s or not at all, and 10 s
# leave room for budgets that were raised.
SLACK_SECONDS = 10.0

# A full scan rests at least so long, and REST_PER_COST times what it cost.
REST_SECONDS = 10.0

# The first slice reaches back a minute, each next one twice as far while they are cheap.
_FIRST_SLICE_SECONDS = 60.0
_LEAST_SLICE_SECONDS = 1.0
_CHEAP_SECONDS = 0.1
# Past a slice of thirty years the rest of time is one slice.
_WIDEST_SLICE_SECONDS = 1e9


class Marks:
    """The mark and the full scan below it. One thread moves them, others may read `floor`."""

    def __init__(self) -> None:
        # Nothing is known yet, not even the time; the full scan, due at once, learns the past.
        self.mark = math.inf
        self.full = FullScan()

    @property
    def floor(self) -> float:
        """Below this nothing runs; -inf while the first full scan has not ended."""
        return self.mark if self.full.complete else -math.inf

    def ticked(self, now: float, oldest: float | None) -> None:
        """The tick looked from the mark on: `now` is the database's time before it looked."""
        self.mark = (now if oldest is None else min(oldest, now)) - SLACK_SECONDS

    def lower(self, oldest: float) -> None:
        """The full scan found a running row below the mark."""
        self.mark = min(self.mark, oldest - SLACK_SECONDS)


class FullScan:
    """A walk from the mark back to the beginning of time, slice by slice, resumed where it was."""

    def __init__(self) -> None:
        self.complete = False  # one full scan has ended since this process began
        self._walking = False
        self._before = 0.0
        self._width = _FIRST_SLICE_SECONDS
        self._cost = 0.0
        self._due_at = -math.inf

    def due(self, at: float) -> bool:
        """Whether there is a slice to look at now."""
        return self._walking or at >= self._due_at

    def slice(self, mark: float) -> tuple[float, float]:
        """The next stretch of claimed_at: from, before. `mark` is where a new walk starts."""
        if not self._walking:
            self._walking = True
            self._before, self._width, self._cost = mark, _FIRST_SLICE_SECONDS, 0.0
        return self._lower(), self._before

    def looked(self, seconds: float, at: float) -> None:
        """The slice was looked at, which took `seconds` until `at`."""
        self._cost += seconds
        self._before = self._lower()
        if self._before == -math.inf:
            self._walking = False
            self.complete = True
            self._due_at = at + max(REST_SECONDS, REST_PER_COST * self._cost)
        elif seconds < _CHEAP_SECONDS:
            self._width *= 2

    def cut(self, seconds: float) -> None:
        """The slice was too long for its budget: the next try takes half of it."""
        self._cost += seconds
        self._width = max(min(self._width, _WIDEST_SLICE_SECONDS) / 2, _LEAST_SLICE_SECONDS)

    def _lower(self) -> float:
        return self._before - self._width if self._width <= _WIDEST_SLICE_SECONDS else -math.inf
