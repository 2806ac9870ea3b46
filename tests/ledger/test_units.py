"""systemd accepts the ledger's units, and they may do little; the example environment loads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from reliable_worker.ledger.settings import FIELDS, load, variable
from tests.fixtures.commands import COMMAND_SECONDS, ROOT

FOLDER = ROOT / "systemd"
PROGRAM = "/opt/ledger/bin/reliable-ledger"
SERVICES = sorted(FOLDER.glob("ledger*.service"))
UNITS = [*SERVICES, FOLDER / "ledger-verify.timer"]
THRESHOLD = 15  # tenths: 1.5

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="nobody can judge the units here"
)


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_no_complaint(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "reliable-ledger"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for each in UNITS:
        (tmp_path / each.name).write_text(each.read_text().replace(PROGRAM, str(program)))
    done = analyze("verify", "--man=no", str(tmp_path / unit.name))
    assert [line for line in done.stderr.splitlines() if "ledger" in line] == []
    assert done.returncode == 0


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_exposure_is_at_most_one_and_a_half(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={THRESHOLD}", str(unit))
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


def test_the_unit_says_what_the_deployment_relies_on() -> None:
    text = (FOLDER / "ledger.service").read_text()
    for line in (
        "User=ledger",
        "WorkingDirectory=/opt/ledger",
        "EnvironmentFile=/etc/ledger/ledger.env",
        f"ExecStart={PROGRAM} serve",
        "TimeoutStopSec=15s",
        "KillSignal=SIGTERM",
        "Restart=on-failure",
        "RestartPreventExitStatus=2 4",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
    ):
        assert f"\n{line}\n" in text
    assert "migrate" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def test_the_example_environment_is_one_that_loads() -> None:
    lines = (FOLDER / "ledger.env.example").read_text().splitlines()
    given = [match for line in lines if (match := re.fullmatch(r"#?([A-Z_]+)=(.*)", line))]
    assert {match[1] for match in given} <= {variable(name) for name in FIELDS}
    assert load({match[1]: match[2] for match in given}).database_url.startswith("postgresql://")
