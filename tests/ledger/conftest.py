"""Fixtures of the ledger: a database with accounts, and the service as a real process on it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping

import psycopg
import pytest

from tests.fixtures.commands import COMMAND_SECONDS, Fleet, clean_environment
from tests.fixtures.postgres import ROOT, Server
from tests.fixtures.waiting import wait_until
from tests.ledger.client import Client

COMMAND = ("-c", "from reliable_worker.cli.ledger import main; raise SystemExit(main())")
SCHEMAS = (ROOT / "schema.sql", ROOT / "reliable_worker" / "ledger" / "schema.sql")
ACCOUNTS = 8
OPENING = 10_000
LAST_EVENTS = 20

Conn = psycopg.Connection


class Ledger(Fleet):
    """A running `reliable-ledger serve`."""

    @property
    def address(self) -> str:
        """host:port, once it listens."""
        wait_until(
            lambda: self.find("ledger_listening") or self.process.poll() is not None,
            COMMAND_SECONDS,
            "the service listens or ends",
        )
        assert self.process.poll() is None or self.find("ledger_listening"), self.stderr()
        return str(self.find("ledger_listening")[0]["address"])

    def client(self) -> Client:
        return Client(self.address)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series whose labels include these."""
        from tests.fixtures.scraping import scrape, total

        return total(scrape(self.address), f"reliable_ledger_{name}", **labels)


def ledger_environment(dsn: str, **settings: object) -> dict[str, str]:
    """An environment with these settings of the ledger and no others."""
    base = {k: v for k, v in clean_environment().items() if not k.startswith("LEDGER_")}
    given = {f"LEDGER_{name.upper()}": str(value) for name, value in settings.items()}
    return base | {"LEDGER_DATABASE_URL": dsn} | given


def run_ledger(dsn: str, *args: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """One command of `reliable-ledger` to its end."""
    return subprocess.run(
        [sys.executable, *COMMAND, *args],
        check=False,
        env=ledger_environment(dsn, **settings),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        cwd=ROOT,
    )


@pytest.fixture(scope="session")
def ledger_template(server: Server) -> str:
    """A database with the worker's and the ledger's schema and a few accounts of 10,000."""
    name = "ledger_template"
    server.create(name)
    for schema in SCHEMAS:
        server.psql(name, "-f", str(schema))
    open_accounts(server.dsn(name))
    return name


@pytest.fixture
def ledger_dsn(server: Server, ledger_template: str) -> Iterator[str]:
    """A fresh copy of it."""
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    server.create(name, ledger_template)
    yield server.dsn(name)
    server.drop(name)


@pytest.fixture
def books(ledger_dsn: str) -> Iterator[Conn]:
    """An autocommit connection to `ledger_dsn`, past the service."""
    with psycopg.connect(ledger_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def ledger(ledger_dsn: str) -> Iterator[Callable[..., Ledger]]:
    """Starts services on `ledger_dsn` (or `dsn=`) with settings by name; all end with the test."""
    started: list[Ledger] = []

    def start(
        dsn: str = ledger_dsn, *, env: Mapping[str, str] | None = None, **settings: object
    ) -> Ledger:
        values = {"address": "127.0.0.1:0", **settings}
        environment = ledger_environment(dsn, **values) | dict(env or {})
        started.append(Ledger(["serve"], environment, ROOT, COMMAND))
        return started[-1]

    yield start
    for one in started:
        print(f"-- ledger {one.pid}: exit {one.process.poll()}, {len(one.events)} events")
        print("".join(f"{json.dumps(event)}\n" for event in one.events[-LAST_EVENTS:]))
        print(one.stderr()[-3000:])
        one.kill_all()


@pytest.fixture(scope="module")
def shared(server: Server, ledger_template: str) -> Iterator[Ledger]:
    """One service for a module of tests that only need any."""
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    server.create(name, ledger_template)
    environment = ledger_environment(server.dsn(name), address="127.0.0.1:0")
    one = Ledger(["serve"], environment, ROOT, COMMAND)
    yield one
    one.kill_all()
    server.drop(name)


def open_accounts(dsn: str, count: int = ACCOUNTS, balance: int = OPENING) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO accounts (id, balance) SELECT n, %s FROM generate_series(1, %s) AS n",
            (balance, count),
        )


def balance(conn: Conn, account: int) -> int:
    row = conn.execute("SELECT balance FROM accounts WHERE id = %s", (account,)).fetchone()
    assert row is not None
    return int(row[0])


def count(conn: Conn, table: str) -> int:
    row = conn.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 -- tests' names
    assert row is not None
    return int(row[0])


def check_books(conn: Conn, total: int = ACCOUNTS * OPENING) -> None:
    """What always holds: money is conserved, and every entry, balance and transfer fits."""
    checks = {
        "SELECT sum(balance) FROM accounts": total,
        "SELECT count(*) FROM transfer_requests WHERE status <> 'completed'": 0,
        "SELECT count(*) FROM (SELECT transfer_id FROM entries GROUP BY 1"
        " HAVING count(*) <> 2 OR sum(amount) <> 0) AS bad": 0,
        "SELECT (SELECT count(*) FROM entries) - 2 * (SELECT count(*) FROM transfer_requests)": 0,
    }
    found = {query: conn.execute(query.encode()).fetchone() for query in checks}
    assert {query: row[0] if row else None for query, row in found.items()} == checks
    dsn = conn.info.dsn + f" password={conn.info.password}"
    done = run_ledger(dsn, "verify", "--full")
    assert done.returncode == 0, done.stdout + done.stderr
