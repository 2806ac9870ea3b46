"""Files whose names are legal and break programs."""

import os
from pathlib import Path

# White space, a line end, markup, an option, a quote, a
# terminal's escape, bytes that are no UTF-8, 255 bytes.
ODD_NAMES = [
    b"with space",
    b"with\nline end",
    b"[bold]markup",
    b"--json",
    b"quote'\"",
    b"\x1b[31mred",
    b"\xff\xfe\x80",
    "grün".encode(),
    b"n" * 255,
    b"%41",
]


def content(name: bytes) -> bytes:
    """What the file of that name holds."""
    return b"content of " + name


def fill(folder: Path) -> None:
    """Write one file of each name."""
    for name in ODD_NAMES:
        Path(folder, os.fsdecode(name)).write_bytes(content(name))
