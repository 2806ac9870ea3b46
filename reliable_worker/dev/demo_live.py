"""Floor 5: the demo's live display, by rich. Loaded only where rich is installed and the output is
a terminal. Imports its sibling modules.
"""

from collections.abc import Sequence
from typing import IO, Self

from rich import box, live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reliable_worker.dev.demo_report import NEXT, Report, Story
from reliable_worker.dev.demo_show import Totals, counts, printable, verdict
from reliable_worker.jobs.deadline import boottime

BAR_COLUMNS = 40
# Smooth to the eye; more would only write more to a slow terminal.
FRAME_SECONDS = 0.1

_COLOURS = {"ready": "yellow", "running": "cyan", "succeeded": "green", "dead": "red"}


class Live:
    """A bar for the files, a row for each job with a story, and above them the lines that stay."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream, highlight=False)
        # Drawn by whoever calls update: no thread, so that an interrupt finds a whole display.
        self._live = live.Live(console=self._console, auto_refresh=False, transient=True)
        self._began = boottime()
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        line = Text(f"{boottime() - self._began:5.1f} s  ", style="dim")
        line.append(printable(text), style="not dim")
        self._console.print(line)

    def update(self, files: int, totals: Totals, stories: Sequence[Story]) -> None:
        now = boottime()
        if now - self._drawn_at < FRAME_SECONDS:
            return
        self._drawn_at = now
        bar = ProgressBar(total=max(1, files), completed=totals["files_done"], width=BAR_COLUMNS)
        line = Text(f"  {counts(files, totals)}", style="dim")
        self._live.update(Group(Text(), _indented(bar), line, _stories(stories)), refresh=True)

    def end(self, report: Report) -> None:
        self._live.stop()
        table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(style="dim")
        for name, value, remark in report.rows():
            table.add_row(name, value, Text(printable(remark)))
        self._console.print(table)
        self._console.print(Text(printable(verdict(report)), "green" if report.ok else "bold red"))
        if report.ok:
            following = Table.grid(padding=(0, 2))
            for command, why in NEXT:
                following.add_row(Text(f"  {command}", "cyan"), Text(why, "dim"))
            self._console.print(Text("next:"), following, sep="\n")


def _indented(what: RenderableType) -> RenderableType:
    grid = Table.grid(padding=(0, 0, 0, 2))
    grid.add_row("", what)
    return grid


def _stories(stories: Sequence[Story]) -> Table:
    table = Table.grid(padding=(0, 2))
    for story in stories:
        done = Text(story.state, _COLOURS.get(story.state, ""))
        count = Text(f"attempt {story.attempts} of {story.max_attempts}", "dim")
        crashed = Text(f"crashes {story.crashes}" if story.crashes else "", "red")
        error = Text(printable(story.last_error or ""), "dim", no_wrap=True, overflow="ellipsis")
        table.add_row(Text(f"  {story.key}"), done, count, crashed, error)
    return table
