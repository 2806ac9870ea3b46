"""The outbox delivers each transfer signed, with the same bytes at every try, to nowhere
forbidden."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from reliable_worker.ledger import webhook
from reliable_worker.ledger.jobs import KIND, make_app
from reliable_worker.ledger.webhook import DeliveryFailed, Webhook, WebhookMisconfigured
from reliable_worker.settings import SettingsError
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.ledger.conftest import Conn, Ledger

SECRET_BYTES = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(SECRET_BYTES).decode()


class Receiver:
    """Keeps what it is sent; answers with the statuses it is told, the last one for ever."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses = [200]
        self.pause = threading.Event()
        self.pause_seconds = 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                outer.pause.wait(outer.pause_seconds)
                status = outer.statuses[min(len(outer.got), len(outer.statuses)) - 1]
                self.send_response(status)
                self.send_header("Location", f"http://127.0.0.1:{outer.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?a=b"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pause.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


def verified(headers: dict[str, str], body: bytes) -> bool:
    """As a receiver checks it, by the words of Standard Webhooks."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET_BYTES, signed, hashlib.sha256).digest()).decode()
    return headers["webhook-signature"].split(",") == ["v1", expected]


def test_each_transfer_is_delivered_once_it_is_committed(
    ledger: Callable[..., Ledger],
    fleet: Callable[..., Fleet],
    ledger_dsn: str,
    receiver: Receiver,
    books: Conn,
) -> None:
    """The first try fails; the second has the same id and the same bytes."""
    receiver.statuses = [500, 200]
    with ledger().client() as client:
        assert client.transfer(1, 2, 1_250).status == 200
        assert client.transfer(1, 2, 99_999).status == 409
    environment = {
        "LEDGER_WEBHOOK_URL": receiver.url,
        "LEDGER_WEBHOOK_SECRET": SECRET,
        "LEDGER_WEBHOOK_PRIVATE": "on",
    }
    words = ("--app", "reliable_worker.ledger.jobs:app")
    worker = fleet(*words, env=environment, database_url=ledger_dsn)
    wait_until(lambda: receiver.got, 60, "the first delivery")
    worker.wait_event("job_failed", 20)
    books.execute("UPDATE jobs SET available_at = now()")  # the pause is over
    worker.wait_event("job_succeeded", 60)
    (first, body), (second, again) = receiver.got
    assert first["webhook-id"] == second["webhook-id"] == "1"
    assert body == again
    assert verified(first, body)
    assert verified(second, again)
    message = json.loads(body)
    assert message["type"] == KIND
    assert message["data"]["amount"] == 1_250
    assert (message["data"]["from_id"], message["data"]["to_id"]) == (1, 2)


def hook(receiver: Receiver, private: bool = True, seconds: float = 10) -> Webhook:
    return webhook.parse(receiver.url, SECRET, seconds, private)


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.statuses = [302]
    with pytest.raises(DeliveryFailed, match="302"):
        webhook.deliver(hook(receiver), "1", b"{}", time.time)
    assert len(receiver.got) == 1


def test_gone_is_the_end(receiver: Receiver) -> None:
    receiver.statuses = [410]
    with pytest.raises(DeliveryFailed) as failed:
        webhook.deliver(hook(receiver), "1", b"{}", time.time)
    assert failed.value.gone


def test_a_silent_receiver_is_given_up(receiver: Receiver) -> None:
    receiver.pause_seconds = 30
    begun = time.monotonic()
    with pytest.raises(DeliveryFailed):
        webhook.deliver(hook(receiver, seconds=0.5), "1", b"{}", time.time)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.1.2.3", "[::1]", "169.254.169.254",
                                  "[::ffff:127.0.0.1]", "0.0.0.0", "100.64.0.1"])  # fmt: skip
def test_private_addresses_are_refused(host: str) -> None:
    made = webhook.parse(f"https://{host}:9/", SECRET, 5, False)
    with pytest.raises(DeliveryFailed, match="private"):
        webhook.deliver(made, "1", b"{}", time.time)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("ftp://example.org/", SECRET),
        ("example.org", SECRET),
        ("https:///x", SECRET),
        ("https://u:p@example.org/", SECRET),
        ("http://example.org/", SECRET),
        ("https://example.org:99999/", SECRET),
        ("https://example.org/a b", SECRET),
        ("https://example.org/\r\nX: y", SECRET),
        ("https://example.org/", "secret"),
        ("https://example.org/", "whsec_c2hvcnQ="),
        ("https://example.org/", "whsec_!!!!"),
    ],
)
def test_what_cannot_be_an_address_is_refused_without_repeating_it(url: str, secret: str) -> None:
    with pytest.raises(WebhookMisconfigured) as refused:
        webhook.parse(url, secret, 5, False)
    assert "example.org" not in str(refused.value)


def test_without_an_address_nobody_handles_the_kind() -> None:
    assert KIND not in make_app({}).handlers
    given = {"LEDGER_WEBHOOK_URL": "https://example.org/", "LEDGER_WEBHOOK_SECRET": SECRET}
    assert KIND in make_app(given).handlers
    with pytest.raises(SettingsError):
        make_app({"LEDGER_WEBHOOK_URL": "https://example.org/"})
