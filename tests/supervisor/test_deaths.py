"""Shows that every death of a child is seen, told to maintenance with its cause, and mended."""

from __future__ import annotations

import signal

import pytest

from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Start


@pytest.mark.quick
def test_a_killed_worker_is_replaced_and_its_runs_are_told(run: Start) -> None:
    fleet = run(workers=4, processes=2)
    fleet.wait_ready()
    victim, other = fleet.wait_pids("worker", 2)
    fleet.tell(victim, "start:0:41:7", "start:1:42:1", "kill:9")
    obituary = fleet.obituary(victim)
    assert obituary["cause"] == "crash"
    assert obituary["role"] == "worker"
    assert obituary["error"] == "killed by signal 9 (SIGKILL)"
    assert obituary["started"] == [[41, 7], [42, 1]]
    assert obituary["stuck"] == []
    assert len(obituary["boot"]) == 32
    workers = fleet.wait_pids("worker", 2)
    assert other in workers
    assert victim not in workers
    assert fleet.find("child_restarted", reason="crash", role="worker")
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def test_status_zero_is_no_farewell_while_a_job_runs(run: Start) -> None:
    fleet = run()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.tell(victim, "start:0:5:1", "exit:0")
    obituary = fleet.obituary(victim)
    assert (obituary["cause"], obituary["error"]) == ("crash", "exited with status 0")
    assert obituary["started"] == [[5, 1]]
    assert victim not in fleet.wait_pids("worker", 2)


def test_a_worker_that_leaves_by_itself_is_no_crash_and_is_replaced(run: Start) -> None:
    fleet = run()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.kill(victim, signal.SIGTERM)
    assert fleet.obituary(victim)["cause"] == "exit"
    assert victim not in fleet.wait_pids("worker", 2)
    assert not fleet.find("shutdown_started")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_death_by_any_signal_names_it(run: Start, number: signal.Signals) -> None:
    fleet = run(workers=1, processes=1)
    victim = fleet.wait_pids("worker", 1)[0]
    fleet.tell(victim, "start:0:5:1", f"kill:{int(number)}")
    error = fleet.obituary(victim)["error"]
    assert error == f"killed by signal {int(number)} ({number.name})"
    fleet.wait_stderr("Current thread")  # faulthandler has written the stacks


def test_maintenance_is_replaced_and_told_again_what_was_not_buried(run: Start) -> None:
    fleet = run(orders={"deaf": ""})
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.tell(victim, "start:0:5:1", "kill:9")
    boot = fleet.obituary(victim)["boot"]
    fleet.wait_pids("worker", 2)
    maintenance = fleet.wait_pids("maintenance", 1)[0]
    fleet.kill(maintenance)
    fleet.wait_event("child_exited", SECONDS, pid=maintenance, cause="crash")
    successor = fleet.wait_pids("maintenance", 1)[0]

    def told() -> bool:
        return any(o["boot"] == boot and o["pid"] == successor for o in fleet.heard("obituary"))

    wait_until(told, SECONDS, "the obituary again")
    kinds = [m["kinds"] for m in fleet.heard("kinds") if m["pid"] == successor]
    assert kinds[0] == ["kind-0", "kind-1", "message"]


def test_suspects_get_quarantine_children_up_to_the_number_of_processes(run: Start) -> None:
    fleet = run(workers=2, processes=2)
    fleet.wait_ready()
    maintenance = fleet.wait_pids("maintenance", 1)[0]
    fleet.tell(maintenance, "suspects:5")
    first, second = fleet.wait_pids("quarantine", 2)
    fleet.tell(maintenance, "suspects:0")
    wait_until(lambda: not (fleet.folder / str(maintenance)).exists(), SECONDS, "order taken")
    fleet.tell(first, "start:0:9:3", "kill:9")
    obituary = fleet.obituary(first)
    assert (obituary["role"], obituary["cause"]) == ("quarantine", "crash")
    fleet.tell(second, "leave:0")
    assert fleet.obituary(second)["cause"] == "exit"
    assert len(fleet.find("child_started", role="quarantine")) == 2
    fleet.wait_pids("quarantine", 0)
