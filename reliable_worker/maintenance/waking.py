"""Waking: tell idle processes what is claimable, and the parent how many suspects wait.

On a job's way: between enqueue and claim. Plain INSERTs notify nobody, so every tick looks for
combinations of queue, kind and priority that a claim would take from and NOTIFYs their names, at
most once a tick; a lost or late wake-up costs one poll. The parent forks quarantine children for
suspects. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from reliable_worker.jobs.deadline import boottime
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.pace import Pace
from reliable_worker.maintenance.served import Served
from reliable_worker.postgres import upkeep
from reliable_worker.settings import Settings

# PostgreSQL refuses a notification of 8,000 bytes.
PAYLOAD_BYTES = 7_999
# Combinations looked at in one tick; the next goes on where it ended. A thousand jumps in the index
# take some 5 ms.
COMBINATIONS = 1_000
# The parent has forked all the quarantine children it may long before this many suspects.
COUNT_LIMIT = 1_000

_BEGINNING = ("", "", -1)


class Waking:
    """The service `waking`."""

    name = "waking"

    def __init__(
        self, settings: Settings, served: Served, say: Callable[[Mapping[str, object]], None]
    ) -> None:
        self._served = served
        self._say = say
        self._pace = Pace(settings.reap_seconds)
        self._after: tuple[str, str, int] = _BEGINNING
        self._suspects = -1  # what the parent was told last; -1: nothing by this process

    def due_at(self) -> float:
        # Without kinds there is nobody to wake.
        return self._pace.due_at if self._served.kinds else float("inf")

    def hurry(self) -> None:
        """Jobs were just freed: look again now. Any thread."""
        self._pace.hurry(boottime())

    def run_once(self, lane: Lane) -> int:
        """One tick; how many combinations were named."""
        began = boottime()
        self._pace.began(began)
        named = self._wake(lane)
        self._count_suspects(lane)
        ended = boottime()
        self._pace.cost(ended - began, ended)
        return named

    def _wake(self, lane: Lane) -> int:
        served, after = self._served, self._after
        found = lane.call(
            lambda conn: upkeep.claimable(conn, served.kinds, served.queues, after, COMBINATIONS)
        )
        due = [one for one in found if one.due]
        payload, named = pack(due)
        # What found no room, and what lies past the limit, is first at the next tick.
        if len(named) < len(due):
            self._after = place(named[-1])
        else:
            self._after = place(found[-1]) if len(found) == COMBINATIONS else _BEGINNING
        if named:
            lane.call(lambda conn: upkeep.notify(conn, payload))
        return len(named)

    def _count_suspects(self, lane: Lane) -> None:
        served = self._served
        count = lane.call(
            lambda conn: upkeep.suspects(conn, served.kinds, served.queues, COUNT_LIMIT)
        )
        if count or self._suspects:  # no news only where the last word was none
            self._say({"say": "suspects", "count": count})
        self._suspects = count


def place(one: upkeep.Combination) -> tuple[str, str, int]:
    """Where a combination stands in the index."""
    return one.queue, one.kind, one.priority


def pack(
    combinations: Sequence[upkeep.Combination],
) -> tuple[str, Sequence[upkeep.Combination]]:
    """A payload that names as many of them as fit (one always does), and those it names."""
    parts: list[str] = []
    size = len("[]")
    for one in combinations:
        part = json.dumps(place(one), ensure_ascii=False, separators=(",", ":"))
        size += len(part.encode()) + len(",")
        if size > PAYLOAD_BYTES:
            break
        parts.append(part)
    return f"[{','.join(parts)}]", combinations[: len(parts)]
