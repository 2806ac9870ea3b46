"""A process that a handler forks gets no connection of ours: two on one socket corrupt it.

Floor 1; imports psycopg only. On the way of a job this matters when a handler forks (a library's
multiprocessing does) and the copy goes on with the job's transaction, or merely forgets to leave.
In the copy every inherited socket is replaced by /dev/null, so what it says reaches nobody and what
it asks fails at once; the original's sockets are untouched.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

import psycopg

_connections: WeakSet[psycopg.Connection[Any]] = WeakSet()


def watch(connection: psycopg.Connection[Any]) -> None:
    """Take `connection` away from every copy of this process."""
    _connections.add(connection)


def _take_away() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_connections):
        try:
            os.dup2(nothing, connection.pgconn.socket, inheritable=False)
        except (psycopg.Error, OSError):
            continue  # closed already
    os.close(nothing)


os.register_at_fork(after_in_child=_take_away)
