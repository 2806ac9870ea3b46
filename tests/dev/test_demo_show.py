"""The demo is shown live on a terminal, in plain lines elsewhere, and no text of a user steers the
terminal."""

import io
import os
import pty
import sys
from collections.abc import Iterator
from typing import IO

import pytest

from reliable_worker.dev.demo_report import Report, Story
from reliable_worker.dev.demo_show import Plain, Show, choose

TOTALS = {"files_done": 3, "running": 2, "waiting": 5, "retried": 1, "dead": 0}
RED = "\x1b[31mred[/] [bold]"
STORY = Story("welcome-1001", "running", 1, 5, 1, RED)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[IO[str], int]]:
    """A terminal of 100 columns to write to, and the descriptor that shows what it got."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w", encoding="utf-8")
    yield stream, master
    stream.close()
    os.close(master)


def read_all(master: int) -> str:
    """What the closed terminal got."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            piece = b""
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)


def play(show: Show, violations: list[str]) -> None:
    report = Report(5, "/some/where", stories=[STORY], dead=["welcome-1001"])
    report.violations = violations
    with show:
        show.note(f"found {RED}")
        show.update(8, TOTALS, [STORY])
    show.end(report)


@pytest.mark.parametrize("violations", [[], ["2 effects duplicated, such as file-0001"]])
def test_a_terminal_gets_the_live_display(
    terminal: tuple[IO[str], int], violations: list[str]
) -> None:
    stream, master = terminal
    show = choose(stream)
    assert type(show).__name__ == "Live"
    play(show, violations)
    stream.close()
    seen = read_all(master)
    assert "3 of 8 files done" in seen
    assert "welcome-1001" in seen
    assert "recovery" in seen
    assert "\x1b[?25h" in seen  # the cursor is back
    assert RED not in seen
    assert "red[/] [bold]" in seen  # no markup of ours
    assert ("next:" in seen) is (not violations)
    assert ("effects duplicated" in seen) is bool(violations)


def test_where_there_is_no_rich_a_terminal_gets_lines(
    terminal: tuple[IO[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".", 1)[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "reliable_worker.dev.demo_live", raising=False)
    stream, _ = terminal
    assert isinstance(choose(stream), Plain)
    monkeypatch.undo()
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose(stream), Plain)


def test_lines_elsewhere() -> None:
    stream = io.StringIO()
    show = choose(stream)
    assert isinstance(show, Plain)
    play(show, [])
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith(r"found \x1b[31mred[/] [bold]")
    assert lines[1].endswith("3 of 8 files done; 2 running, 5 waiting, 1 retried, 0 dead")
    assert "welcome-1001 (\\x1b[31mred[/] [bold]), NOT as expected" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_name_the_terminal_cannot_write_is_escaped() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        Plain(stream).note("grün")
        assert raw.getvalue().endswith(b"gr\\xfcn\n")
