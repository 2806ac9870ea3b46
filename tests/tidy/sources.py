"""The files the rules apply to, parsed once."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "reliable_worker"
TESTS = ROOT / "tests"

TEXT_SUFFIXES = {
    *(".py", ".sql", ".md", ".cfg", ".toml", ".ini", ".sh", ".service", ".example", ".yaml")
}
# What builds, tools and runs leave in a checkout.
MADE = {".git", ".venv", ".tox", "build", "dist", "__pycache__", ".hypothesis"}


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its name from the root, its text, its tree."""

    name: str
    text: str
    tree: ast.Module

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def at(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.name}:{node.lineno}"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(place: Path) -> tuple[Source, ...]:
    """Every Python file below `place`."""
    return tuple(
        Source(name_of(path), text, ast.parse(text, filename=str(path)))
        for path in sorted(place.rglob("*.py"))
        for text in [path.read_text("utf-8")]
    )


def sources() -> tuple[Source, ...]:
    """Every Python file of the package and its tests."""
    return parsed(PACKAGE) + parsed(TESTS)


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Name and text of every text file of the repository."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        made = MADE.intersection(inside.parts) or any("_cache" in part for part in inside.parts)
        named = path.suffix in TEXT_SUFFIXES or path.parent.name == ".ci" or path.name == "Makefile"
        if named and not made and path.is_file() and ".egg-info" not in inside.parts[0]:
            found.append((name_of(path), path.read_text("utf-8")))
    return tuple(found)


def called(node: ast.Call) -> str:
    """The dotted name a call is written with: `time.sleep`, `self.thread.join`; "" if no name."""
    parts: list[str] = []
    target: ast.expr = node.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    parts.append(target.id if isinstance(target, ast.Name) else "")
    return ".".join(reversed(parts))


def none(found: list[str], what: str) -> None:
    """Fail with every place found, one a line."""
    assert not found, f"{what}:\n" + "\n".join(found)
