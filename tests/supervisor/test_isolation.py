"""Shows what the parent is not: no thread, no libpq; and what its children do not inherit."""

from __future__ import annotations

import functools
import http.client
import os
import re
import signal
from pathlib import Path

import pytest

from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Run, Start

RELOADS = 10


def _descriptors(pid: int) -> dict[str, str]:
    """What each descriptor of a process is."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except FileNotFoundError:
            continue
    return found


def _sockets(pid: int) -> set[str]:
    return {what for what in _descriptors(pid).values() if what.startswith("socket:")}


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _scrape(fleet: Run, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection(fleet.metrics_address(), timeout=SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _counters(page: str) -> dict[str, float]:
    found = re.findall(r"^(reliable_worker_\w+_total(?:\{[^}]*\})?) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.quick
def test_no_child_holds_what_is_the_parents_or_a_siblings(run: Start) -> None:
    fleet = run(workers=3, processes=3)
    fleet.wait_ready()
    parent = http.client.HTTPConnection(fleet.metrics_address(), timeout=SECONDS)
    parent.request("GET", "/livez")
    parent.getresponse().read()  # a client that stays connected while children are forked
    fleet.tell(fleet.wait_pids("maintenance", 1)[0], "suspects:1")
    fleet.wait_pids("quarantine", 1)
    children = fleet.children()
    assert len(children) == 5
    for pid in children:
        mine = _sockets(pid)
        # Its own: the channel, the signals' pair, the loop's pair. Nothing of anybody else.
        assert len(mine) == 5, _descriptors(pid)
        for other in [fleet.pid, *children]:
            if other != pid:
                assert not mine & _sockets(other)
        assert not [what for what in _descriptors(pid).values() if "pidfd" in what]
    parent.close()


def test_children_do_not_find_systemd_in_their_environment(run: Start, tmp_path: Path) -> None:
    fleet = run(env={"NOTIFY_SOCKET": f"{tmp_path}/none", "WATCHDOG_USEC": "30000000"})
    fleet.wait_ready()
    # /proc shows the environment of the exec, so a process asks its own: a handler's subprocess.
    for pid in fleet.wait_pids("worker", 2):
        fleet.tell(pid, "environment")
        path = fleet.folder / f"environment-{pid}"
        wait_until(path.exists, SECONDS, "the child's environment")
        assert "NOTIFY_SOCKET" not in path.read_text()
        assert "WATCHDOG" not in path.read_text()


def test_the_parent_maps_no_libpq_and_has_one_thread(run: Start) -> None:
    fleet = run()
    fleet.wait_ready()
    _scrape(fleet)
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    assert _threads(fleet.pid) == 1
    maps = Path(f"/proc/{fleet.pid}/maps").read_text()
    assert "libpq" not in maps
    assert "psycopg" not in maps
    imported = {event["event"] for event in fleet.events}
    assert "reload_failed" not in imported


def test_hangup_upon_hangup_under_scraping_costs_nothing(run: Start) -> None:
    """All become ready, counters never fall, the parent keeps one thread and its descriptors."""
    fleet = run(workers=4, processes=4)
    fleet.wait_ready()
    descriptors = len(_descriptors(fleet.pid))
    last: dict[str, float] = {}
    emitted = 0

    def complete(reloads: int) -> bool:
        """Scrape, compare with the scrape before, and see how far the reload is."""
        nonlocal last
        now = _counters(_scrape(fleet)[1])
        fallen = {name: value for name, value in last.items() if now.get(name, 0.0) < value}
        assert not fallen
        last = now
        return len(fleet.find("reload_complete")) == reloads

    for reloads in range(1, RELOADS + 1):
        workers = fleet.wait_pids("worker", 4)
        for pid in workers:
            fleet.tell(pid, "emit", "emit")
            emitted += 2
        wait_until(functools.partial(_obeyed, fleet, workers), SECONDS, "all have counted")
        fleet.send(signal.SIGHUP)
        wait_until(functools.partial(complete, reloads), SECONDS, "all replaced")
        assert _threads(fleet.pid) == 1

    def counted() -> bool:
        name = 'reliable_worker_jobs_finished_total{kind="message"'
        page = _counters(_scrape(fleet)[1])
        return sum(value for key, value in page.items() if key.startswith(name)) == emitted

    wait_until(counted, SECONDS, "every count of every dead child")
    ready = [event for event in fleet.find("child_ready") if event["role"] != "trial"]
    assert len(ready) == 5 * (RELOADS + 1)
    # The last scrape's connection may still be closing.
    wait_until(lambda: len(_descriptors(fleet.pid)) == descriptors, SECONDS, "no descriptor more")
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def _obeyed(fleet: Run, pids: list[int]) -> bool:
    return not any((fleet.folder / str(pid)).exists() for pid in pids)


def test_readyz_says_whether_jobs_can_run(run: Start) -> None:
    fleet = run(orders={"no-contact": ""})
    wait_until(lambda: len(fleet.find("child_ready")) == 3, SECONDS, "children up")
    status, body = _scrape(fleet, "/readyz")
    assert (status, "no answer from the database yet" in body) == (503, True)
    assert _scrape(fleet, "/livez")[0] == 200
    (fleet.folder / "no-contact").unlink()
    fleet.wait_ready()
    assert _scrape(fleet, "/readyz")[0] == 200
    (fleet.folder / "no-contact").touch()
    wait_until(lambda: _scrape(fleet, "/readyz")[0] == 503, SECONDS, "an old contact to count")
    assert "the database does not answer" in _scrape(fleet, "/readyz")[1]
    (fleet.folder / "no-contact").unlink()
    wait_until(lambda: _scrape(fleet, "/readyz")[0] == 200, SECONDS, "ready again")
    stubborn = fleet.wait_pids("worker", 2)[0]
    fleet.tell(stubborn, "stubborn")
    wait_until(lambda: not (fleet.folder / str(stubborn)).exists(), SECONDS, "order taken")
    fleet.terminate()
    fleet.wait_event("shutdown_started", SECONDS)
    status, body = _scrape(fleet, "/readyz")
    assert (status, "draining" in body) == (503, True)
    fleet.send(signal.SIGQUIT)
    assert fleet.wait(SECONDS) == 1
