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

from reliable_worker.http.message import Limits, Response, Ticket
from reliable_worker.http.peer import READ, Handler, House, Peer, Refuse
from reliable_worker.jobs.events import emit

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
        self._limits = limits
        self._house = House(handler, refuse, self._take, limits)
        self._wake = wake
        self._answers: deque[tuple[Ticket, Response]] = deque()
        self._awaited: dict[Ticket, Peer] = {}
        self._peers: dict[socket.socket, Peer] = {}
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
            elif isinstance(told, float):
                peer.deadline = now + told
            else:
                self._turn(peer, now, told)
        if self._resume_at is not None and self._resume_at <= now and self._selector is not None:
            self._resume_at = None
            for listener in self._listeners:
                self._selector.register(listener, READ, self._data)

    @property
    def owing(self) -> int:
        """Connections with a request that is not wholly read, answered and sent."""
        return sum(not (peer.silent or peer.lingering) for peer in self._peers.values())

    def cut(self, response: Response, now: float) -> int:
        """Answer every awaited request with this; returns how many there were."""
        peers = list(self._awaited.values())
        for peer in peers:
            self._turn(peer, now, response)
        return len(peers)

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
        for _ in range(max(1, self._limits.connections // 2)):
            try:
                sock, _address = listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause(now)
                return
            sock.setblocking(False)
            if len(self._peers) >= self._limits.connections:
                self._drop(min(self._peers.values(), key=Peer.worth))
            peer = Peer(sock, self._house, now)
            self._peers[sock] = peer
            # Whoever asks at once is answered at once, before another can take the place.
            self._turn(peer, now)

    def _pause(self, now: float) -> None:
        """No descriptor left: give up the least worthy connection and look again in a while."""
        if self._peers:
            self._drop(min(self._peers.values(), key=Peer.worth))
        if self._selector is not None:
            self._resume_at = now + ACCEPT_PAUSE_SECONDS
            for listener in self._listeners:
                self._selector.unregister(listener)

    def _turn(self, peer: Peer, now: float, response: Response | None = None) -> None:
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
        elif not peer.interest and self._selector is not None:
            # Most clients wait for their answer. Only one that sends on, or leaves, before it has
            # come is seen here again, and then not listened to until it has.
            if peer.registered and peer.ticket is before:
                self._selector.unregister(peer.sock)
                peer.registered = 0
        elif peer.interest and self._selector is not None and peer.interest != peer.registered:
            change = self._selector.modify if peer.registered else self._selector.register
            change(peer.sock, peer.interest, self._data)
            peer.registered = peer.interest

    def _await(self, before: Ticket | None, peer: Peer) -> None:
        """Note whom the peer's answer will come from; begin the work."""
        if before is not None:
            before.close()
            self._awaited.pop(before, None)
        if peer.ticket is not None and peer.deferred is not None:
            self._awaited[peer.ticket] = peer
            peer.deferred.start(peer.ticket)

    def _take(self, ticket: Ticket, response: Response) -> None:
        """Keep an answer for `deliver`; called in the thread that made it."""
        self._answers.append((ticket, response))
        self._wake()

    def _drop(self, peer: Peer) -> None:
        if peer.ticket is not None:
            self._awaited.pop(peer.ticket, None)
            peer.ticket.close()
        if peer.registered and self._selector is not None:
            self._selector.unregister(peer.sock)
        self._peers.pop(peer.sock, None)
        peer.sock.close()
