"""Sending one event to one address: signed, bounded, and never to where it must not go.

Floor 6; imports nothing of the package. The headers are those of Standard Webhooks: an id that
stays the same at every try, a time, a signature over both and the body. The address is looked up
once and connected to as found, so that a name cannot point elsewhere between the check and the
connect.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

# Of an answer nobody reads more than whether it is one: its status.
STATUS_OK = range(200, 300)
_SECRET_BYTES = range(24, 65)


class WebhookMisconfigured(ValueError):
    """The address or the secret cannot be used; one line that does not repeat them."""


class DeliveryFailed(Exception):
    """Not delivered, as far as is known; `gone`: the receiver wants no more of it."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where to deliver. Made by `parse`."""

    scheme: str
    host: str
    port: int
    target: str
    secret: bytes
    timeout_seconds: float
    private: bool


def parse(url: str, secret: str, timeout_seconds: float, private: bool) -> Webhook:
    """A checked address. Raises WebhookMisconfigured."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise WebhookMisconfigured("LEDGER_WEBHOOK_URL is not a URL") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise WebhookMisconfigured("LEDGER_WEBHOOK_URL must begin with https:// and name a host")
    if parts.username or parts.password:
        raise WebhookMisconfigured("LEDGER_WEBHOOK_URL must hold no user or password")
    if parts.scheme == "http" and not private:
        raise WebhookMisconfigured("LEDGER_WEBHOOK_URL must be https")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or not target.isprintable() or " " in target:
        raise WebhookMisconfigured("LEDGER_WEBHOOK_URL must be percent-encoded ASCII")
    return Webhook(
        parts.scheme,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        target,
        _decode_secret(secret),
        timeout_seconds,
        private,
    )


def deliver(hook: Webhook, message_id: str, body: bytes, begun: Callable[[], float]) -> None:
    """POST the event. `begun` is the time in seconds since the epoch, as the receiver counts it.

    Raises DeliveryFailed. Everything ends within `timeout_seconds`, however slowly it goes.
    """
    end = time.monotonic() + hook.timeout_seconds
    sock = _connect(hook, end)
    try:
        if hook.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=hook.host)
        status = _exchange(sock, _request(hook, message_id, body, int(begun())), end)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryFailed(f"{type(error).__name__} while talking to the receiver") from error
    finally:
        sock.close()
    if status not in STATUS_OK:
        raise DeliveryFailed(f"the receiver answered {status}", gone=status == 410)


def sign(secret: bytes, message_id: str, at: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def _decode_secret(secret: str) -> bytes:
    try:
        found = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not secret.startswith("whsec_") or len(found) not in _SECRET_BYTES:
        raise WebhookMisconfigured(
            "LEDGER_WEBHOOK_SECRET must be whsec_ and 24 to 64 bytes in base64"
        )
    return found


def _request(hook: Webhook, message_id: str, body: bytes, at: int) -> bytes:
    default = {"https": 443, "http": 80}[hook.scheme]
    host = f"[{hook.host}]" if ":" in hook.host else hook.host
    lines = [
        f"POST {hook.target} HTTP/1.1",
        f"Host: {host}" + ("" if hook.port == default else f":{hook.port}"),
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"webhook-id: {message_id}",
        f"webhook-timestamp: {at}",
        f"webhook-signature: {sign(hook.secret, message_id, at, body)}",
        "User-Agent: reliable-ledger",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _connect(hook: Webhook, end: float) -> socket.socket:
    """A connection to the first allowed address that takes one."""
    try:
        found = socket.getaddrinfo(hook.host, hook.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeliveryFailed("the receiver's name is not known") from error
    allowed = [each for each in found if hook.private or _is_public(str(each[4][0]))]
    if not allowed:
        raise DeliveryFailed("the receiver's address is private: LEDGER_WEBHOOK_PRIVATE allows it")
    for family, kind, protocol, _, where in allowed:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(end))
            sock.connect(where)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise DeliveryFailed(f"no connection to the receiver: {type(failure).__name__}") from failure


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_global and not found.is_multicast


def _exchange(sock: socket.socket, request: bytes, end: float) -> int:
    """Send, and read the status line."""
    sock.settimeout(_left(end))
    sock.sendall(request)
    received = b""
    # No more than a status line: a receiver that drips gains nothing.
    while b"\n" not in received and len(received) < 4096:
        sock.settimeout(_left(end))
        part = sock.recv(4096)
        if not part:
            break
        received += part
    words = received.split(b"\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("not an answer of HTTP")
    return int(words[1])


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the delivery's time is over")
    return left
