"""The shapes of a line: JSON for programs, text for a terminal, fields for the journal.

Floor 0; imports nothing of the package. Each takes the fields of a line, already bounded and free
of secrets, and its JSON text; all give ASCII without control characters but the line ends between a
journal entry's fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

Fields = Mapping[str, object]
Shape = Callable[[Fields, str], str]

# syslog's numbers, by which `journalctl -p` selects.
_PRIORITIES = {"error": 3, "warning": 4, "info": 6, "debug": 7}
_PREFIX = "RELIABLE_WORKER_"
_IDENTIFIER = "reliable-worker"

_COLOURS = {"error": "31", "warning": "33", "info": "32", "debug": "2"}
_NAME_WIDTH = 16
_LEVEL_WIDTH = 7
_DATE_LENGTH = len("2026-01-01T")


def as_json(fields: Fields, line: str) -> str:
    """The line as it is."""
    return line


def as_text(fields: Fields, line: str) -> str:
    """Time, level, event, then name=value."""
    return _text(fields, lambda code, text: text)


def as_coloured_text(fields: Fields, line: str) -> str:
    """The same with the level's colour, for a terminal that shows it."""
    return _text(fields, lambda code, text: f"\x1b[{code}m{text}\x1b[0m")


def for_journal(shape: Shape) -> Shape:
    """An entry of journald's native protocol whose message has the shape given."""

    def entry(fields: Fields, line: str) -> str:
        priority = _PRIORITIES.get(str(fields.get("level")), 6)
        said = [
            f"MESSAGE={shape(fields, line)}",
            f"PRIORITY={priority}",
            f"SYSLOG_IDENTIFIER={_IDENTIFIER}",
        ]
        said += [
            f"{_PREFIX}{name.upper()}={_plain(value)}"
            for name, value in fields.items()
            if name not in ("time", "level")
        ]
        return "\n".join(said)

    return entry


def _text(fields: Fields, paint: Callable[[str, str], str]) -> str:
    given = dict(fields)
    time = str(given.pop("time", ""))[_DATE_LENGTH:]
    level = str(given.pop("level", ""))
    name = str(given.pop("event", ""))
    head = f"{time} {paint(_COLOURS.get(level, '0'), level.ljust(_LEVEL_WIDTH))}"
    rest = " ".join(f"{paint('2', f'{key}=')}{_word(value)}" for key, value in given.items())
    return f"{head} {name.ljust(_NAME_WIDTH)} {rest}".rstrip()


def _word(value: object) -> str:
    """A value as one word, in quotes where it would not be one."""
    text = _plain(value)
    return _ascii(value) if set(text) & set(' "=') else text


def _plain(value: object) -> str:
    """A value on one line: a text without its quotes, everything else as JSON."""
    text = _ascii(value)
    return text[1:-1] if isinstance(value, str) else text


def _ascii(value: object) -> str:
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
