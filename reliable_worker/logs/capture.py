"""Other people's words as log lines: `logging`, `warnings`, and exceptions nobody caught.

Floor 0; imports `line` and `jobs`. A handler's own log message is its author's business and is
kept; of exceptions the log has class and first line, the stack goes to stderr.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from reliable_worker.jobs.events import emit
from reliable_worker.logs.about import ABOUT
from reliable_worker.logs.line import LineFormatter

Admit = Callable[[str, str, str], bool]


class RecordHandler(logging.Handler):
    """Hands every record's line to `put`, without a lock: a forked child inherits none in use."""

    def __init__(self, put: Callable[[str], None], formatter: LineFormatter, admit: Admit) -> None:
        super().__init__()
        self._put = put
        self._admit = admit
        self.setFormatter(formatter)

    def createLock(self) -> None:
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """As the original, which insists on a lock from Python 3.13 on."""
        passed: object = self.filter(record)  # a record, from 3.12 on
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        # A record whose arguments do not fit its message is its author's mistake, and no reason to
        # print a traceback with those arguments.
        with contextlib.suppress(Exception):
            if record.levelno < logging.WARNING or self._admit(
                record.name, record.levelname.lower(), record.getMessage()
            ):
                self._put(self.format(record))


def install(put: Callable[[str], None], level: int, formatter: LineFormatter, admit: Admit) -> None:
    """Become the root logger's only handler, and the hooks of warnings and lost exceptions.

    `admit(name, level, text)`: whether a warning or error is written, or only counted.
    """
    root = logging.getLogger()
    root.handlers[:] = [RecordHandler(put, formatter, admit)]
    root.setLevel(level)
    warnings.showwarning = _warned
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def _warned(  # noqa: PLR0917 -- the signature is that of warnings.showwarning
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = f"{category.__name__}: {message}"
    emit("warning", "warning", message=text, where=f"{filename}:{lineno}", **ABOUT.get())


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    emit("uncaught", "error", error=error, where=threading.current_thread().name)
    _show_stack(kind, trace)


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit:
        return
    where = args.thread.name if args.thread is not None else None
    emit("uncaught", "error", error=args.exc_value or args.exc_type.__name__, where=where)
    _show_stack(args.exc_type, args.exc_traceback)


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    where = getattr(args.object, "__qualname__", type(args.object).__name__)
    emit("uncaught", "error", error=args.exc_value or args.exc_type.__name__, where=where)
    _show_stack(args.exc_type, args.exc_traceback)


def _show_stack(kind: type[BaseException], trace: TracebackType | None) -> None:
    """Where it happened, without the message, whose text may hold a payload."""
    with contextlib.suppress(Exception):
        stack = "".join(traceback.format_tb(trace))
        sys.stderr.write(f"Traceback (most recent call last):\n{stack}{kind.__name__}\n")
        sys.stderr.flush()
