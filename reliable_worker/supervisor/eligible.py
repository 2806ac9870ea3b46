"""When `run --drain` is done: nothing can be claimed and nobody holds anything.

Floor 5, in the parent; pure. Two observers must agree: maintenance, which reads the rows, and the
board, which knows what is in hand. A job that changes hands can slip past both, so maintenance is
asked only while all hands are empty, and its answer counts only if no hand has moved since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# (boot id, leases held, changes of that number) of each child that can hold a lease.
Hands = tuple[tuple[str, int, int], ...]

# An answer lost with a maintenance process is asked for again.
_PATIENCE_SECONDS = 5.0
# Between two questions: an exhausted queue is noticed at once, a busy one is not pestered.
_PAUSE_SECONDS = 0.2


@dataclass(slots=True)
class Eligibility:
    """The questions and what their answers mean. Times on one clock, in seconds."""

    _number: int = 0  # of the last question
    _asked_at: float = float("-inf")
    _open: bool = False
    _hands: Hands = ()  # as they were when it was asked

    def question(self, hands: Iterable[tuple[str, int, int]], now: float) -> int | None:
        """The number of the question to ask now, None: not now."""
        now_in_hand = tuple(hands)
        wait = _PATIENCE_SECONDS if self._open else _PAUSE_SECONDS
        if now - self._asked_at < wait or any(held for _, held, _ in now_in_hand):
            return None
        self._number += 1
        self._asked_at, self._open, self._hands = now, True, now_in_hand
        return self._number

    def answer(self, number: object, count: object, hands: Iterable[tuple[str, int, int]]) -> bool:
        """Maintenance has answered question `number`. True: there is nothing left to do."""
        if number != self._number or not self._open:
            return False
        self._open = False
        return count == 0 and tuple(hands) == self._hands
