"""Truth 2 under fire: concurrent workers never hold the same live lease.

Four supervisors of eight threads run 5,000 jobs with a lease of 3 s, while processes are killed
and stopped at random; the audit trigger and the handlers' own rows are the judges. The seed is
printed; TRUTH_SEED repeats one.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

JOBS = 5000
FLEETS = 4
SETTINGS: dict[str, object] = {"lease_seconds": 3, "workers": 8, "processes": 2, "prefetch": 8}
# Faults end after this many seconds, and what is left must then be worked off.
FAULT_SECONDS = 30.0
PAUSE_SECONDS = (0.1, 1.0)
# A stop longer than the lease makes a zombie; a shorter one a pause.
STOP_SECONDS = (0.5, 4.5)


class Havoc:
    """Kills and stops processes of fleets, remembering every pid it touched."""

    def __init__(self, start: Callable[[], Fleet], seed: int) -> None:
        self._start = start
        self._random = random.Random(seed)
        self._stopped: list[tuple[float, list[int]]] = []
        self.fleets = [start() for _ in range(FLEETS)]
        self.touched: set[int] = set()
        self.done: dict[str, int] = {}

    def step(self) -> None:
        """One fault, and the end of those stops that are due."""
        self._continue(time.monotonic())
        where = self._random.randrange(FLEETS)
        fault = self._random.choices(
            ["child", "fleet", "parent", "stop_child", "stop_fleet"], weights=[5, 2, 1, 3, 2]
        )[0]
        if self._act(fault, where):
            self.done[fault] = self.done.get(fault, 0) + 1

    def end(self) -> None:
        """No stop lasts."""
        self._continue(float("inf"))

    def _act(self, fault: str, where: int) -> bool:
        fleet = self.fleets[where]
        everyone = fleet.processes()
        # A suspect is alone in its process so that its death proves its guilt: random deaths there
        # would bury innocents, rightly.
        alone = {event["pid"] for event in fleet.find("child_started", role="quarantine")}
        children = [pid for pid in everyone if pid != fleet.pid and pid not in alone]
        if not children:
            return False
        match fault:
            case "child":
                self._send([self._random.choice(children)], signal.SIGKILL)
            case "stop_child":
                self._stop([self._random.choice(children)])
            case "stop_fleet":
                self._stop(everyone)
            case "parent":
                self.touched.update(everyone)
                self._send([fleet.pid], signal.SIGKILL)
                self.fleets[where] = self._start()
            case _:
                self._send(everyone, signal.SIGKILL)
                self.fleets[where] = self._start()
        return True

    def _stop(self, pids: list[int]) -> None:
        self._send(pids, signal.SIGSTOP)
        until = time.monotonic() + self._random.uniform(*STOP_SECONDS)
        self._stopped.append((until, pids))

    def _continue(self, now: float) -> None:
        for until, pids in self._stopped:
            if until <= now:
                self._send(pids, signal.SIGCONT)
        self._stopped = [one for one in self._stopped if one[0] > now]

    def _send(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            self.touched.add(pid)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def test_2_no_two_workers_ever_hold_one_live_lease(worker: Worker, truth: Connection) -> None:
    seed = int(os.environ.get("TRUTH_SEED") or random.randrange(1 << 32))
    print(f"TRUTH_SEED={seed}")
    chance = random.Random(seed)
    payloads = [
        json.dumps(
            {
                "seconds": round(chance.choice([0, 0, 0, 0.01, 0.05, 0.2]), 3),
                "how": chance.choice(["effect", "effect", "transaction", "finish"]),
            }
        )
        for _ in range(JOBS)
    ]
    # Fleets that die unseen spend attempts by expiry, so there are more than a run can use up.
    add_jobs(truth, "work", payloads, max_attempts=100)
    havoc = Havoc(lambda: worker(**SETTINGS), seed)
    pace = threading.Event()  # never set: its wait is the pause between faults
    end = time.monotonic() + FAULT_SECONDS
    while time.monotonic() < end and looking.states(truth).get("succeeded", 0) < JOBS:
        pace.wait(chance.uniform(*PAUSE_SECONDS))
        havoc.step()
    havoc.end()
    looking.wait_all(truth, "succeeded", 150)
    print(f"faults: {havoc.done}; runs: {looking.starts(truth)}")
    for fleet in havoc.fleets:
        fleet.terminate()
    for fleet in havoc.fleets:
        fleet.wait(20)
    # Children that the supervisors themselves ended (a stall after a stop) are no overlap either.
    for fleet in havoc.fleets:
        havoc.touched.update(event["pid"] for event in fleet.find("child_killed"))
    assert_sound(truth, keys=[f"work-{n}" for n in range(1, JOBS + 1)], killed=havoc.touched)
