"""Floor 5: how a demo is interrupted: once, and never while it cleans up. Imports nothing of this
package.
"""

import signal
from types import FrameType
from typing import Any, Self

# A closed terminal and a polite kill end a demo as Ctrl-C does.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within its block the first of SIGNALS raises KeyboardInterrupt in the main thread, all
    further ones do nothing: what follows the first is cleaning up. A signal that was ignored before
    (nohup) stays ignored."""

    def __init__(self) -> None:
        self._asked = False
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def hold(self) -> None:
        """From now on remember a signal instead of raising."""
        self._held = True

    def release(self) -> None:
        """Raise what was remembered, and raise at once again."""
        self._held = False
        if self._asked:
            raise KeyboardInterrupt

    def _caught(self, number: int, frame: FrameType | None) -> None:
        first, self._asked = not self._asked, True
        if first and not self._held:
            raise KeyboardInterrupt
