"""When expiry must hold back: after an outage the holders could not renew either.

On a job's way: beside a running job. A lease that ran out because nobody reached the database says
nothing about its holder, so nothing expires until the holders have had their turn. Pure: times are
handed in (CLOCK_BOOTTIME). The server's own youth is judged by `expire.sql` itself.

Floor 4. Imports nothing of the package.
"""

from __future__ import annotations

import threading


class Holdback:
    """Watches every statement and connect of this process, lane by lane.

    An outage is told by one lane: from the send of the first statement that failed, or that was
    answered late, to the next answer. Time in which nothing was asked does not count.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        # Renewals come every lease/3: a shorter outage made nobody miss two of them.
        self._harmless = lease_seconds / 3
        self._failing_since: dict[str, float] = {}
        self._until = float("-inf")
        self._lock = threading.Lock()  # two lanes report

    def failed(self, lane: str, sent_at: float) -> None:
        """A statement or connect sent at `sent_at` came to nothing."""
        with self._lock:
            self._failing_since.setdefault(lane, sent_at)

    def answered(self, lane: str, sent_at: float, answered_at: float) -> None:
        """The database answered; an outage of this lane, if there was one, is over."""
        with self._lock:
            began = self._failing_since.pop(lane, sent_at)
            outage = answered_at - began
            if outage > self._harmless:
                self._until = max(self._until, answered_at + min(outage, self._lease))

    def holding(self, at: float) -> bool:
        """Whether nothing may expire at `at`."""
        return at < self._until
