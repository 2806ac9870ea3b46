"""Shows that systemd accepts the units as they are shipped, and how little they may do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from reliable_worker.settings import FIELDS, load, variable
from tests.fixtures.commands import COMMAND_SECONDS, ROOT

FOLDER = ROOT / "systemd"
UNITS = sorted(FOLDER.glob("reliable-worker*.service"))
PROGRAM = "/opt/reliable-worker/bin/reliable-worker"
# Tenths: systemd counts exposure from 0 to 10, and 1.5 is the most we allow.
THRESHOLD = 15

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed, so nobody can judge the units here",
)


def _values(unit: Path) -> dict[str, list[str]]:
    """Every assignment of a unit file, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def _analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )


def _verify(unit: Path) -> tuple[int, str]:
    done = _analyze("verify", "--man=no", str(unit))
    # Complaints about other units of this machine are not ours to mend.
    mine = [line for line in done.stderr.splitlines() if unit.name in line]
    return done.returncode, "\n".join(mine)


def _installed(unit: Path, folder: Path) -> Path:
    """A copy whose program exists: verify looks whether it may be executed."""
    program = folder / "reliable-worker"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = folder / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, str(program)))
    return copy


def test_both_units_are_there() -> None:
    assert [unit.name for unit in UNITS] == [
        "reliable-worker-migrate.service",
        "reliable-worker.service",
    ]


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_no_complaint(unit: Path, tmp_path: Path) -> None:
    assert _verify(_installed(unit, tmp_path)) == (0, "")


@needs_systemd
def test_a_complaint_would_be_seen(tmp_path: Path) -> None:
    copy = _installed(FOLDER / "reliable-worker.service", tmp_path)
    copy.write_text(copy.read_text().replace("Type=notify", "Type=nonsense\nWatchDog=1"))
    _, complaints = _verify(copy)
    assert "service type" in complaints
    assert "WatchDog" in complaints


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_exposure_is_at_most_one_and_a_half(unit: Path) -> None:
    words = ("security", "--offline=true", f"--threshold={THRESHOLD}")
    done = _analyze(*words, str(unit))
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    judged = json.loads(_analyze(*words, "--json=short", str(unit)).stdout)
    # Nothing that a queue worker has no use for is left open without a reason.
    assert {item["json_field"] for item in judged if item["set"] is False} <= {
        "RootDirectoryOrRootImage",  # a chroot would need the interpreter and its libraries in it
        "PrivateMounts",  # it may not mount at all; reload needs no mount propagation
        "RestrictAddressFamilies_AF_UNIX",  # the database's socket, systemd's
        "RestrictAddressFamilies_AF_INET_INET6",  # the database
        "PrivateNetwork",
        "DeviceAllow",  # ProtectClock adds the clock, to read
        "IPAddressDeny",  # a drop-in: only the operator knows the address
        "ProcSubset",  # /proc/stat says when the machine booted: process_start_time_seconds
    }


def test_the_worker_unit_says_what_the_deployment_relies_on() -> None:
    values = {
        name: lines[-1] for name, lines in _values(FOLDER / "reliable-worker.service").items()
    }
    expected = {
        "After": "network-online.target",
        "Wants": "network-online.target",
        "User": "reliable-worker",
        "Group": "reliable-worker",
        "WorkingDirectory": "/opt/reliable-worker",
        "EnvironmentFile": "/etc/reliable-worker/worker.env",
        "ExecStart": f"{PROGRAM} run",
        "Type": "notify",
        "KillMode": "mixed",
        "WatchdogSec": "30s",
        "ExecReload": "/bin/kill -HUP $MAINPID",
        "Restart": "on-failure",
        "RestartSec": "3s",
        "RestartPreventExitStatus": "2 4",
        "TimeoutStopSec": "15s",
        "KillSignal": "SIGTERM",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
        "WantedBy": "multi-user.target",
    }
    assert {name: values.get(name) for name in expected} == expected


def test_starting_the_worker_runs_no_migration() -> None:
    worker = _values(FOLDER / "reliable-worker.service")
    migrate = _values(FOLDER / "reliable-worker-migrate.service")
    for name in ("Requires", "Wants", "BindsTo", "Upholds", "ExecStartPre"):
        assert not any("migrate" in value for value in worker.get(name, []))
    assert migrate["Type"] == ["oneshot"]
    assert migrate["ExecStart"] == [f"{PROGRAM} migrate up"]
    assert "WantedBy" not in migrate
    assert "RequiredBy" not in migrate


def test_the_example_environment_is_one_that_loads() -> None:
    lines = (FOLDER / "worker.env.example").read_text().splitlines()
    given = [re.fullmatch(r"#?([A-Z_]+)=(.*)", line) for line in lines]
    named = {match[1]: match[2] for match in given if match is not None}
    assert "DATABASE_URL" in named
    known = {variable(name) for name in FIELDS}
    assert set(named) - known == {"RELIABLE_WORKER_CONFIG"}
    active = {match[1]: match[2] for match in given if match and not match[0].startswith("#")}
    assert load(environ=active).database_url == named["DATABASE_URL"]
