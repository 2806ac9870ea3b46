"""Deaths and a lying network at once: four supervisors behind the proxy, every fault at random.

Answers to COMMIT and to claims are lost, requests are dropped or held until their client has gone,
lanes stall, reset and half-vanish, while processes are killed and stopped; whatever happens, each
job's effect is there once. The seed is printed; TRUTH_SEED repeats one.
"""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.faults.link import Mode, Then
from tests.faults.proxy import Proxy
from tests.faults.wire import is_commit
from tests.fixtures.commands import Fleet
from tests.truths import looking
from tests.truths.test_exclusive_leases import Havoc

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

JOBS = 1500
FAULT_SECONDS = 15.0
PAUSE_SECONDS = (0.05, 0.5)
STALL_SECONDS = (0.1, 1.5)
LANES = ("*:work", "*:control", "*:reaper", "*:listen", "rw:*")
# Faults here are far denser than in life, and none of them is a job's own: no limit may bury one.
SETTINGS: dict[str, object] = {
    "lease_seconds": 3,
    "workers": 8,
    "processes": 2,
    "prefetch": 4,
    "max_refunds": 1000,
    "max_crashes": 1000,
    "retry_base_seconds": 0.1,
    "retry_max_seconds": 1,
}
CLAIM = "lease_owner = ($6"


class WireHavoc:
    """One random fault of the network at each step."""

    def __init__(self, proxy: Proxy, chance: random.Random) -> None:
        self._proxy = proxy
        self._chance = chance
        self._pause = threading.Event()  # never set
        self._faults: dict[str, Callable[[], object]] = {
            "reset": self._reset,
            "stall": self._stall,
            "half_open": self._half_open,
            "lost_commit": lambda: proxy.drop_reply(is_commit, app="*:work", then=self._then()),
            "no_commit": lambda: proxy.drop_request(is_commit, app="*:work", then=self._then()),
            "held_commit": lambda: proxy.hold_request(is_commit, app="*:work", then=self._then()),
            "lost_claim": lambda: proxy.drop_reply(CLAIM, app="*:control", then=self._then()),
            "lost_reply": lambda: proxy.drop_reply(
                lambda _: True, app=self._lane(), then=self._then(), skip=chance.randrange(5)
            ),
        }
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One fault."""
        name = self._chance.choice(sorted(self._faults))
        self._faults[name]()
        self.done[name] += 1

    def _then(self) -> Then:
        return self._chance.choice(list(Then))

    def _lane(self) -> str:
        return self._chance.choice(LANES)

    def _reset(self) -> None:
        self._proxy.reset(app=self._lane())

    def _half_open(self) -> None:
        self._proxy.set_mode(Mode.HALF_OPEN, app=self._lane())
        self._proxy.heal()  # only what is open now stays silent

    def _stall(self) -> None:
        self._proxy.set_mode(Mode.STALL, app=self._lane())
        self._pause.wait(self._chance.uniform(*STALL_SECONDS))
        self._proxy.heal()


def test_each_effect_is_there_once_whatever_dies_or_lies(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    seed = int(os.environ.get("TRUTH_SEED") or random.randrange(1 << 32))
    print(f"TRUTH_SEED={seed}")
    chance = random.Random(seed)
    payloads = [
        json.dumps(
            {
                "seconds": chance.choice([0, 0.05, 0.1, 0.3, 1]),
                "how": chance.choice(["effect", "transaction", "finish"]),
            }
        )
        for _ in range(JOBS)
    ]
    add_jobs(truth, "work", payloads, max_attempts=1000)
    processes = Havoc(lambda: proxied(**SETTINGS), seed)
    wire = WireHavoc(proxy, chance)
    pause = threading.Event()  # never set: its wait is the pause between faults
    end = time.monotonic() + FAULT_SECONDS
    while time.monotonic() < end and looking.states(truth).get("succeeded", 0) < JOBS:
        pause.wait(chance.uniform(*PAUSE_SECONDS))
        chance.choice([wire.step, wire.step, wire.step, processes.step])()
    processes.end()
    proxy.forget_traps()
    proxy.heal()
    looking.wait_all(truth, "succeeded", 150)
    print(f"faults: {dict(wire.done)} {processes.done}; runs: {looking.starts(truth)}")
    for fleet in processes.fleets:
        fleet.terminate()
    for fleet in processes.fleets:
        fleet.wait(20)
        processes.touched.update(event["pid"] for event in fleet.find("child_killed"))
    keys = [f"work-{n}" for n in range(1, JOBS + 1)]
    assert_sound(truth, keys=keys, killed=processes.touched)
