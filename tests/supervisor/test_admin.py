"""The admin port: its answers, its address, and that it can always be asked."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from reliable_worker.jobs import events
from reliable_worker.jobs.events import Event
from reliable_worker.supervisor.admin import Admin, AdminError
from tests.fixtures.waiting import wait_until


class Supervised:
    """An admin in a loop as the supervisor's."""

    def __init__(self) -> None:
        self.rendered = 0
        self.turns = 0
        self.ready = True
        self.admin = Admin("127.0.0.1:0", metrics=self.metrics, readiness=self.readiness)
        self.now = 1000.0
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def metrics(self) -> bytes:
        self.rendered += 1
        return b"up 1\n"

    def readiness(self) -> tuple[bool, dict[str, object]]:
        return self.ready, {"reason": "database: never reached"}

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, str]:
        url = f"http://{self.admin.address}{path}"
        wanted = urllib.request.Request(url, method=method, data=body)
        try:
            with urllib.request.urlopen(wanted, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                allow = error.headers.get("Allow")
                return error.code, allow or error.read().decode()

    def let_pass(self, seconds: float) -> None:
        """Move the clock; returns when the loop has begun a turn that reads it so."""
        self.now += seconds
        turns = self.turns
        wait_until(lambda: self.turns > turns, 20, "the loop turns")

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(20)

    def _run(self) -> None:
        with selectors.PollSelector() as selector:
            self.admin.register(selector)
            while not self._stop.is_set():
                self.turns += 1
                for key, mask in selector.select(0.02):
                    assert key.data is self.admin
                    self.admin.handle(key, mask, self.now)
                self.admin.expire(self.now)
            self.admin.close()
            assert not selector.get_map()


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    supervisor = Supervised()
    supervisor.thread.start()
    yield supervisor
    supervisor.stop()


@pytest.mark.quick
def test_routes(supervised: Supervised) -> None:
    assert supervised.ask("/metrics") == (200, "up 1\n")
    assert supervised.ask("/livez") == (200, "ok\n")
    assert supervised.ask("/")[0] == 200
    assert supervised.ask("/metrics?name=x") == (200, "up 1\n")
    assert supervised.ask("/metrics", "HEAD") == (200, "")
    for path in ("/nothing", "/metrics/", "//", "/../etc/passwd"):
        assert supervised.ask(path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert supervised.ask("/metrics", method, b"a=b") == (405, "GET, HEAD")


def test_readiness_says_why(supervised: Supervised) -> None:
    reason = {"reason": "database: never reached"}
    status, body = supervised.ask("/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, **reason})
    supervised.ready = False
    status, body = supervised.ask("/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, **reason})


def test_metrics_are_rendered_once_a_second(supervised: Supervised) -> None:
    for _ in range(5):
        supervised.ask("/metrics")
    assert supervised.rendered == 1
    supervised.let_pass(1.0)
    assert supervised.ask("/metrics") == (200, "up 1\n")
    assert supervised.rendered == 2


def test_a_taken_port_is_one_clear_line_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AdminError) as caught:
            admin(address)
    line = str(caught.value)
    assert address in line
    assert "in use" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "address",
    [
        *("", "x", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "1:²"),
        *("192.0.2.1:0", "no.such.host.invalid:0", "a" * 300 + ":0", "\ud800:0", "[::1:0"),
    ],
)
def test_an_address_that_cannot_be_served_is_one_line(address: str) -> None:
    with pytest.raises(AdminError) as caught:
        admin(address)
    assert "METRICS_ADDRESS" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_ipv6_address_in_brackets() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    served = admin("[::1]:0")
    assert served.address.startswith("[::1]:")
    served.close()


def test_a_restart_gets_the_port_back_at_once() -> None:
    """Connections of the predecessor are still dying when the successor binds."""
    first = admin("127.0.0.1:0")
    address = first.address
    selector = selectors.PollSelector()
    first.register(selector)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        for key, mask in selector.select(20):
            first.handle(key, mask, time.monotonic())
        first.close()
    second = admin(address)
    second.close()


def test_the_address_is_said_when_it_listens() -> None:
    heard: list[Event] = []
    before = events._subscribers
    events.subscribe(heard.append)
    try:
        served = admin("127.0.0.1:0")
        with selectors.PollSelector() as selector:
            served.register(selector)
            served.close()
    finally:
        events._subscribers = before
    [event] = [event for event in heard if event.name == "admin_listening"]
    assert event.fields == {"address": served.address}
    assert not served.address.endswith(":0")


def admin(address: str) -> Admin:
    return Admin(address, metrics=lambda: b"", readiness=lambda: (True, {}))
