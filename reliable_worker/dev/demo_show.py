"""Floor 5: the demo on its way to the eye: lines that stay, and a display of how far it is. Imports
its sibling modules, and rich where that is installed and the output is a terminal.
"""

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol, Self

from reliable_worker.dev.demo_report import NEXT, Report, Story
from reliable_worker.jobs.deadline import boottime

# Plain lines go to logs as well: one a second tells enough.
LINE_SECONDS = 1.0

Totals = Mapping[str, Any]


def printable(text: str) -> str:
    """`text` on one line, with what may steer a terminal as escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


class Show(Protocol):
    """How a demo is shown."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def note(self, text: str) -> None:
        """A line that stays: something happened."""

    def update(self, files: int, totals: Totals, stories: Sequence[Story]) -> None:
        """How far it is."""

    def end(self, report: Report) -> None:
        """The table, and what to do next."""


class Plain:
    """Lines of text, for logs, pipes and where there is no rich."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._began = boottime()
        self._told = ""
        self._told_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def note(self, text: str) -> None:
        self._line(f"{boottime() - self._began:5.1f} s  {printable(text)}")

    def update(self, files: int, totals: Totals, stories: Sequence[Story]) -> None:
        told = counts(files, totals)
        now = boottime()
        if told != self._told and now - self._told_at >= LINE_SECONDS:
            self._told, self._told_at = told, now
            self.note(told)

    def end(self, report: Report) -> None:
        self._line("")
        for name, value, remark in report.rows():
            self._line(f"  {name:<18}{value:>9}   {printable(remark)}".rstrip())
        self._line("")
        self._line(printable(verdict(report)))
        if report.ok:
            self._line("next:")
            wide = max(len(command) for command, _ in NEXT)
            for command, why in NEXT:
                self._line(f"  {command:<{wide}}  {why}")

    def _line(self, text: str) -> None:
        # A name may hold what this terminal's encoding has not.
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=self._stream)
        self._stream.flush()


def counts(files: int, totals: Totals) -> str:
    """The totals in a line."""
    return (
        f"{totals['files_done']} of {files} files done;"
        f" {totals['running']} running, {totals['waiting']} waiting,"
        f" {totals['retried']} retried, {totals['dead']} dead"
    )


def verdict(report: Report) -> str:
    """The last word, in a line."""
    if report.ok:
        return (
            f"Every effect exactly once, nothing lost, {report.seconds:.1f} s in all."
            f" (seed {report.seed})"
        )
    return f"FAILED (seed {report.seed}): {'; '.join(report.violations)}"


def choose(stream: IO[str]) -> Show:
    """The live display on a terminal where rich is installed, plain lines elsewhere."""
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        try:
            from reliable_worker.dev.demo_live import Live
        except ModuleNotFoundError:
            return Plain(stream)
        return Live(stream)
    return Plain(stream)
