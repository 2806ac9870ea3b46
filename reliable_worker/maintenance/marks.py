"""Where scans of running rows start, and the full scan that keeps this honest.

On a job's way: beside a running job. Completed jobs leave dead entries at the low end of
jobs_expired_idx, and while some transaction pins an old snapshot nothing can remove them. Expire,
census and obituaries therefore start at a mark just below the oldest claim found running. What a
mark could hide (a claim that committed very late, a clock set back, a row written by plain SQL) a
full scan of the time before it finds, in slices, now and then.

Pure: database times are handed in as epoch seconds, local times as CLOCK_BOOTTIME. Floor 4;
imports jobs.
"""

from __future__ import annotations

import math

from reliable_worker.jobs.slices import Walk

# A claim is stamped before it commits; it commits within its budget of 2 s or not at all, and 10 s
# leave room for budgets that were raised.
SLACK_SECONDS = 10.0

# A full scan rests at least so long, and thirty times what it cost.
REST_SECONDS = 10.0

# The first slice reaches back a minute.
_FIRST_SLICE_SECONDS = 60.0


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


class FullScan(Walk):
    """The walk below the mark of running rows."""

    def __init__(self) -> None:
        super().__init__(rest_seconds=REST_SECONDS, first_seconds=_FIRST_SLICE_SECONDS)
