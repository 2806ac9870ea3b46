"""Shows whom the parent kills, whom it leaves alone, and what is said of it."""

from __future__ import annotations

import signal

from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Start

# Settings that make a stall short; the margins of the others still fit.
SHORT = {"lease_seconds": 6, "stall_seconds": 1.5, "job_timeout_seconds": 3}


def test_a_stalled_child_that_holds_nothing_is_made_to_show_its_stacks_and_killed(
    run: Start,
) -> None:
    fleet = run(**SHORT)
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.tell(victim, "start:0:8:2", "hang:60")
    obituary = fleet.obituary(victim)
    assert (obituary["cause"], obituary["started"]) == ("stall", [[8, 2]])
    assert obituary["error"] == "killed: its main loop stood still"
    fleet.wait_stderr("scripted.py")
    fleet.wait_pids("worker", 2)
    assert fleet.find("child_restarted", reason="stall")


def test_a_stalled_child_keeps_its_leases_as_long_as_they_are_safe(run: Start) -> None:
    fleet = run(**SHORT)
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    # Dead by 6 - 6/5 = 4.8 s if it never beats again, but it wakes after 3.
    fleet.tell(victim, "start:0:8:2", "lease:6", "hang:3")
    wait_until(lambda: not (fleet.folder / str(victim)).exists(), SECONDS, "order taken")
    fleet.tell(victim, "leave:0")
    assert fleet.obituary(victim)["error"] == "exited with status 0"
    assert not fleet.find("child_killed")


def test_a_stalled_child_near_the_end_of_a_lease_is_killed(run: Start) -> None:
    fleet = run(**SHORT)
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.tell(victim, "lease:3", "hang:60")
    assert fleet.obituary(victim)["cause"] == "stall"


def test_a_stopped_child_is_killed_though_it_cannot_show_anything(run: Start) -> None:
    fleet = run(**SHORT)
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.kill(victim, signal.SIGSTOP)
    obituary = fleet.obituary(victim)
    assert obituary["cause"] == "stall"
    fleet.wait_pids("worker", 2)


def test_a_parent_that_was_stopped_blames_nobody(run: Start) -> None:
    fleet = run(**SHORT)
    fleet.wait_ready()
    everybody = [fleet.pid, *fleet.children()]
    for pid in everybody:
        fleet.kill(pid, signal.SIGSTOP)
    with open("/proc/uptime", encoding="ascii") as uptime:
        stopped = float(uptime.read().split()[0])

    def long_enough() -> bool:
        with open("/proc/uptime", encoding="ascii") as uptime:
            return float(uptime.read().split()[0]) - stopped > 3

    wait_until(long_enough, SECONDS, "twice the patience to be over")
    fleet.kill(fleet.pid, signal.SIGCONT)
    maintenance = fleet.wait_pids("maintenance", 1)[0]
    for pid in everybody[1:]:
        fleet.kill(pid, signal.SIGCONT)
    fleet.tell(maintenance, "suspects:1")
    fleet.wait_pids("quarantine", 1)  # the loop turns, and hears the children
    assert not fleet.find("child_killed")


def test_a_stuck_thread_costs_its_process_once_it_is_alone(run: Start) -> None:
    fleet = run(workers=4, processes=2, job_timeout_seconds=60)
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    fleet.tell(victim, "start:0:8:2", "start:1:9:4", "stuck:0")
    # Not while the other runs: a whole turn of the parent passes in which it is left alone.
    fleet.tell(fleet.wait_pids("maintenance", 1)[0], "suspects:1")
    fleet.wait_pids("quarantine", 1)
    assert not fleet.find("child_killed")
    fleet.tell(victim, "end:1")
    obituary = fleet.obituary(victim)
    assert (obituary["cause"], obituary["started"], obituary["stuck"]) == (
        "timeout",
        [[8, 2]],
        [[8, 2]],
    )
    assert obituary["error"] == "killed: a thread outlived its cancellation"
    fleet.wait_pids("worker", 2)


def test_a_stuck_thread_does_not_wait_for_ever_for_outcomes_of_others(run: Start) -> None:
    fleet = run(workers=4, processes=2, job_timeout_seconds=1, stuck_grace_seconds=0.5)
    fleet.wait_ready()
    victim = fleet.wait_pids("worker", 2)[0]
    # Two leases, one run: the other's outcome waits for a database that does not answer.
    fleet.tell(victim, "start:0:8:2", "stuck:0", "hold:2")
    obituary = fleet.obituary(victim)
    assert (obituary["cause"], obituary["stuck"]) == ("timeout", [[8, 2]])
    assert obituary["started"] == [[8, 2]]
