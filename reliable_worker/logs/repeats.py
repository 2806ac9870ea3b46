"""The same complaint again and again: said a few times, then counted.

Floor 0; imports nothing of the package. A database that is away makes every process complain every
second; what the log needs of that is that it goes on, and how often. Lines about a job are never
held back: each is about another one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

# So many equal lines within a window are written; the others are told as a number at its end.
LINES = 5
WINDOW_SECONDS = 10.0
# Texts told apart at a time. More than that are not repetitions but a flood of different lines.
TEXTS = 200


@dataclass(slots=True)
class Window:
    """One text's window: when it ends, how often it was said, how often that was held back."""

    ends_at: float
    said: int = 0
    held_back: int = 0


@dataclass(frozen=True, slots=True)
class Repeated:
    """What was held back within a window that has ended."""

    name: str
    level: str
    text: str
    count: int


class Repeats:
    """One process's memory of what was said. Times are monotonic seconds."""

    def __init__(self) -> None:
        # Re-entrant: a finaliser may log while its thread is in here.
        self._lock = threading.RLock()
        self._windows: dict[tuple[str, str, str], Window] = {}

    def admit(self, name: str, level: str, text: str, now: float) -> bool:
        """Whether to write this line; else it is counted."""
        key = (name, level, text)
        with self._lock:
            window = self._windows.get(key)
            if window is None:
                if len(self._windows) >= TEXTS:
                    return True
                window = self._windows[key] = Window(now + WINDOW_SECONDS)
            window.said += 1
            if window.said <= LINES:
                return True
            window.held_back += 1
            return False

    def ended(self, now: float) -> list[Repeated]:
        """Forget the windows that have ended; those that held something back are told."""
        if not self._windows:
            return []
        with self._lock:
            over = [key for key, window in self._windows.items() if now >= window.ends_at]
            windows = [(key, self._windows.pop(key)) for key in over]
        return [Repeated(*key, window.held_back) for key, window in windows if window.held_back]
