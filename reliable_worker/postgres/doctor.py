"""What keeps, or may come to keep, a worker from working: the checks of `doctor`.

Floor 1; imports `catalog`, `marks`, `migrate`, `database`, its two siblings and settings. Every
check is a function that looks and returns findings; nothing here changes anything. Each finding
that is not "ok" comes with its remedy. This module asks about the way to the database and the
set-up; `doctor_live` about what goes on in it, `doctor_unit` about the service's unit.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Collection, Iterable

from reliable_worker.postgres import catalog, doctor_live, doctor_unit, marks, migrate
from reliable_worker.postgres.catalog import ServerFacts
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.findings import Finding
from reliable_worker.settings import Settings

OLDEST_SERVER = 140_000  # server_version_num of PostgreSQL 14
# A worker process holds, besides one connection per thread, one for claims and renewals and one
# that listens; maintenance and each quarantine child hold two.
_PER_PROCESS = 2
_MAINTENANCE = 2
_QUARANTINE = 2


def examine(
    conn: Connection, settings: Settings, kinds: Collection[str] | None
) -> Iterable[Finding]:
    """All checks, in the order in which their mends make sense.

    `kinds` are those the application handles; None skips that check. The session is one made by
    `database.connect`. Raises psycopg.Error.
    """
    facts = catalog.server_facts(conn)
    yield check_server(facts)
    yield from check_pooler(conn.info.backend_pid, facts, settings)
    parameters = conn.info.get_parameters()
    yield check_tls(conn.info.host, parameters.get("sslmode", "prefer"))
    yield from check_files(settings)
    schema = check_schema(conn)
    yield from schema
    yield check_budgets(settings)
    yield from doctor_unit.check_unit(settings)
    yield check_connections(facts, catalog.count_connections(conn), settings)
    if any(finding.level == "fail" for finding in schema):
        return  # what follows reads the tables
    privileges = check_privileges(catalog.missing_privileges(conn), facts.account)
    yield from privileges
    if any(finding.level == "fail" for finding in privileges):
        return  # as does this
    yield from doctor_live.examine(conn, settings, kinds)


def check_server(facts: ServerFacts) -> Finding:
    """Version and role of the server."""
    major = facts.version // 10_000
    where = f"PostgreSQL {major}, database {facts.database}, as {facts.account}"
    if facts.version < OLDEST_SERVER:
        return Finding("reach", "fail", where, "upgrade it to 14 or later")
    if facts.recovery:
        return Finding("reach", "fail", f"{where}: a standby", "name the primary in DATABASE_URL")
    return Finding("reach", "ok", where)


def check_pooler(own_pid: int, facts: ServerFacts, settings: Settings) -> Iterable[Finding]:
    """Whether another backend answers than the one connected to, or our settings were dropped."""
    wanted_ms = int(settings.statement_timeout_seconds * 1000)
    if own_pid != facts.pid:
        yield Finding(
            "pooler",
            "warn",
            "a pooler stands between; one that pools transactions loses LISTEN, so that idle"
            f" workers notice new jobs by their poll only ({settings.poll_seconds:g} s), and"
            " session settings",
            "point DATABASE_URL at the server itself, or pool sessions",
        )
    if facts.statement_timeout_ms != wanted_ms:
        yield Finding(
            "session",
            "warn",
            f"statement_timeout is {facts.statement_timeout_ms} ms, not the {wanted_ms} ms asked"
            " for: a pooler dropped it",
            f"as a superuser: ALTER ROLE {facts.account} SET the timeouts instead",
        )


def check_tls(host: str, sslmode: str) -> Finding:
    """Whether the way to the server can be read or redirected."""
    if _is_local(host):
        return Finding("tls", "ok", "the server is on this machine")
    if sslmode == "verify-full":
        return Finding("tls", "ok", "verify-full")
    return Finding(
        "tls",
        "warn",
        f"sslmode is {sslmode}: whoever stands between can read or replace the server",
        "add sslmode=verify-full (and sslrootcert) to DATABASE_URL",
    )


def check_files(settings: Settings) -> Iterable[Finding]:
    """Whether the password's file is for this account alone."""
    if settings.password_file:
        mode = stat.S_IMODE(os.stat(settings.password_file).st_mode)
        if mode & 0o007:
            yield Finding(
                "secrets",
                "warn",
                f"everybody may use {settings.password_file} (mode {mode:04o})",
                f"chmod o= {settings.password_file}",
                fix="password_file",
            )


def check_schema(conn: Connection) -> list[Finding]:
    """Whether this code works with the schema, and what is odd about it although it does."""
    found = marks.status(conn)
    if found.problem:
        text, _, remedy = found.problem.rpartition(": ")
        return [Finding("schema", "fail", text or remedy, remedy)]
    odd = []
    for text in migrate.verify(conn):
        what, _, remedy = text.partition(": ")
        check = "indexes" if text.startswith("index ") else "schema"
        odd.append(Finding(check, "warn", what, remedy or "reliable-worker migrate status"))
    return odd or [Finding("schema", "ok", f"version {found.version}, its indexes valid")]


def check_budgets(settings: Settings) -> Finding:
    """The budgets fit, or `settings.load` had refused them: say how."""
    s = settings
    renewal = s.renew_seconds + s.connect_timeout_seconds + s.query_timeout_seconds
    drain = s.claim_timeout_seconds + s.drain_grace_seconds + s.release_timeout_seconds
    return Finding(
        "budgets",
        "ok",
        f"a renewal is over after {renewal:g} s of the lease's {s.lease_seconds:g} s"
        f" less {s.margin_seconds:g} s; a drain after {drain:g} s of {s.stop_seconds:g} s",
    )


def needed_connections(settings: Settings) -> int:
    """The most connections one supervisor opens."""
    each = _PER_PROCESS + _QUARANTINE  # as many quarantine children as processes, at worst
    return settings.workers + settings.processes * each + _MAINTENANCE


def check_connections(
    facts: ServerFacts, connected: tuple[int, int], settings: Settings
) -> Finding:
    """Whether one supervisor's connections fit; `connected` is (all, those of workers) now."""
    needed = needed_connections(settings)
    limits = {
        "max_connections less the reserved ones": facts.max_connections - facts.reserved,
        f"the limit of role {facts.account}": facts.role_limit,
        f"the limit of database {facts.database}": facts.database_limit,
    }
    name, limit = min(
        ((name, limit) for name, limit in limits.items() if limit >= 0), key=lambda pair: pair[1]
    )
    if needed > limit:
        return Finding(
            "connections",
            "fail",
            f"a supervisor needs up to {needed}, {name} is {limit}",
            "raise it, or lower WORKERS and PROCESSES",
        )
    others = connected[0] - connected[1]
    free = facts.max_connections - facts.reserved - others
    if needed > free:
        return Finding(
            "connections",
            "warn",
            f"a supervisor needs up to {needed}, and others leave {free} now",
            "raise max_connections, or lower WORKERS and PROCESSES",
        )
    return Finding("connections", "ok", f"a supervisor needs up to {needed}; {name}: {limit}")


def check_privileges(missing: Collection[tuple[str, str]], account: str) -> list[Finding]:
    """Whether the account may do what the worker does."""
    if not missing:
        return [Finding("privileges", "ok", f"{account} may do what the worker does")]
    return [
        Finding(
            "privileges",
            "fail",
            f"{account} lacks {privilege} on {table}",
            f"as its owner: GRANT {privilege} ON {table} TO {account}",
        )
        for table, privilege in missing
    ]


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
