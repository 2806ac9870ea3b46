"""Runs of the real supervisor with scripted children, for every test of this folder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.commands import ROOT, Fleet, as_environment, clean_environment
from tests.fixtures.waiting import wait_until

SECONDS = 20.0  # generous: two cores, shared with everything else that runs
MODULE = ("-m", "tests.supervisor.scripted")


class Run(Fleet):
    """A scripted supervisor; its orders are files in `folder`."""

    def __init__(
        self, folder: Path, args: list[str], env: Mapping[str, str], command: tuple[str, ...]
    ) -> None:
        self.folder = folder
        super().__init__(args, {**env, "SCRIPT_FOLDER": str(folder)}, ROOT, command)

    def tell(self, who: int | str, *orders: str) -> None:
        """Order a child (by pid), all children of a role at their start, or set a file.

        A rename, so that nobody reads half an order.
        """
        draft = self.folder / f".{who}"
        draft.write_text(" ".join(orders))
        draft.rename(self.folder / str(who))

    def heard(self, say: str) -> list[dict[str, Any]]:
        """What maintenance has heard so far, of one kind."""
        path = self.folder / "heard"
        lines = path.read_text().splitlines() if path.exists() else []
        return [message for line in lines if (message := json.loads(line))["say"] == say]

    def obituary(self, pid: int) -> dict[str, Any]:
        """What maintenance heard of this child's death; waits for it, and for the log to say it."""
        boot = self.wait_event("child_exited", SECONDS, pid=pid)["boot"]
        found = wait_until(
            lambda: [o for o in self.heard("obituary") if o["boot"] == boot],
            SECONDS,
            f"obituary of {pid}",
        )
        return found[0]

    def pids(self, role: str) -> list[int]:
        """The living children of a role that have said ready, oldest first."""
        gone = {event["pid"] for event in self.find("child_exited")}
        ready = [event["pid"] for event in self.find("child_ready", role=role)]
        return [pid for pid in ready if pid not in gone]

    def wait_pids(self, role: str, count: int, seconds: float = SECONDS) -> list[int]:
        """`count` living children of a role."""

        wait_until(lambda: len(self.pids(role)) == count, seconds, f"{count} {role} children")
        return self.pids(role)

    def wait_ready(self, seconds: float = SECONDS) -> None:
        self.wait_event("supervisor_ready", seconds)

    def wait_stderr(self, text: str) -> None:
        wait_until(lambda: text in self.stderr(), SECONDS, f"{text!r} on stderr")

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def assert_nobody_left(self) -> None:
        assert self.processes() == []


Start = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Start]:
    """Starts scripted supervisors; all are reaped when the test ends.

    `run("--once", workers=3, orders={"worker": "raise"})`; settings go by the environment.
    """
    started: list[Run] = []

    def start(
        *args: str,
        env: Mapping[str, str] | None = None,
        orders: Mapping[str, str] | None = None,
        command: tuple[str, ...] = MODULE,
        **settings: object,
    ) -> Run:
        folder = tmp_path / f"run-{len(started)}"
        folder.mkdir()
        for who, words in (orders or {}).items():
            (folder / who).write_text(words)
        values = {
            "database_url": "postgresql://nobody@nowhere.invalid/none",
            "metrics_address": "127.0.0.1:0",
            "workers": 2,
            "processes": 2,
            **settings,
        }
        environment = clean_environment(**as_environment(values), **(env or {}))
        started.append(Run(folder, list(args), environment, command))
        return started[-1]

    yield start
    for one in started:
        one.kill_all()
