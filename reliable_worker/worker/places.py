"""Where to claim: the combinations of queue, kind and priority, and where each scan starts.

Floor 3. Marks let a claim skip the dead index entries that jobs done before it left behind, while
somebody's old snapshot keeps them from being removed. A mark is only a hint: it stays 2 s behind
the present, and a walk through the time below it (`jobs.slices`) finds what it skipped.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import groupby

from psycopg.errors import QueryCanceled

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.slices import REST_PER_COST, Walk
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection
from reliable_worker.worker.registry import serves

# While claims bring jobs, new combinations are looked for this often.
_REFRESH_SECONDS = 0.25
# A row enqueued by a transaction of up to this age may lie behind what was claimed last.
_BEHIND_US = 2_000_000
# The time below a mark is looked through this often at most, and all of it at once if that goes.
_WALK_SECONDS = 1.0
# New combinations are looked for whatever it cost: that may have been a stall of the server.
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
        self._walks: dict[store.Combination, Walk] = {}

    def heard(self, named: list[store.Combination]) -> None:
        """A notification named these; the next claim looks into them."""
        self._heard = [place for place in named if self._wanted(place)]

    def refresh(self, conn: Connection, *, idle: bool) -> None:
        """Learn which combinations exist, when it is time."""
        heard, self._heard = self._heard, []
        self._known += [place for place in heard if place not in self._known]
        now = boottime()
        if now < self._refresh_at + (0.0 if idle else _REFRESH_SECONDS):
            return
        found = store.combinations(conn, suspects=self._suspects)
        self._known = [place for place in found if self._wanted(place)]
        # one that is empty just now keeps its mark while its walk rests: it may be back soon
        kept = {*found, *(place for place, walk in self._walks.items() if not walk.due(now))}
        self._marks = {place: mark for place, mark in self._marks.items() if place in kept}
        self._walks = {place: walk for place, walk in self._walks.items() if place in kept}
        # it passes the same dead entries as a scan from the beginning
        now, began_at = boottime(), now
        self._refresh_at = now + min(REST_PER_COST * (now - began_at), _LONGEST_SECONDS)

    def look_below(self, conn: Connection) -> None:
        """Look through a slice of the time below each mark whose walk is due.

        A slice that is cut costs the claim under way its budget (QueryCanceled); the next is half
        of it.
        """
        now = boottime()
        stretches: list[tuple[store.Combination, int, int]] = []
        for place in self._known:
            mark = self._marks.get(place)
            if mark is None:
                continue  # claimed from the beginning as it is
            walk = self._walks.setdefault(
                place, Walk(rest_seconds=_WALK_SECONDS, first_seconds=math.inf)
            )
            if walk.due(now):
                since, before = walk.slice(mark / 1e6)
                stretches.append((place, _microseconds(since), _microseconds(before)))
        if not stretches:
            return
        try:
            found = store.look_below(conn, stretches)
        except QueryCanceled:
            for place, _, _ in stretches:
                self._walks[place].cut((boottime() - now) / len(stretches))
            raise
        ended = boottime()
        for place, _, _ in stretches:
            self._walks[place].looked((ended - now) / len(stretches), ended)
            if place in found:
                self._marks[place] = min(self._marks[place], found[place])

    def turn(self) -> list[tuple[store.Combination, int]]:
        """The combinations in this claim's order: by priority, those of one priority in turns."""
        self._turn += 1
        order: list[tuple[store.Combination, int]] = []
        ranked = sorted(self._known, key=lambda place: (place.priority, place))
        for _, group in groupby(ranked, key=lambda place: place.priority):
            places = list(group)
            first = self._turn % len(places)
            for place in places[first:] + places[:first]:
                order.append((place, self._marks.get(place, store.HEAD_US)))
        return order

    def claimed(self, asked: list[tuple[store.Combination, int]], claim: store.Claim) -> None:
        """Move the marks: to what was claimed last, or, when nothing was due, to the present."""
        for place, mark in asked:
            reached = claim.marks.get(place, claim.empty_us)
            if reached is not None and not self._suspects:
                # suspects are few: their scans start at the beginning
                self._marks[place] = max(mark, reached - _BEHIND_US)

    def _wanted(self, place: store.Combination) -> bool:
        return place.kind in self._kinds and serves(self._queues, place.queue)


def _microseconds(seconds: float) -> int:
    return store.HEAD_US if seconds == -math.inf else max(store.HEAD_US, round(seconds * 1e6))
