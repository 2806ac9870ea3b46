"""How long to wait before trying again. Floor 0, pure; randomness is handed in."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling delays: base, 2·base, 4·base … up to the maximum, plus 0…jitter of it upward.

    Upward only, so that "at least 1 s, at least 2 s apart" can be promised.
    """

    base_seconds: float
    max_seconds: float
    jitter: float

    def seconds(self, failures: int) -> float:
        """The delay after the `failures`-th failure in a row (1, 2, …)."""
        # 2**40 s is past any maximum: the exponent is bounded so that it cannot overflow a float
        exponent = min(max(failures, 1) - 1, 40)
        delay = min(self.base_seconds * 2.0**exponent, self.max_seconds)
        return delay * (1.0 + random.uniform(0.0, self.jitter))


def full_jitter(seconds: float) -> float:
    """Anything from 0 to `seconds`: many processes must not poll and reconnect in step."""
    return random.uniform(0.0, seconds)
