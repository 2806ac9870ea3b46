"""Shows how a run ends: in order and within its budget, at once, or because it cannot start."""

from __future__ import annotations

import functools
import random
import signal
import socket
import time

import pytest

from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Start

# The parent promises 2 s after its own death; the rest is for a busy machine's /proc.
ORPHANS_SECONDS = 2.5


@pytest.mark.quick
def test_sigterm_drains_everybody_and_maintenance_last(run: Start) -> None:
    fleet = run()
    fleet.wait_ready()
    workers = fleet.wait_pids("worker", 2)
    maintenance = fleet.wait_pids("maintenance", 1)[0]
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0
    exits = [event["pid"] for event in fleet.find("child_exited")]
    assert exits[-1] == maintenance
    assert set(exits) == {*workers, maintenance}
    assert {fleet.obituary(pid)["cause"] for pid in workers} == {"drain"}
    assert fleet.find("shutdown_complete", killed=0)
    assert fleet.strays == []
    fleet.assert_nobody_left()


def test_repeated_signals_change_nothing(run: Start) -> None:
    fleet = run()
    fleet.wait_ready()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
        fleet.send(number)
    assert fleet.wait(SECONDS) == 0
    assert len(fleet.find("shutdown_started")) == 1
    assert not fleet.find("reload_started")


def test_ctrl_c_reaches_the_whole_group_and_drains_once(run: Start) -> None:
    fleet = run()
    fleet.wait_ready()
    for pid in [*fleet.children(), fleet.pid]:
        fleet.kill(pid, signal.SIGINT)
    assert fleet.wait(SECONDS) == 0
    assert {event["cause"] for event in fleet.find("child_exited")} == {"drain"}
    assert "Traceback" not in fleet.stderr()


def test_a_child_that_does_not_leave_is_killed_in_time_and_its_runs_refunded(run: Start) -> None:
    fleet = run(stop_seconds=5, claim_timeout_seconds=1, release_timeout_seconds=2)
    fleet.wait_ready()
    deaf = fleet.wait_pids("worker", 2)[0]
    fleet.tell(deaf, "start:0:3:2", "stubborn")
    wait_until(lambda: not (fleet.folder / str(deaf)).exists(), SECONDS, "order taken")
    fleet.terminate()
    assert fleet.wait(SECONDS) == 1
    obituary = fleet.obituary(deaf)
    assert (obituary["cause"], obituary["started"]) == ("drain", [[3, 2]])
    assert fleet.find("child_killed", pid=deaf, cause="drain")
    (end,) = fleet.find("shutdown_complete", killed=1)
    assert end["duration_seconds"] <= 5
    fleet.assert_nobody_left()


def test_a_maintenance_process_that_cannot_bury_ends_within_the_budget(run: Start) -> None:
    fleet = run(
        orders={"deaf": ""}, stop_seconds=5, claim_timeout_seconds=1, release_timeout_seconds=2
    )
    fleet.wait_ready()
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0
    (end,) = fleet.find("shutdown_complete", killed=0)
    assert end["duration_seconds"] <= 5


def test_maintenance_killed_in_the_drain_is_replaced_to_bury_the_dead(run: Start) -> None:
    fleet = run(orders={"deaf": ""})
    fleet.wait_ready()
    maintenance = fleet.wait_pids("maintenance", 1)[0]
    fleet.terminate()
    wait_until(lambda: len(fleet.heard("obituary")) == 2, SECONDS, "both obituaries")
    (fleet.folder / "deaf").unlink()
    fleet.kill(maintenance)
    assert fleet.wait(SECONDS) == 0
    again = [o["boot"] for o in fleet.heard("obituary") if o["pid"] != maintenance]
    assert sorted(again) == sorted({o["boot"] for o in fleet.heard("obituary")})


def test_sigquit_kills_all_at_once(run: Start) -> None:
    fleet = run()
    fleet.wait_ready()
    for pid in fleet.wait_pids("worker", 2):
        fleet.tell(pid, "stubborn")
    fleet.send(signal.SIGQUIT)
    assert fleet.wait(SECONDS) == 1
    assert {event["reason"] for event in fleet.find("child_exited")} == {
        "killed by signal 9 (SIGKILL)"
    }
    fleet.assert_nobody_left()


def test_a_killed_parent_leaves_nobody(run: Start) -> None:
    fleet = run(workers=3, processes=3)
    fleet.wait_ready()
    stubborn = fleet.wait_pids("worker", 3)[0]
    fleet.tell(stubborn, "stubborn")
    wait_until(lambda: not (fleet.folder / str(stubborn)).exists(), SECONDS, "order taken")
    fleet.send(signal.SIGKILL)
    fleet.process.wait(SECONDS)
    wait_until(lambda: not fleet.processes(), ORPHANS_SECONDS, "no orphan")


def test_a_sigterm_at_any_moment_after_exec_ends_the_run_without_orphans(run: Start) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(10):
        fleets = [(time.monotonic() + rng.uniform(0.0, 0.5), run()) for _ in range(5)]
        for moment, fleet in sorted(fleets, key=lambda pair: pair[0]):
            wait_until(functools.partial(_past, moment), SECONDS, "the moment")
            fleet.terminate()
        for _, fleet in fleets:
            # Until the interpreter has come to our first line SIGTERM does what it does by default.
            assert fleet.wait(SECONDS) in (0, -signal.SIGTERM)
            fleet.assert_nobody_left()


def _past(moment: float) -> bool:
    return time.monotonic() >= moment


def test_the_fifth_child_dead_at_its_start_ends_the_run_with_its_own_line(run: Start) -> None:
    fleet = run(workers=1, processes=1, orders={"worker": "fail:1:shop.jobs-has-no-attribute-app"})
    assert fleet.wait(SECONDS) == 1
    assert fleet.stderr() == "reliable-worker: shop.jobs has no attribute app\n"
    assert len(fleet.find("child_started", role="worker")) == 5
    fleet.assert_nobody_left()


@pytest.mark.parametrize("order", ["kill:11", "exit:0", "raise"])
def test_children_that_die_wordless_at_their_start_end_the_run_too(run: Start, order: str) -> None:
    fleet = run(orders={"worker": order})
    assert fleet.wait(SECONDS) == 1
    assert len(fleet.find("child_started", role="worker")) <= 6
    last = fleet.stderr().splitlines()[-1]
    assert last.startswith("reliable-worker: ")
    assert "worker process" in last


@pytest.mark.parametrize("code", [2, 4])
@pytest.mark.parametrize("role", ["worker", "maintenance"])
def test_a_hopeless_child_ends_the_run_at_once_with_its_code(
    run: Start, role: str, code: int
) -> None:
    fleet = run(orders={role: f"fail:{code}:mend-this-first"})
    assert fleet.wait(SECONDS) == code
    assert fleet.stderr() == "reliable-worker: mend this first\n"
    assert len(fleet.find("child_started", role="worker")) <= 2


def test_the_start_budget_is_for_the_start(run: Start) -> None:
    fleet = run(workers=2, processes=2)
    fleet.wait_ready()
    fleet.tell("worker", "fail:1:broken")
    victim, _ = fleet.wait_pids("worker", 2)
    fleet.kill(victim)
    wait_until(
        lambda: len(fleet.find("child_exited", role="worker", reason="exited with status 1")) >= 5,
        SECONDS,
        "as many deaths as end a run that starts",
    )
    (fleet.folder / "worker").unlink()
    fleet.wait_pids("worker", 2)
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def test_a_taken_port_ends_the_run_before_the_first_fork(run: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        fleet = run(metrics_address=address)
        assert fleet.wait(SECONDS) == 1
    assert address in fleet.stderr()
    assert fleet.stderr().count("\n") == 1
    assert not fleet.find("child_started")


def test_once_is_one_process_with_all_slots_and_ends_with_it(run: Start) -> None:
    fleet = run("--once", workers=4, processes=2)
    assert fleet.wait(SECONDS) == 0
    assert len(fleet.find("child_started", role="worker")) == 1
    assert len(fleet.heard("obituary")) == 1


def test_drain_waits_until_nothing_is_eligible_and_nobody_holds_anything(run: Start) -> None:
    fleet = run("--drain", orders={"eligible": "3"})
    fleet.wait_ready()
    holder = fleet.wait_pids("worker", 2)[0]
    wait_until(lambda: len(fleet.heard("eligible")) >= 2, SECONDS, "asked again")
    fleet.tell(holder, "hold:1")
    wait_until(lambda: not (fleet.folder / str(holder)).exists(), SECONDS, "order taken")
    fleet.tell("eligible", "0")
    # A turn of the parent, seen in a replaced child: with a lease held it asks no more.
    other = next(pid for pid in fleet.wait_pids("worker", 2) if pid != holder)
    fleet.tell(other, "kill:9")
    fleet.obituary(other)
    fleet.wait_pids("worker", 2)
    assert not fleet.find("shutdown_started")
    fleet.tell(holder, "hold:0")
    assert fleet.wait(SECONDS) == 0
    assert fleet.find("shutdown_started", reason="drained")
