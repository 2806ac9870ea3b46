"""Floor 5: the demo's input: which files there are below a path, and what a job measures of one.
Imports nothing of this package.

Names are bytes: a name on Linux need not be text. A job's payload holds a file: URL, which is
ASCII and loses nothing.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote_from_bytes, unquote_to_bytes

# One job each; at some hundreds a second that is about ten seconds of work.
MOST_FILES = 5_000
# A look into a huge tree ends after so many names, a second or two, whatever they are.
MOST_NAMES = 100_000
# Read and hashed within milliseconds, so that no job lasts long.
MOST_BYTES = 8 * 1024 * 1024
# Where Git, too, looks for the NUL that text has not.
HEAD_BYTES = 8_000
CHUNK_BYTES = 256 * 1024

# Never opened for anything but data: a pipe would wait for its writer.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class File:
    """A file to measure, as it was found."""

    path: bytes
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """What lies below `root`: the files to measure, and how many things were passed over why."""

    root: bytes
    files: tuple[File, ...]
    skipped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Measures:
    """What a job finds out about a file. A word is what stands between white space."""

    sha256: str
    bytes: int
    lines: int
    words: int


def find(root: bytes) -> Found:
    """The files below `root`, or `root` itself, in order of their names.

    Symbolic links are not followed, so a loop is none; hidden folders and Python's caches are not
    entered. Raises OSError where `root` cannot be read at all.
    """
    root = os.path.realpath(root)
    skipped: Counter[str] = Counter()
    state = os.stat(root)
    if not stat.S_ISDIR(state.st_mode):
        reason = _reason(root, state)
        if reason is not None:
            raise OSError(f"is {reason}: choose a text file or a folder")
        return Found(root, (File(root, state.st_mtime_ns),), {})
    os.scandir(root).close()
    files: list[File] = []
    folders, names = [root], 0
    while folders:
        for entry in _entries(folders.pop(), skipped):
            names += 1
            if len(files) >= MOST_FILES or names > MOST_NAMES:
                skipped["beyond the limit"] += 1
                return Found(root, tuple(sorted(files, key=lambda file: file.path)), dict(skipped))
            reason = _look(entry, state.st_dev, files, folders)
            if reason is not None:
                skipped[reason] += 1
    return Found(root, tuple(sorted(files, key=lambda file: file.path)), dict(skipped))


def _entries(folder: bytes, skipped: Counter[str]) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        skipped["unreadable"] += 1
        return []


def _look(
    entry: os.DirEntry[bytes], device: int, files: list[File], folders: list[bytes]
) -> str | None:
    """Put the entry where it belongs, or say why it is passed over."""
    try:
        state = entry.stat(follow_symlinks=False)
    except OSError:
        return "unreadable"
    if stat.S_ISDIR(state.st_mode):
        if entry.name.startswith(b"."):
            return "hidden folders"
        if entry.name == b"__pycache__":
            return "caches"
        if state.st_dev != device:
            return "other file systems"
        folders.append(entry.path)
        return None
    reason = _reason(entry.path, state)
    if reason is None:
        files.append(File(entry.path, state.st_mtime_ns))
    return reason


def _reason(path: bytes, state: os.stat_result) -> str | None:
    if stat.S_ISLNK(state.st_mode):
        return "symbolic links"
    if not stat.S_ISREG(state.st_mode):
        return "special"
    if state.st_size > MOST_BYTES:
        return "huge"
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            return "binary" if b"\0" in os.read(descriptor, HEAD_BYTES) else None
        finally:
            os.close(descriptor)
    except OSError:
        return "unreadable"


def measure(path: bytes, check: Callable[[], None] = lambda: None) -> Measures:
    """Read and measure a file; `check` is called between pieces and may raise.

    Raises OSError, also where it is no longer what it was when it was found.
    """
    digest, size, lines, words, inside = sha256(), 0, 0, 0, False
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no longer a file")
        while piece := os.read(descriptor, CHUNK_BYTES):
            check()
            digest.update(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise OSError("it has grown too large")
            lines += piece.count(b"\n")
            # A word cut by the piece's edge was counted with the piece before.
            words += len(piece.split()) - (inside and not piece[:1].isspace())
            inside = not piece[-1:].isspace()
    finally:
        os.close(descriptor)
    return Measures(digest.hexdigest(), size, lines, words)


def url(path: bytes) -> str:
    """An absolute path as a file: URL."""
    return "file://" + quote_from_bytes(path)


def path_of(url: str) -> bytes:
    """The path in a file: URL made by `url`."""
    return unquote_to_bytes(url.removeprefix("file://"))


def shown(path: bytes) -> str:
    """A path as text: bytes that are not UTF-8, and NUL, as escapes."""
    return path.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
