"""A machine per module that needs one; the wheels are built once."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.commands import ROOT
from tests.systemd.machine import Machine, build_wheels, stage, why_not

PAGE = ROOT / "docs" / "operating" / "install.md"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a package index would offer the machine; skips where no systemd can be booted."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no systemd of our own here: {reason}")
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def machine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted machine with PostgreSQL running; afterwards nothing of it is left."""
    folder = tmp_path_factory.mktemp("machine")
    before = mounts()
    machine = Machine(folder, stage(folder / "stage", wheels))
    try:
        machine.systemctl("start", "database")
        yield machine
        inside = machine.processes()
        assert inside
    finally:
        machine.close()
    assert machine.groups() == []
    assert mounts() == before
    assert not [pid for pid in inside if alive_in(pid, machine)]


def mounts() -> list[str]:
    """This process's mounts, in words."""
    return Path("/proc/self/mountinfo").read_text("utf-8").splitlines()


def alive_in(pid: int, machine: Machine) -> bool:
    return pid in machine.processes() and os.path.exists(f"/proc/{pid}")


def blocks() -> dict[str, list[str]]:
    """The commands of the install page, by section."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        found[title] = re.findall(r"^```sh as-root\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return found


def install(machine: Machine) -> None:
    """Do what the page says, up to a running service."""
    page = blocks()
    for title in (
        "The account and the program",
        "The database",
        "The units and the settings",
        "The schema, the rights, the start",
    ):
        for script in page[title]:
            machine.shell(script)
