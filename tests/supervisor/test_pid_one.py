"""Shows the supervisor as PID 1 of a container: it drains on SIGTERM and leaves no zombie."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.commands import COMMAND_SECONDS
from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import MODULE, SECONDS, Start

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
EXEC = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def _permitted() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        [*UNSHARE, "true"], check=False, capture_output=True, timeout=COMMAND_SECONDS
    )
    return done.returncode == 0


def _children(pid: int) -> list[int]:
    """Its children as seen from outside the namespace, zombies too."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not _permitted(), reason="this machine permits no PID namespace (unshare)")
def test_pid_one_drains_and_reaps_strangers(run: Start) -> None:
    fleet = run(workers=1, processes=1, command=("-c", EXEC, *UNSHARE, sys.executable, *MODULE))
    assert fleet.wait_event("supervisor_started", SECONDS)["pid"] == 1
    fleet.wait_ready()
    (supervisor,) = _children(fleet.pid)
    assert len(_children(supervisor)) == 2
    fleet.tell(fleet.wait_pids("worker", 1)[0], "orphan")
    wait_until(lambda: len(_children(supervisor)) == 3, SECONDS, "an orphan of PID 1")
    wait_until(lambda: len(_children(supervisor)) == 2, SECONDS, "the orphan reaped")
    fleet.kill(supervisor, signal.SIGTERM)
    assert fleet.wait(SECONDS) == 0
    assert fleet.find("shutdown_complete", killed=0)
    fleet.assert_nobody_left()
