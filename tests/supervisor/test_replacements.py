"""Two hundred children killed and replaced while somebody scrapes: nothing leaks, nothing falls."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

from tests.fixtures.scraping import scrape, scraping, total
from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Run, Start

REPLACED = 200
PROCESSES = 4

# The real supervisor, but a child that keeps dying is replaced at once: the pace is another test's.
AT_ONCE = """
import sys
from reliable_worker.supervisor import pace
pace._LONGEST_SECONDS = 0.01
from tests.supervisor import scripted
sys.exit(scripted.main())
"""


def test_two_hundred_replacements_under_scraping(run: Start) -> None:
    one = run(
        command=("-c", AT_ONCE),
        workers=PROCESSES,
        processes=PROCESSES,
        orders={"worker": "emit emit emit"},
    )
    one.wait_ready()
    address = one.metrics_address()
    killed: set[int] = set()
    with scraping(address) as scraper:
        while len(killed) < REPLACED:
            for pid in fresh(one, killed):
                one.kill(pid)
                killed.add(pid)
            assert threads(one.pid) == 1
        living = fresh(one, killed)
        scrapes = scraper.scrapes
        wait_until(lambda: scraper.scrapes > scrapes + 1, SECONDS, "a scrape after the last death")
    assert_apart(one, [one.pid, *living, *one.pids("maintenance")])
    ready = len(one.find("child_ready", role="worker"))
    assert ready == len(killed) + PROCESSES
    wait_until(
        lambda: total(scrape(address), "jobs_finished_total") == 3 * ready,
        SECONDS,
        "what every child counted before it said ready, and once only",
    )
    found = scrape(address)
    assert total(found, "children", role="worker") == PROCESSES
    assert total(found, "child_exits_total", role="worker") == len(killed)
    assert total(found, "child_restarts_total") == len(killed)
    assert not one.strays
    one.terminate()
    assert one.wait(SECONDS) == 0
    one.assert_nobody_left()


def threads(pid: int) -> int:
    """How many threads a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Threads:")).split()[1])


def fresh(one: Run, killed: set[int]) -> set[int]:
    """A full set of ready workers that nobody has killed yet."""
    wait_until(
        lambda: len(set(one.pids("worker")) - killed) == PROCESSES, SECONDS, "all are replaced"
    )
    return set(one.pids("worker")) - killed


def assert_apart(one: Run, pids: list[int]) -> None:
    """No two processes hold the same end of a socket or pipe, but for the shared stdio."""
    assert one.process.stdout is not None
    stdout = f"pipe:[{os.fstat(one.process.stdout.fileno()).st_ino}]"
    shared = {stdout, *(os.readlink(f"/proc/{one.pid}/fd/{number}") for number in (0, 1, 2))}
    for first, second in combinations(pids, 2):
        common = (ends(first) & ends(second)) - shared
        assert not common, f"{first} and {second} share {common}"


def ends(pid: int) -> set[str]:
    """Sockets and pipes a process holds. (Both ends of a pipe have one name, of a socket two.)"""
    folder = Path(f"/proc/{pid}/fd")
    targets = {os.readlink(entry) for entry in folder.iterdir()}
    return {target for target in targets if target.startswith(("socket:", "pipe:"))}
