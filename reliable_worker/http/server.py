"""An HTTP server without threads: a guest in somebody else's select loop.

Floor 1; imports `jobs.events` and this floor. The supervisor forks, so it may have no thread; its
one loop also answers scrapes. Nothing here waits: every socket is non-blocking, every connection
has one deadline that no byte extends, and the number of connections is bounded. Who comes when all
places are taken gets the place of the one that has kept us waiting longest, so clients that open
connections and say nothing, or drip, cannot shut out one that asks at once.

A handler that has to wait returns a `Deferred`: whatever threads it has answer through its ticket,
and the loop keeps the deadline of the answer, whoever sleeps.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence

from reliable_worker.http.message import (
    Deferred,
    HttpError,
    Limits,
    Request,
    Response,
    Ticket,
)
from reliable_worker.http.protocol import Protocol
from reliable_worker.jobs.events import emit

Handler = Callable[[Request], Response | Deferred]
Refuse = Callable[[HttpError], Response]

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
    no longer than until `next_deadline()`, and call `expire` after every sleep. Where handlers
    defer, `wake` ends that sleep (it is called in their threads), and `deliver` follows.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        handler: Handler,
        limits: Limits,
        *,
        refuse: Refuse = lambda error: error.response,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over listening sockets (made non-blocking here). The handler must not wait."""
        self._listeners = tuple(listeners)
        self.handler = handler
        self.limits = limits
        self.refuse = refuse
        self._wake = wake
        self._answers: deque[tuple[Ticket, Response]] = deque()
        self._awaited: dict[Ticket, _Peer] = {}
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

    @property
    def connections(self) -> int:
        return len(self._peers)

    @property
    def awaited(self) -> int:
        """Requests that have been given out and not been answered."""
        return len(self._awaited)

    def deliver(self, now: float) -> None:
        """Send the answers that have come since the last call."""
        while self._answers:
            ticket, response = self._answers.popleft()
            peer = self._awaited.get(ticket)
            if peer is not None:
                self._turn(peer, now, response)

    def expire(self, now: float) -> None:
        """End what has outlived its deadline."""
        for peer in [peer for peer in self._peers.values() if peer.deadline <= now]:
            told = peer.time_out()
            if told is None:
                self._drop(peer)
            else:
                self._turn(peer, now, told)
        if self._resume_at is not None and self._resume_at <= now and self._selector is not None:
            self._resume_at = None
            for listener in self._listeners:
                self._selector.register(listener, READ, self._data)

    def stop_accepting(self) -> None:
        """Close the listeners, and every connection that asks for nothing."""
        for listener in self._listeners:
            if self._selector is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(listener)
            listener.close()
        self._listeners = ()
        for peer in [peer for peer in self._peers.values() if peer.silent]:
            self._drop(peer)

    def close(self) -> None:
        """Leave the selector and close everything."""
        for peer in list(self._peers.values()):
            self._drop(peer)
        self.stop_accepting()

    def close_in_child(self) -> None:
        """Close a forked child's copies of the descriptors; the parent's connections live on."""
        for sock in (*self._listeners, *self._peers):
            sock.close()
        self._peers.clear()

    def _accept(self, listener: socket.socket, now: float) -> None:
        # Half of the places a turn: whoever came in this turn keeps its place through the next one,
        # in which its request is read.
        for _ in range(max(1, self.limits.connections // 2)):
            try:
                sock, _address = listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause(now)
                return
            sock.setblocking(False)
            if len(self._peers) >= self.limits.connections:
                self._drop(min(self._peers.values(), key=_Peer.worth))
            peer = _Peer(sock, self, now)
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

    def _turn(self, peer: _Peer, now: float, response: Response | None = None) -> None:
        """Let a peer go as far as it can; `response` is one that has come for it meanwhile."""
        before = peer.ticket
        try:
            peer.turn(now, response)
        except OSError:
            # Reset by the client, or gone: nothing to tell anybody.
            peer.interest = 0
        except Exception as error:
            emit("http_failed", "error", error=error)
            peer.interest = 0
        if peer.ticket is not before:
            self._await(before, peer)
        if not peer.interest and peer.ticket is None:
            self._drop(peer)
        elif not peer.interest and peer.registered and self._selector is not None:
            self._selector.unregister(peer.sock)
            peer.registered = 0
        elif peer.interest and self._selector is not None and peer.interest != peer.registered:
            change = self._selector.modify if peer.registered else self._selector.register
            change(peer.sock, peer.interest, self._data)
            peer.registered = peer.interest

    def _await(self, before: Ticket | None, peer: _Peer) -> None:
        """Note whom the peer's answer will come from; begin the work."""
        if before is not None:
            before.close()
            self._awaited.pop(before, None)
        if peer.ticket is not None and peer.deferred is not None:
            self._awaited[peer.ticket] = peer
            peer.deferred.start(peer.ticket)

    def take(self, ticket: Ticket, response: Response) -> None:
        """Keep an answer for `deliver`; called in the thread that made it."""
        self._answers.append((ticket, response))
        self._wake()

    def _drop(self, peer: _Peer) -> None:
        if peer.ticket is not None:
            self._awaited.pop(peer.ticket, None)
            peer.ticket.close()
        if peer.registered and self._selector is not None:
            self._selector.unregister(peer.sock)
        self._peers.pop(peer.sock, None)
        peer.sock.close()


class _Peer:
    """One connection. `interest` is what it waits for in the selector; 0, and no ticket: it ends.

    With a `ticket` the answer to its request is somebody else's work, and nothing is read.
    """

    def __init__(
        self,
        sock: socket.socket,
        server: Server,
        now: float,
    ) -> None:
        self.sock = sock
        self.interest = READ
        self.registered = 0
        self.ticket: Ticket | None = None
        self.deferred: Deferred | None = None
        self._server = server
        self._limits = server.limits
        self._protocol = Protocol(self._limits)
        self._since = self._began = now
        self.deadline = now + self._head_seconds
        self._unsent = memoryview(b"")
        self._lingering = 0
        self._idle = False
        self._timed_out = False

    @property
    def silent(self) -> bool:
        """Nothing is asked, owed or being said."""
        busy = self.ticket is not None or bool(self._unsent) or self._lingering > 0
        return not busy and not self._protocol.begun

    def worth(self) -> tuple[int, float]:
        """Whose place is given away first: the lowest. Then the one that has waited longest."""
        if self._lingering or self._idle:
            return 0, self._since
        if self.ticket is not None:
            return 3, self._since
        return (1 if not self._unsent else 2), self._since

    def turn(self, now: float, response: Response | None = None) -> None:
        """Read, answer and write as far as it goes without waiting."""
        if response is not None:
            self._put(response, now)
        elif self._lingering:
            self._discard()
            return
        elif self.ticket is not None:
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

    def time_out(self) -> Response | None:
        """What the client is told when its time is up; None: nothing, the connection ends."""
        if self.deferred is not None:
            return self.deferred.late()
        if self._protocol.begun and not self._unsent and not self._lingering:
            self._timed_out = True
            return self._server.refuse(HttpError(408, "Request Timeout"))
        return None

    @property
    def _head_seconds(self) -> float:
        return min(self._limits.head_seconds, self._limits.request_seconds)

    def _read(self, now: float) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if data and self._idle:
            self._idle = False
            self._since = self._began = now
            self.deadline = now + self._head_seconds
        self._protocol.receive(data)

    def _answer(self, now: float) -> bool:
        """Take the next request and make its response; False: there is none yet."""
        try:
            request = self._protocol.next_request()
            if request is None:
                self.interest = 0 if self._protocol.closing else READ
                if self._protocol.in_body:
                    self.deadline = self._began + self._limits.request_seconds
                return False
            answer = self._handled(request)
        except HttpError as error:
            answer = self._server.refuse(error)
        if isinstance(answer, Deferred):
            self.deferred = answer
            self.ticket = Ticket(self._server.take)
            self.interest = 0
            self._since = now
            self.deadline = now + answer.seconds
            return False
        self._put(answer, now)
        return True

    def _put(self, response: Response, now: float) -> None:
        """Begin to send."""
        self.ticket = self.deferred = None
        make = self._protocol.refuse if self._timed_out else self._protocol.respond
        self._unsent = memoryview(make(response))
        self._since = now
        self.deadline = now + self._limits.write_seconds

    def _handled(self, request: Request) -> Response | Deferred:
        try:
            return self._server.handler(request)
        except Exception as error:
            emit("http_failed", "error", error=error)
            return self._server.refuse(HttpError(500, "Internal Server Error"))

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
        self._began = now
        self._idle = not self._protocol.begun
        seconds = self._limits.idle_seconds if self._idle else self._head_seconds
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
