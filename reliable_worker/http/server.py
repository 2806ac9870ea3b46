"""An HTTP server without threads: a guest in somebody else's select loop.

Floor 1; imports `jobs.events` and this floor. The supervisor forks, so it may have no thread; its
one loop also answers scrapes. Nothing here waits: every socket is non-blocking, every connection
has one deadline that no byte extends, and the number of connections is bounded. Who comes when all
places are taken gets the place of the one that has kept us waiting longest, so clients that open
connections and say nothing, or drip, cannot shut out one that asks at once.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections.abc import Callable, Sequence

from reliable_worker.http.message import HttpError, Limits, Request, Response
from reliable_worker.http.protocol import Protocol
from reliable_worker.jobs.events import emit

Handler = Callable[[Request], Response]

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

# One turn of a connection reads this much and answers this many pipelined requests, then others
# have theirs.
READ_BYTES = 8_192
ANSWERS_PER_TURN = 4

# Bytes thrown away while lingering; a client that sends more than this after a refusal is reset.
LINGER_BYTES = 65_536

# How long to leave the backlog alone when the process is out of descriptors.
ACCEPT_PAUSE_SECONDS = 1.0

_OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Server:
    """Listening sockets and their connections. `now` is one monotonic clock in seconds, always.

    In the loop: `register` once; for every ready key whose `data` is this server, `handle`; sleep
    no longer than until `next_deadline()`, and call `expire` after every sleep.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], handler: Handler, limits: Limits
    ) -> None:
        """Take over listening sockets (made non-blocking here). The handler must not wait."""
        self._listeners = tuple(listeners)
        self._handler = handler
        self._limits = limits
        self._peers: dict[socket.socket, _Peer] = {}
        self._selector: selectors.BaseSelector | None = None
        self._data: object = self
        self._resume_at: float | None = None
        for listener in self._listeners:
            listener.setblocking(False)

    def register(self, selector: selectors.BaseSelector, data: object = None) -> None:
        """Begin to listen in this selector; every key of ours carries `data` (None: the server)."""
        self._selector = selector
        self._data = self if data is None else data
        for listener in self._listeners:
            selector.register(listener, READ, self._data)

    def handle(self, key: selectors.SelectorKey, mask: int, now: float) -> None:
        """Do what one ready key allows, without waiting. Never raises."""
        sock = key.fileobj
        if not isinstance(sock, socket.socket):
            return
        peer = self._peers.get(sock)
        if peer is not None:
            self._turn(peer, now)
        elif sock in self._listeners:
            self._accept(sock, now)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None: nothing is open."""
        deadlines = [peer.deadline for peer in self._peers.values()]
        if self._resume_at is not None:
            deadlines.append(self._resume_at)
        return min(deadlines, default=None)

    def expire(self, now: float) -> None:
        """Close what has outlived its deadline."""
        for peer in [peer for peer in self._peers.values() if peer.deadline <= now]:
            peer.time_out()
            self._drop(peer)
        if self._resume_at is not None and self._resume_at <= now and self._selector is not None:
            self._resume_at = None
            for listener in self._listeners:
                self._selector.register(listener, READ, self._data)

    def close(self) -> None:
        """Leave the selector and close everything."""
        for peer in list(self._peers.values()):
            self._drop(peer)
        for listener in self._listeners:
            if self._selector is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(listener)
            listener.close()

    def close_in_child(self) -> None:
        """Close a forked child's copies of the descriptors; the parent's connections live on."""
        for sock in (*self._listeners, *self._peers):
            sock.close()
        self._peers.clear()

    def _accept(self, listener: socket.socket, now: float) -> None:
        # Half of the places a turn: whoever came in this turn keeps its place through the next one,
        # in which its request is read.
        for _ in range(max(1, self._limits.connections // 2)):
            try:
                sock, _address = listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause(now)
                return
            sock.setblocking(False)
            if len(self._peers) >= self._limits.connections:
                self._drop(min(self._peers.values(), key=_Peer.worth))
            peer = _Peer(sock, self._handler, self._limits, now)
            self._peers[sock] = peer
            # Whoever asks at once is answered at once, before another can take the place.
            self._turn(peer, now)

    def _pause(self, now: float) -> None:
        """No descriptor left: give up the least worthy connection and look again in a while."""
        if self._peers:
            self._drop(min(self._peers.values(), key=_Peer.worth))
        if self._selector is not None:
            self._resume_at = now + ACCEPT_PAUSE_SECONDS
            for listener in self._listeners:
                self._selector.unregister(listener)

    def _turn(self, peer: _Peer, now: float) -> None:
        try:
            peer.turn(now)
        except OSError:
            # Reset by the client, or gone: nothing to tell anybody.
            peer.interest = 0
        except Exception as error:
            emit("http_failed", "error", error=error)
            peer.interest = 0
        if not peer.interest:
            self._drop(peer)
        elif self._selector is not None and peer.interest != peer.registered:
            change = self._selector.modify if peer.registered else self._selector.register
            change(peer.sock, peer.interest, self._data)
            peer.registered = peer.interest

    def _drop(self, peer: _Peer) -> None:
        if peer.registered and self._selector is not None:
            self._selector.unregister(peer.sock)
        self._peers.pop(peer.sock, None)
        peer.sock.close()


class _Peer:
    """One connection. `interest` is what it waits for in the selector; 0: it is over."""

    def __init__(self, sock: socket.socket, handler: Handler, limits: Limits, now: float) -> None:
        self.sock = sock
        self.interest = READ
        self.registered = 0
        self.deadline = now + limits.request_seconds
        self._since = now
        self._handler = handler
        self._limits = limits
        self._protocol = Protocol(limits)
        self._unsent = memoryview(b"")
        self._lingering = 0
        self._idle = False

    def worth(self) -> tuple[int, float]:
        """Whose place is given away first: the lowest. Then the one that has waited longest."""
        if self._lingering or self._idle:
            return 0, self._since
        return (1 if not self._unsent else 2), self._since

    def turn(self, now: float) -> None:
        """Read, answer and write as far as it goes without waiting."""
        if self._lingering:
            self._discard()
            return
        if not self._unsent and self.interest & READ:
            self._read(now)
        for _ in range(ANSWERS_PER_TURN):
            if not self._unsent and not self._answer(now):
                return
            if not self._send() or not self._begin_next(now):
                return
        # Pipelined requests are left, and no readable byte will tell us so: a writable socket will.
        self.interest = WRITE

    def time_out(self) -> None:
        """Tell a client whose request never became whole, if that goes without waiting."""
        if self._protocol.begun and not self._unsent and not self._lingering:
            refusal = HttpError(408, "Request Timeout")
            with contextlib.suppress(OSError):
                self.sock.send(self._protocol.respond(refusal.response))

    def _read(self, now: float) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if data and self._idle:
            self._idle = False
            self._since = now
            self.deadline = now + self._limits.request_seconds
        self._protocol.receive(data)

    def _answer(self, now: float) -> bool:
        """Take the next request and make its response; False: there is none yet."""
        try:
            request = self._protocol.next_request()
            if request is None:
                self.interest = 0 if self._protocol.closing else READ
                return False
            response = self._handled(request)
        except HttpError as error:
            response = error.response
        self._unsent = memoryview(self._protocol.respond(response))
        self._since = now
        self.deadline = now + self._limits.write_seconds
        return True

    def _handled(self, request: Request) -> Response:
        try:
            return self._handler(request)
        except Exception as error:
            emit("http_failed", "error", error=error)
            return Response(500, b"Internal Server Error\n")

    def _send(self) -> bool:
        """Send what goes; False: the rest must wait for the socket."""
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        if self._unsent:
            self.interest = WRITE
        return not self._unsent

    def _begin_next(self, now: float) -> bool:
        """The answer is sent: begin anew, or say goodbye and return False."""
        self._since = now
        if self._protocol.closing:
            # A close with unread bytes resets the connection and may take the answer with it.
            self._lingering = LINGER_BYTES
            self.deadline = now + self._limits.linger_seconds
            self.interest = READ
            self.sock.shutdown(socket.SHUT_WR)
            self._discard()
            return False
        self._protocol.next_cycle()
        self._idle = not self._protocol.begun
        seconds = self._limits.idle_seconds if self._idle else self._limits.request_seconds
        self.deadline = now + seconds
        return True

    def _discard(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        self._lingering -= len(data)
        if not data or self._lingering <= 0:
            self.interest = 0
