"""Failpoints: named places on a job's way where a test makes this process die, hang or fail.

Place on the way: none in production. The worker, the maintenance process and the fork code call
`reach()` at the points listed below; only a test that set both environment variables makes a call
do anything. Imports the standard library only.

`RELIABLE_WORKER_TEST=1` is the switch, `RELIABLE_WORKER_FAILPOINT` holds the orders:

    before_commit:kill                   every process that reaches the point
    before_commit:hang@/tmp/x/token      only the first process to get there, once

Orders are separated by commas. A token is a file that must not exist yet: whoever creates it obeys
the order, so a respawned child does not die again, and a test waits for the file (it holds the pid)
instead of sleeping. A hang ends when `<token>.go` appears.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

POINTS: Final = frozenset(
    {
        "after_claim_commit",  # the claim's rows are ours, no slot has one yet
        "before_dispatch",  # heartbeat alive, handler not yet called
        "after_handler",  # the handler returned, nothing of its outcome is written
        "after_first_effect",  # inside the finishing transaction, one effect executed
        "before_commit",  # inside the finishing transaction, everything executed
        "after_commit",  # COMMIT answered, nobody told yet
        "in_release",  # about to give a lease back
        "in_obituary",  # maintenance knows of a death and has not freed its rows
        "after_fork",  # first act of a child
    }
)
ACTIONS: Final = frozenset({"kill", "hang", "raise", "exit0", "stop"})

SWITCH: Final = "RELIABLE_WORKER_TEST"
ORDERS: Final = "RELIABLE_WORKER_FAILPOINT"
# systemd sets these two for its services; neither is there in a test's subprocess.
SERVICE_MARKS: Final = ("NOTIFY_SOCKET", "INVOCATION_ID")

# A hanging thread looks for its release this often: a test loses no more than that.
_HANG_POLL_SECONDS: Final = 0.02


class FailpointError(RuntimeError):
    """What a `raise` order raises at its point."""


class FailpointRefused(ValueError):
    """The orders cannot be obeyed: in a service, or not understood. The text is one line."""


@dataclass(frozen=True, slots=True)
class _Order:
    point: str
    action: str
    token: str | None


def _parse(text: str) -> dict[str, _Order]:
    orders: dict[str, _Order] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        point, colon, rest = part.partition(":")
        action, _, token = rest.partition("@")
        if not colon or point not in POINTS or action not in ACTIONS:
            raise FailpointRefused(
                f"{ORDERS}: {part!r} is not <point>:<action>[@token]; points: "
                f"{', '.join(sorted(POINTS))}; actions: {', '.join(sorted(ACTIONS))}"
            )
        orders[point] = _Order(point, action, token or None)
    return orders


def _orders(environ: Mapping[str, str]) -> dict[str, _Order]:
    if environ.get(SWITCH) != "1":
        return {}
    try:
        return _parse(environ.get(ORDERS, ""))
    except FailpointRefused:
        return {}  # an import never fails; check_allowed says what is wrong before any work


def check_allowed(environ: Mapping[str, str]) -> None:
    """Raise FailpointRefused when `environ` orders failpoints in a service or orders nonsense.

    `run` calls it before anything else: a worker that systemd started must never carry a way to
    be killed by a variable somebody left in its environment file.
    """
    if not environ.get(ORDERS):
        return
    for mark in SERVICE_MARKS:
        if mark in environ:
            raise FailpointRefused(
                f"{ORDERS} is set in a service ({mark} is set too); remove it from the unit's "
                "environment: failpoints are for tests"
            )
    if environ.get(SWITCH) == "1":
        _parse(environ[ORDERS])


_armed: dict[str, _Order] = _orders(os.environ)


def reach(point: str) -> None:
    """Do what the test ordered for `point`; nothing at all when no orders are there.

    Raises FailpointError for a `raise` order. A `kill` or `exit0` order does not return.
    """
    if not _armed:
        return
    order = _armed.get(point)
    if order is not None and _first(order.token):
        _obey(order)


def _first(token: str | None) -> bool:
    if token is None:
        return True
    try:
        made = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    os.write(made, str(os.getpid()).encode())
    os.close(made)
    return True


def _obey(order: _Order) -> None:
    match order.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # to this thread, which would otherwise run on until another one has stopped the process
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "exit0":
            os._exit(0)
        case "raise":
            raise FailpointError(f"failpoint {order.point}")
        case _:
            while order.token is None or not os.path.exists(f"{order.token}.go"):
                time.sleep(_HANG_POLL_SECONDS)
