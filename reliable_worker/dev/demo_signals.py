"""Floor 5: how a demo is interrupted: where it asks, never in the middle of something. Imports
nothing of this package.

An exception out of a signal handler could come anywhere: in a connect, whose half-open session
would then keep DROP DATABASE waiting for its authentication_timeout; in the clean-up itself.
"""

import signal
from types import FrameType
from typing import Any, Self

# A closed terminal and a polite kill end a demo as Ctrl-C does.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within its block SIGNALS are remembered, for `check`. One that was ignored before (nohup)
    stays ignored; after an interrupted block all are, since what follows is only the end."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.asked else before)

    def check(self) -> None:
        """Raise KeyboardInterrupt once a signal has come."""
        if self.asked:
            raise KeyboardInterrupt

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
