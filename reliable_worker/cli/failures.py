"""What to tell an operator when a verb fails: one line, the next step in it, and the exit code.

Floor 7; imports everything it explains, so `main` loads it only when something has failed. Errors
of libpq quote host names, users and databases, which with a mistyped URL may be pieces of its
password: their reasons are named here in our own words.
"""

from __future__ import annotations

import re

import psycopg

from reliable_worker.cli.main import PROGRAM
from reliable_worker.enqueue.app import AppError
from reliable_worker.jobs.errors import (
    BudgetExceeded,
    InvalidJob,
    ReliableWorkerError,
    UnknownKind,
    describe,
)
from reliable_worker.postgres.database import Fault, InvalidUrl, classify
from reliable_worker.postgres.marks import SchemaMismatch
from reliable_worker.postgres.migrate import LockHeld
from reliable_worker.settings import SettingsError

FAILED, USAGE, UNREACHABLE, SCHEMA, LOCKED = 1, 2, 3, 4, 75

_URL = "check DATABASE_URL"
_SECRET = "check DATABASE_URL or the password_file"
_NETWORK = "check network and firewall"
# Parts of what libpq and the server say while connecting → what it means, the next step.
_REASONS = (
    (r"password authentication failed", "it refuses the password", _SECRET),
    (r"no password supplied", "it asks for a password", _SECRET),
    (r"database .* does not exist", "it has no such database", f"create it, or {_URL}"),
    (r"role .* does not exist", "it knows no such user", f"create the role, or {_URL}"),
    (r"pg_hba\.conf", "its pg_hba.conf does not let this user in from here", "mend that file"),
    (r"too many|connection slots", "it has no free connection", "raise its max_connections"),
    (r"starting up|shutting down|recovery mode", "it is starting or stopping", "try again"),
    (r"read-write|read-only|hot standby", "it is a standby, which takes no writes", _URL),
    (r"definition of service", "its service is not defined", "mend pg_service.conf"),
    (r"invalid response|protocol", "what answers there is not PostgreSQL", _URL),
    (r"certificate|SSL|TLS", "TLS with it fails", f"{_URL}: sslmode and sslrootcert"),
    (r"refused", "nothing listens there", f"start PostgreSQL, or {_URL}"),
    (r"resolve|name or service|translate host", "its host name is not known", _URL),
    (r"No such file", "there is no such socket", f"start PostgreSQL, or {_URL}"),
    (r"unreachable|No route", "there is no network to it", _NETWORK),
    (r"timeout|timed out|within", "no answer in connect_timeout_seconds", _NETWORK),
)


def explain(error: Exception) -> tuple[int, str]:
    """(exit code, line) of an error that ended a verb."""
    if isinstance(error, SettingsError | InvalidUrl | AppError | InvalidJob | UnknownKind):
        return USAGE, str(error)
    if isinstance(error, SchemaMismatch):
        return SCHEMA, str(error)
    if isinstance(error, LockHeld):
        return LOCKED, str(error)
    if isinstance(error, psycopg.Error | BudgetExceeded):
        return _database(error)
    if isinstance(error, ReliableWorkerError):
        return FAILED, str(error)
    if isinstance(error, OSError):
        name = f" {error.filename}" if error.filename else ""
        return FAILED, f"{error.strerror or type(error).__name__}{name}"
    return FAILED, f"unexpected: {describe(error)}; this is a defect, please report it"


def _database(error: Exception) -> tuple[int, str]:
    fault = classify(error)
    state = getattr(error, "sqlstate", None) or ""
    if fault is Fault.INFRASTRUCTURE:
        return UNREACHABLE, f"the database cannot be reached: {reach(error)}"
    if fault is Fault.SCHEMA:
        return SCHEMA, f"{describe(error)}: run `{PROGRAM} migrate status`"
    if state in ("55P03", "40P01", "40001"):
        return LOCKED, "another transaction holds the row: try again"
    if state == "57014":
        return FAILED, "the database took too long: raise statement_timeout_seconds, or try again"
    if state == "42501":
        words = error.diag.message_primary if isinstance(error, psycopg.Error) else ""
        return FAILED, f"{words}: grant it, see `{PROGRAM} doctor`"
    return FAILED, describe(error)


def reach(error: Exception) -> str:
    """Why a connection failed and the next step, without a word of the URL."""
    words = re.sub(r"\"[^\"]*\"|'[^']*'", "", str(error))  # names, which may look like reasons
    for pattern, meaning, step in _REASONS:
        if re.search(pattern, words, re.IGNORECASE):
            return f"{meaning}; {step}"
    state = getattr(error, "sqlstate", None)
    return f"{type(error).__name__}{f' [{state}]' if state else ''}; {_URL}"
