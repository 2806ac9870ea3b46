"""How verbs answer: a table for people, one JSON value for programs.

Floor 7; imports the standard library. Colours only on a terminal, and not where NO_COLOR is set.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

_COLOURS = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"}


def print_json(value: object) -> None:
    """One JSON value on a line; dataclasses as objects, instants as RFC 3339 in UTC."""
    print(json.dumps(value, default=_plain, ensure_ascii=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns, numbers to the right; None is a dash."""
    cells = [[text(value) for value in row] for row in rows]
    widths = [
        max(len(head), *(len(row[i]) for row in cells)) if cells else len(head)
        for i, head in enumerate(heads)
    ]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
             for i in range(len(heads))]  # fmt: skip
    print(paint(_line(heads, widths, right), "bold"))
    for row in cells:
        print(_line(row, widths, right))


def text(value: object) -> str:
    """A value in one line of a table: control characters escaped, as they may steer a terminal."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, float):
        return f"{value:.1f}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in
                   str(value))  # fmt: skip


def paint(words: str, colour: str) -> str:
    """`words` in a colour, where the terminal shows colours and its owner wants them."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return words
    return f"\033[{_COLOURS[colour]}m{words}\033[0m"


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(type(value).__name__)
