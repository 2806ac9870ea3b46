"""Floor 5: the supervisor of the demo, a subprocess as an operator would start it, and what its log
says. May import settings and jobs.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import reliable_worker
from reliable_worker.jobs.deadline import boottime
from reliable_worker.settings import PLAIN_VARIABLES, PREFIX

APP = "reliable_worker.dev.demo_jobs:app"
# Two processes, so that one can be killed while the other works, of two threads each: the least
# that shows both, and what the smallest machine carries.
WORKERS, PROCESSES = 4, 2

# The default stop budget is 10 s; a supervisor that needs half as much again hangs.
STOP_SECONDS = 15.0
KILL_SECONDS = 5.0
# The log's last lines are read after the end of the process that wrote them.
READ_SECONDS = 5.0

_PR_SET_PDEATHSIG = 1

Json = dict[str, Any]


class Fleet:
    """A running `reliable-worker run`. Its log is read by a thread of this class; every other
    method belongs to the thread that made it, which must live as long as the fleet."""

    def __init__(self, database_url: str) -> None:
        self.counts: Counter[str] = Counter()  # events so far, by name
        self._events: list[Json] = []
        self._taken = 0
        self._children: dict[str, Json] = {}  # by boot id
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reliable_worker", "run", "--app", APP],
            env=_environment(database_url),
            # Where this package is found, whether installed or a checkout.
            cwd=Path(reliable_worker.__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # A Ctrl-C in the terminal is for the demo, which then ends its supervisor in order.
            start_new_session=True,
            preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509 no thread exists yet
        )
        self._reader = threading.Thread(target=self._read, name="demo-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self) -> list[Json]:
        """The events since the last call, oldest first, those of single successes left out."""
        events = self._events[self._taken :]
        self._taken += len(events)
        for event in events:
            if event["event"] == "child_started":
                self._children[str(event.get("boot"))] = event
        return events

    def pid_of(self, boot: str) -> int | None:
        """The pid of the child with that boot id, as far as `take` has seen."""
        child = self._children.get(boot)
        return None if child is None else int(child["pid"])

    def wait(self, seconds: float) -> int | None:
        """Wait for the end; the exit code, None if it runs on."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        """The last line that the supervisor wrote to stderr."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def drain(self) -> tuple[int | None, float]:
        """SIGTERM and the wait for the end: exit code (None: it had to be killed), seconds."""
        began = boottime()
        self._process.terminate()
        code = self.wait(STOP_SECONDS)
        seconds = boottime() - began
        self.close()
        return code, seconds

    def close(self) -> None:
        """End it whatever it does; a second call does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
            if self.wait(STOP_SECONDS) is None:
                self._process.kill()
                self.wait(KILL_SECONDS)
        self._reader.join(READ_SECONDS)
        self._stderr.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.closing(self._process.stdout) as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict) and "event" in event:
                    self.counts[event["event"]] += 1
                    if event["event"] != "job_succeeded":
                        self._events.append(event)


def _environment(database_url: str) -> dict[str, str]:
    """This environment without a setting of any worker, and with the demo's."""
    ours = {*PLAIN_VARIABLES.values(), "NOTIFY_SOCKET"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith((PREFIX, "WATCHDOG_"))
    }
    return kept | {
        "DATABASE_URL": database_url,
        "METRICS_ADDRESS": "127.0.0.1:0",
        "WORKERS": str(WORKERS),
        "PROCESSES": str(PROCESSES),
    }


def _dies_with(parent: int) -> Callable[[], None] | None:
    """What makes a new process get a SIGTERM when `parent` dies, if only by SIGKILL."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
