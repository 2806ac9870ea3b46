"""What the world is told of the run: ready or not, and why, in a few words.

Floor 5, in the parent; imports process and this floor. All facts come from the board and from what
children have said: asking the database here would make a scrape wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from reliable_worker.supervisor.child import Process
from reliable_worker.supervisor.staff import Staff

# An idle worker polls every half second and maintenance every second; a database that has
# answered nobody for ten ticks of maintenance does not answer.
_CONTACT_SECONDS = 5.0
_CONTACT_TICKS = 10.0
# A kill takes effect at once; a child still there after this is in the kernel's hands.
_UNKILLABLE_SECONDS = 5.0


def contact_age(staff: Staff, now: float) -> float | None:
    """Seconds since the database last answered any child, None: never."""
    last = max((process.board.contact for process in staff.processes), default=0.0)
    return max(0.0, now - last) if last else None


def readiness(
    staff: Staff, now: float, *, was_ready: bool, draining: bool
) -> tuple[bool, Mapping[str, object]]:
    """Whether jobs can be run now, and what /readyz says beside it."""
    age = contact_age(staff, now)
    # A reaper slowed down by its setting is the maintenance tick's business, not a dead database.
    limit = max(_CONTACT_SECONDS, min(staff.settings.reap_seconds * 3, _CONTACT_TICKS))
    serving = sum(
        place.process is not None and place.process.serving for place in staff.wanted_workers
    )
    if draining:
        reason = "draining"
    elif age is None:
        reason = "no answer from the database yet"
    elif age > limit:
        reason = "the database does not answer"
    elif not was_ready:
        reason = "starting"
    elif not serving:
        reason = "no worker process is ready"
    else:
        reason = "ready"
    return reason == "ready", {
        "reason": reason,
        "workers_ready": serving,
        "workers_wanted": len(staff.wanted_workers),
        "database_contact_age_seconds": None if age is None else round(age, 3),
    }


def status_line(staff: Staff, now: float, *, was_ready: bool, draining: bool) -> str:
    """The line of `systemctl status`."""
    _, facts = readiness(staff, now, was_ready=was_ready, draining=draining)
    held = sum(process.board.held for process in staff.processes)
    return (
        f"{facts['reason']}: {facts['workers_ready']} of {facts['workers_wanted']}"
        f" worker processes ready, {held} jobs held"
    )


def feedable(processes: list[Process], now: float, watched_since: float) -> bool:
    """Whether the watchdog may be fed: every child beats, or is being dealt with in time.

    A stalled child is killed within a lease; one that outlives that, or its kill, is beyond this
    parent, and systemd must start over.
    """
    for process in processes:
        if process.killed_for is not None and now - process.killed_at > _UNKILLABLE_SECONDS:
            return False
        settings = process.settings
        limit = settings.lease_seconds + settings.stall_seconds
        if process.ready and now - max(process.board.beat_at, watched_since) > limit:
            return False
    return True
