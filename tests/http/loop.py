"""A select loop in a thread, as the supervisor turns one, and clients as raw as sockets."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_worker.http.message import Limits, Request, Response
from reliable_worker.http.peer import Handler
from reliable_worker.http.server import Server

# Longer than any deadline the tests give the server, shorter than a test's patience.
CLIENT_SECONDS = 20.0


def echo(request: Request) -> Response:
    """What was asked, as text; /large is more than a socket takes at once, /boom fails."""
    if request.path == "/boom":
        raise RuntimeError("inside")
    if request.path == "/large":
        return Response(200, b"x" * 20_000_000)
    text = f"{request.method} {request.path} {request.query} {request.body.decode()}"
    return Response(200, text.encode())


class Loop:
    """A server turned by its own thread."""

    def __init__(self, limits: Limits, handler: Handler = echo) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address: tuple[str, int] = listener.getsockname()
        self.server = Server([listener], handler, limits)
        self.turns = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(CLIENT_SECONDS)
        assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=CLIENT_SECONDS)

    def ask(self, data: bytes) -> bytes:
        """Send, and read until the server closes."""
        with self.connect() as sock:
            sock.sendall(data)
            return read_all(sock)

    def fetch(self, path: str = "/") -> bytes:
        return self.ask(request(path, close=True))

    @property
    def open_connections(self) -> int:
        return len(self.server._peers)

    def _run(self) -> None:
        with selectors.PollSelector() as selector:
            self.server.register(selector)
            while not self._stop.is_set():
                for key, mask in selector.select(0.02):
                    self.server.handle(key, mask, time.monotonic())
                self.server.expire(time.monotonic())
                self.turns += 1
            self.server.close()


@contextmanager
def serving(limits: Limits | None = None, handler: Handler = echo) -> Iterator[Loop]:
    loop = Loop(limits or Limits(), handler)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def request(path: str = "/", *, close: bool = False, method: str = "GET", more: str = "") -> bytes:
    connection = "Connection: close\r\n" if close else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{connection}{more}\r\n".encode()


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end, a reset included."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def status(answer: bytes) -> int:
    """The status of the first response in these bytes; 0: there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
