"""Shows what systemd hears, on a real socket of each sort."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliable_worker.supervisor.systemd import Notifier
from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Start


class Manager:
    """systemd's end: a datagram socket and what arrived."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self._said: list[str] = []

    def said(self) -> list[str]:
        while True:
            try:
                self._said.append(self._socket.recv(65536).decode())
            except BlockingIOError:
                return self._said

    def wait(self, message: str) -> None:
        wait_until(lambda: message in self.said(), SECONDS, f"{message!r}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = f"{tmp_path}/notify"
    manager = Manager(path if request.param == "path" else f"@rw-test-{os.getpid()}-{id(tmp_path)}")
    yield manager
    manager.close()


def test_a_services_life(run: Start, manager: Manager) -> None:
    fleet = run(
        env={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"},
        orders={"no-contact": ""},
    )
    manager.wait("EXTEND_TIMEOUT_USEC=60000000")
    wait_until(
        lambda: any(m.startswith("STATUS=no answer from the database") for m in manager.said()),
        SECONDS,
        "the reason for waiting",
    )
    assert "READY=1" not in manager.said()
    (fleet.folder / "no-contact").unlink()
    manager.wait("READY=1")
    wait_until(lambda: manager.said().count("WATCHDOG=1") >= 3, SECONDS, "three feedings")
    wait_until(
        lambda: "STATUS=ready: 2 of 2 worker processes ready, 0 jobs held" in manager.said(),
        SECONDS,
        "a live status",
    )
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    wait_until(lambda: manager.said().count("READY=1") == 2, SECONDS, "the end of the reload")
    (reloading,) = [m for m in manager.said() if m.startswith("RELOADING=1")]
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", reloading)
    said = manager.said()
    assert said.index("READY=1") < said.index(reloading)
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0
    assert "STOPPING=1" in manager.said()


def test_a_failed_reload_ends_as_well(run: Start, manager: Manager) -> None:
    fleet = run(env={"NOTIFY_SOCKET": manager.address}, orders={"trial": "raise"})
    manager.wait("READY=1")
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_failed", SECONDS)
    wait_until(lambda: manager.said().count("READY=1") == 2, SECONDS, "the end of the reload")


def test_a_watchdog_meant_for_another_process_is_not_ours() -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    notifier = Notifier.from_environ(environ)
    assert environ == {}
    assert notifier.watchdog_seconds == 0
    notifier.ready()  # nobody listens: no error
    notifier.close()
    environ = {"WATCHDOG_USEC": "soon"}
    assert Notifier.from_environ(environ).watchdog_seconds == 0
