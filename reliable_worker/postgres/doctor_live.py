"""doctor's look at what goes on in the database: notifications, clocks, vacuum, plans, jobs.

Floor 1; imports `operators`, `store`, `upkeep`, `statements` and settings. Everything it reads is
bounded. `FIXES` is what `doctor --fix` may do: nothing that could lose a job or block a claim.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reliable_worker.jobs.deadline import boottime
from reliable_worker.postgres import marks, operators, statements, store, upkeep
from reliable_worker.postgres.catalog import every, one
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.findings import Finding
from reliable_worker.postgres.lines import WORKER
from reliable_worker.settings import Settings

# How far this machine's clock may be from the database's: logs of both are read side by side.
SKEW_SECONDS = 2.0
# A transaction of this age keeps every dead row since; claims go by marks and do not mind, the
# table grows all the same.
PIN_SECONDS = 300.0
# Dead row versions that autovacuum should have been at: twice its threshold and more than live.
DEAD_ROWS = 20_000
# A table of so few pages is as well read as looked up in an index.
FEW_PAGES = 500
# "1,000 or more" is enough to be told.
MOST_COUNTED = 1_000
_NOTIFY_SECONDS = 2.0
_FIX_SECONDS = 900.0


def examine(
    conn: Connection, settings: Settings, kinds: Collection[str] | None
) -> Iterator[Finding]:
    """All checks of this module; see `doctor.examine`."""
    yield check_notify(conn, settings)
    yield check_clock(conn)
    yield from check_pins(conn)
    yield from check_tables(conn)
    yield check_plan(conn)
    yield from check_kinds(conn, settings, kinds)
    yield check_paused(conn)
    yield check_stuck(conn, settings)


def check_notify(conn: Connection, settings: Settings) -> Finding:
    """Whether a notification comes back on the session that listens."""
    word = f"doctor {uuid.uuid4().hex}"
    began = boottime()
    with conn.budget(
        settings.query_timeout_seconds + _NOTIFY_SECONDS, "round trip of a notification"
    ):
        store.listen(conn)
        upkeep.notify(conn, word)
        for heard in conn.notifies(timeout=_NOTIFY_SECONDS):
            if heard.payload == word:
                took = (boottime() - began) * 1000
                return Finding("notify", "ok", f"a notification came back in {took:.1f} ms")
    return Finding(
        "notify",
        "warn",
        "a notification did not come back: idle workers notice new jobs by their poll only"
        f" ({settings.poll_seconds:g} s)",
        "point DATABASE_URL at the server itself: a pooler of transactions drops LISTEN",
    )


def check_clock(conn: Connection) -> Finding:
    """How far this machine's clock is from the database's; no decision goes by it."""
    before = time.time()
    database = upkeep.clock(conn)
    return judge_clock(database - (before + time.time()) / 2)


def judge_clock(skew: float) -> Finding:
    """`skew`: the database's clock less this machine's, in seconds."""
    if abs(skew) <= SKEW_SECONDS:
        return Finding("clock", "ok", f"within {abs(skew):.2f} s of the database's")
    side = "behind" if skew > 0 else "before"
    return Finding(
        "clock",
        "warn",
        f"this machine's clock is {abs(skew):.0f} s {side} the database's: jobs go by the latter,"
        " the times in this machine's log by the former",
        "synchronise both: systemctl enable --now systemd-timesyncd (or chrony)",
    )


def check_pins(conn: Connection) -> list[Finding]:
    """What keeps vacuum from removing dead rows."""
    found = []
    for what, name, who, seconds, xids in every(conn, "doctor_pins", (PIN_SECONDS,)):
        if what == "slot":
            text = f"replication slot {name} is {who} and pins {xids} transactions' dead rows"
            remedy = f"let its reader catch up, or SELECT pg_drop_replication_slot('{name}')"
        elif what == "prepared":
            text = f"prepared transaction {name} of {who} is {seconds:.0f} s old"
            remedy = f"COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'"
        else:
            text = f"a transaction (backend {name}: {who}) is {seconds:.0f} s old"
            remedy = f"end it: SELECT pg_terminate_backend({name})"
        text += "; dead rows pile up meanwhile" if what != "slot" else ""
        found.append(Finding("pinned", "warn", text, remedy))
    return found or [Finding("pinned", "ok", f"no transaction is older than {PIN_SECONDS:g} s")]


def check_tables(conn: Connection) -> list[Finding]:
    """Whether vacuum keeps up with our tables."""
    found = []
    for name, live, dead, _, enabled in every(conn, "doctor_tables"):
        if not enabled:
            found.append(
                Finding(
                    "vacuum",
                    "warn",
                    f"autovacuum is off for {name}",
                    f"as its owner: ALTER TABLE {name} RESET (autovacuum_enabled); autovacuum = on",
                    fix="autovacuum" if name == "jobs" else None,
                )
            )
        if dead > DEAD_ROWS and dead > live:
            found.append(
                Finding(
                    "vacuum",
                    "warn",
                    f"{name} holds {dead} dead rows beside {live} live ones",
                    f"VACUUM (ANALYZE) {name}; see what pins them, if nothing is removed",
                    fix="vacuum" if name == "jobs" else None,
                )
            )
    return found or [Finding("vacuum", "ok", "autovacuum keeps up with our tables")]


def check_plan(conn: Connection) -> Finding:
    """Whether a claim goes by the index of ready jobs, as the planner sees the table now."""
    places = store.combinations(conn)[:MOST_COUNTED] or [store.Combination("default", "message", 5)]
    columns = (
        [place.queue for place in places],
        [place.kind for place in places],
        [place.priority for place in places],
        [0] * len(places),
    )
    plan = statements.plan(conn, "claim", (*columns, 1, ["doctor"], 30.0))
    pages = {name: count for name, _, _, count, _ in every(conn, "doctor_tables")}
    read = [
        node
        for node in _nodes(plan)
        if node.get("Relation Name") == "jobs" and node["Node Type"] == "Seq Scan"
    ]
    if read and pages["jobs"] > FEW_PAGES:
        return Finding(
            "plan",
            "warn",
            "a claim reads the whole table instead of jobs_claimable_idx",
            "ANALYZE jobs; if it stays, look for planner settings (enable_indexscan,"
            " random_page_cost) of this role or database",
            fix="analyze",
        )
    return Finding("plan", "ok", "a claim goes by its index")


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def check_kinds(
    conn: Connection, settings: Settings, kinds: Collection[str] | None
) -> Iterable[Finding]:
    """Whether jobs wait that no live worker, nor this application, will ever take."""
    places = store.combinations(conn)
    columns = (
        [place.queue for place in places],
        [place.kind for place in places],
        [place.priority for place in places],
    )
    waiting = every(conn, "doctor_waiting", (*columns, MOST_COUNTED))
    alive = operators.alive(conn)
    found = []
    for kind, queue, count in waiting:
        if any(each.serves(queue, kind) for each in alive):
            continue
        served = not settings.queues or queue in settings.queues
        if kinds is not None and kind in kinds and served:
            continue
        number = f"{count} or more" if count >= MOST_COUNTED else str(count)
        jobs = f"{number} ready job{'s' if count > 1 else ''} of kind {kind!r} in queue {queue!r}"
        known = any(kind in each.kinds for each in alive) or (kinds is not None and kind in kinds)
        if known:
            text, remedy = "wait: no worker serves that queue", f"add --queue {queue}"
        elif alive or kinds is not None:
            text, remedy = "wait for a handler", "deploy an application that has one (--app)"
        else:
            text, remedy = "wait: no worker is alive", "systemctl start reliable-worker"
        found.append(Finding("kinds", "warn", f"{jobs} {text}", remedy))
    return found or [Finding("kinds", "ok", "somebody handles every kind that waits")]


def check_paused(conn: Connection) -> Finding:
    """Whether a queue is paused, which is easily forgotten."""
    pauses = operators.paused(conn)
    if not pauses:
        return Finding("paused", "ok", "no queue is paused")
    names = ", ".join(repr(name) for name in sorted(pauses))
    return Finding(
        "paused", "warn", f"paused: {names}", f"reliable-worker queues resume {min(pauses)}"
    )


def check_stuck(conn: Connection, settings: Settings) -> Finding:
    """Whether jobs are running whose lease ran out two leases ago."""
    since = 2 * settings.lease_seconds
    stuck, first = one(conn, "doctor_stuck", (since, MOST_COUNTED))
    if not stuck:
        return Finding("stuck", "ok", "no lease has run out without being taken back")
    jobs = f"{stuck} job{' is' if stuck == 1 else 's are'}"
    return Finding(
        "stuck",
        "fail",
        f"{jobs} running under leases that ran out more than {since:g} s ago: nobody takes"
        " them back",
        "start a supervisor (its maintenance process does), see reliable-worker jobs explain"
        f" {first}",
    )


def _run(name: str) -> Callable[[Connection, Settings], None]:
    def fix(conn: Connection, settings: Settings) -> None:
        with conn.budget(_FIX_SECONDS, "doctor --fix"):
            marks.execute(conn, WORKER, "timeouts", ["2s", f"{_FIX_SECONDS:g}s"])
            statements.run(conn, name)

    return fix


def _close_password_file(conn: Connection, settings: Settings) -> None:
    file = Path(settings.password_file or "")
    file.chmod(file.stat().st_mode & 0o770)


FIXES: Mapping[str, Callable[[Connection, Settings], None]] = {
    "vacuum": _run("doctor_vacuum"),
    "analyze": _run("doctor_analyze"),
    "autovacuum": _run("doctor_autovacuum"),
    "password_file": _close_password_file,
}
