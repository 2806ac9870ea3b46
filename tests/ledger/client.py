"""Clients of the ledger: a polite one, a crowd of them, and one as raw as a socket."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

# Longer than any budget of the service, shorter than a test's patience.
CLIENT_SECONDS = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The problem's code; "" of a success."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        problem = self.json
        assert problem["status"] == self.status
        return str(problem["code"])


class Client:
    """One kept connection to `address`, opened anew when it has ended."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._conn = http.client.HTTPConnection(host, int(port), timeout=CLIENT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def post(
        self, key: str | None, body: bytes | str, *, content_type: str | None = "application/json"
    ) -> Answer:
        """POST /transfers with this key and body."""
        headers = {"Idempotency-Key": key, "Content-Type": content_type}
        given = {name: value for name, value in headers.items() if value is not None}
        return self.ask("POST", "/transfers", body, given)

    def transfer(self, from_id: int, to_id: int, amount: int, key: str | None = None) -> Answer:
        """Move money, under a fresh key unless one is given."""
        return self.post(key or fresh_key(), payload(from_id, to_id, amount))

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request, one whole answer."""
        try:
            self._conn.request(method, path, body, headers or {})
            response = self._conn.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self._conn.close()
            raise
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, content)


def fresh_key() -> str:
    return f"key-{uuid.UUID(int=random.getrandbits(128)).hex}"


def payload(from_id: int, to_id: int, amount: int) -> str:
    return json.dumps({"from_id": from_id, "to_id": to_id, "amount": amount})


def at_once(tasks: Iterable[Callable[[], T]], seconds: float = 120.0) -> list[T]:
    """Run every task in a thread of its own, all released together; their results in order."""
    todo = list(tasks)
    results: list[T | None] = [None] * len(todo)
    errors: list[BaseException] = []
    gate = threading.Barrier(len(todo))

    def run(place: int) -> None:
        try:
            gate.wait(seconds)
            results[place] = todo[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(todo))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a client hangs"
    if errors:
        raise errors[0]
    return [result for result in results if result is not None]


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CLIENT_SECONDS)


def ask_raw(address: str, data: bytes, *, half_close: bool = True) -> bytes:
    """Send these bytes, and read until the server closes."""
    with connect(address) as sock:
        try:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused while still sending: what it said counts
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end, a reset included."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def head(
    method: str = "POST", path: str = "/transfers", *lines: str, version: str = "HTTP/1.1"
) -> bytes:
    """A request's head with a Host and these header lines."""
    return "\r\n".join([f"{method} {path} {version}", "Host: x", *lines, "", ""]).encode("latin-1")


def transfer_head(body: bytes | str, key: str | None = None) -> bytes:
    """The head of a well-formed transfer with this body."""
    return head(
        "POST",
        "/transfers",
        "Content-Type: application/json",
        f"Idempotency-Key: {key or fresh_key()}",
        f"Content-Length: {len(body)}",
    )


def statuses(answer: bytes) -> list[int]:
    """The status of each response in these bytes."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
