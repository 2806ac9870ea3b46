"""Where to claim: the combinations of queue, kind and priority, and where each scan starts.

Floor 3. Marks let a claim skip the dead index entries that jobs done before it left behind, while
somebody's old snapshot keeps them from being removed. A mark is only a hint: it stays 2 s behind
the present, and a rescan from the head finds what it skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from reliable_worker.jobs.deadline import boottime
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection
from reliable_worker.worker.registry import serves

# While claims bring jobs, new combinations are looked for this often.
_REFRESH_SECONDS = 0.25
# A row enqueued by a transaction of up to this age may lie behind what was claimed last.
_BEHIND_US = 2_000_000
# A rescan from the head happens this often at most, and takes at most a 30th of the time.
_RESCAN_SECONDS = 1.0
_RESCAN_SHARE = 30.0
# Whatever it cost: that may have been a stall of the server, and what is due must be found.
_LONGEST_SECONDS = 10.0


class Places:
    """The combinations this process claims from. Used by the producer's thread; `heard` by any."""

    def __init__(self, queues: tuple[str, ...], kinds: Collection[str], *, suspects: bool) -> None:
        self._queues = queues
        self._kinds = frozenset(kinds)
        self._suspects = suspects
        self._known: list[store.Combination] = []
        self._heard: list[store.Combination] = []
        self._refresh_at = 0.0
        self._turn = 0
        self._marks: dict[store.Combination, int] = {}
        self._rescan_at: dict[store.Combination, float] = {}

    def heard(self, named: list[store.Combination]) -> None:
        """A notification named these; the next claim looks into them."""
        self._heard = [place for place in named if self._wanted(place)]

    def refresh(self, conn: Connection, *, idle: bool) -> None:
        """Learn which combinations exist, when it is time."""
        heard, self._heard = self._heard, []
        for place in heard:
            if place not in self._known:
                self._known.append(place)
            self._marks.pop(place, None)
        now = boottime()
        if now < self._refresh_at + (0.0 if idle else _REFRESH_SECONDS):
            return
        found = store.combinations(conn, suspects=self._suspects)
        self._known = [place for place in found if self._wanted(place)]
        kept = {*found, *(place for place, at in self._rescan_at.items() if now < at)}
        self._marks = {place: mark for place, mark in self._marks.items() if place in kept}
        self._rescan_at = {place: at for place, at in self._rescan_at.items() if place in kept}
        # it passes the same dead entries as a scan from the head
        now, began_at = boottime(), now
        self._refresh_at = now + min(_RESCAN_SHARE * (now - began_at), _LONGEST_SECONDS)

    def turn(self) -> list[tuple[store.Combination, int]]:
        """The combinations in this claim's order: by priority, those of one priority in turns."""
        now = boottime()
        self._turn += 1
        order: list[tuple[store.Combination, int]] = []
        ranked = sorted(self._known, key=lambda place: (place.priority, place))
        for _, group in groupby(ranked, key=lambda place: place.priority):
            places = list(group)
            first = self._turn % len(places)
            for place in places[first:] + places[:first]:
                rescan = now >= self._rescan_at.get(place, 0.0)
                mark = self._marks.get(place, store.HEAD_US)
                order.append((place, store.HEAD_US if rescan else mark))
        return order

    def claimed(
        self,
        asked: list[tuple[store.Combination, int]],
        claim: store.Claim,
        cost_seconds: float,
    ) -> None:
        """Move the marks to what was claimed last; rescans from the heads have a pace."""
        now = boottime()
        for place, mark in asked:
            if mark == store.HEAD_US:
                pause = max(_RESCAN_SECONDS, _RESCAN_SHARE * cost_seconds)
                self._rescan_at[place] = now + min(pause, _LONGEST_SECONDS)
            reached = claim.marks.get(place)
            if reached is not None:
                self._marks[place] = max(store.HEAD_US, reached - _BEHIND_US)

    def _wanted(self, place: store.Combination) -> bool:
        return place.kind in self._kinds and serves(self._queues, place.queue)
