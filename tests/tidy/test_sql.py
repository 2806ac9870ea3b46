"""Every statement of the package is a file of its own: described, alone, accepted as written."""

import re
from pathlib import Path

import psycopg
import pytest

from tests.tidy.sources import PACKAGE, name_of, none

FILES = sorted(PACKAGE.glob("*/sql/*.sql"))

# Strings, quoted names and comments, inside which a semicolon ends nothing.
QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)

# What PREPARE takes; BEGIN, LISTEN and their kin are run by the tests of their callers.
PREPARABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE|VALUES)\b")


def _bare(text: str) -> str:
    return QUOTED.sub(" ", text)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_one_described_statement(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith("-- "), "opens with a comment that says what it is for"
    assert text.endswith("\n")
    assert _bare(text).strip().rstrip(";").count(";") == 0, "one statement a file"
    used = set(re.findall(r"\$(\d+)", _bare(text)))
    described = set(re.findall(r"\$(\d+)", "\n".join(re.findall(r"--[^\n]*", text))))
    assert used <= described, f"parameters without a description: {sorted(used - described)}"


@pytest.mark.quick
def test_every_statement_is_valid_as_written(conn: psycopg.Connection) -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        if PREPARABLE.match(_bare(text)):
            conn.execute(f"PREPARE tidy AS {text}", prepare=False)
            conn.execute("DEALLOCATE tidy")


def test_every_statement_is_used() -> None:
    """By its name, or by the rest of it where a module puts its own prefix before all of them."""
    python = "\n".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    idle = [
        name_of(path)
        for path in FILES
        if not any(f'"{name}"' in python for name in (path.stem, path.stem.partition("_")[2]))
    ]
    none(idle, "statements nobody calls")
