"""The verbs: what `serve` refuses to start on, what operators are told, exit codes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from reliable_worker.ledger.settings import FIELDS
from tests.fixtures.postgres import Server
from tests.ledger.conftest import Conn, Ledger, balance, run_ledger


def test_migrate_installs_and_says_where_it_stands(empty_dsn: str) -> None:
    assert run_ledger(empty_dsn, "migrate", "status").returncode == 4
    assert run_ledger(empty_dsn, "serve").returncode == 4
    done = run_ledger(empty_dsn, "migrate", "up", "--json")
    assert (done.returncode, json.loads(done.stdout)["version"]) == (0, 1)
    for action in ("up", "status", "verify"):
        assert run_ledger(empty_dsn, "migrate", action).returncode == 0
    done = run_ledger(empty_dsn, "migrate", "force", "0")
    assert done.returncode == 2
    assert "reliable-ledger" in run_ledger(empty_dsn, "migrate", "--help").stdout
    # There is no table of jobs, so the outbox has to be switched off.
    done = run_ledger(empty_dsn, "serve")
    assert done.returncode == 4
    assert "LEDGER_OUTBOX=off" in done.stderr


@pytest.mark.quick
def test_account_create(ledger_dsn: str, books: Conn) -> None:
    done = run_ledger(ledger_dsn, "account", "create", "100", "--balance", "5", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"id": 100, "balance": 5})
    assert balance(books, 100) == 5
    for words, code in (
        (("100",), 1),
        (("0",), 1),
        (("101", "--balance", "-1"), 1),
        (("9223372036854775808",), 1),
        (("one",), 2),
        ((), 2),
    ):
        done = run_ledger(ledger_dsn, "account", "create", *words)
        assert done.returncode == code, words
        assert done.stderr.startswith("reliable-ledger: ")
        assert done.stderr.count("\n") == 1


def test_config_shows_every_setting_and_no_secret() -> None:
    secret = "postgresql://u:s3cret@localhost/x"
    done = run_ledger(secret, "config", "--json", webhook_secret="whsec_c2VjcmV0", webhook_url="x")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert set(shown) == set(FIELDS)
    assert shown["pool_max"] == {"value": 20, "source": "default"}
    assert shown["database_url"] == {"value": "<redacted>", "source": "environment"}
    assert "s3cret" not in done.stdout
    assert "c2VjcmV0" not in done.stdout


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"header_seconds": 6}, "LEDGER_HEADER_SECONDS"),
        ({"lock_timeout_seconds": 1.5}, "LEDGER_LOCK_TIMEOUT_SECONDS"),
        ({"statement_timeout_seconds": 2}, "LEDGER_STATEMENT_TIMEOUT_SECONDS"),
        ({"request_seconds": 1}, "LEDGER_STATEMENT_TIMEOUT_SECONDS"),
        ({"shutdown_seconds": 15}, "LEDGER_SHUTDOWN_SECONDS"),
        ({"pool_min": 21}, "LEDGER_POOL_MIN"),
        ({"pool_max": 0}, "LEDGER_POOL_MAX"),
        ({"pool_max": "many"}, "LEDGER_POOL_MAX"),
        ({"request_seconds": "nan"}, "LEDGER_REQUEST_SECONDS"),
        ({"outbox": "perhaps"}, "LEDGER_OUTBOX"),
        ({"address": "nowhere"}, "LEDGER_ADDRESS"),
        ({"log_level": "loud"}, "LEDGER_LOG_LEVEL"),
        ({"pool_maximum": 3}, "LEDGER_POOL_MAXIMUM"),
        ({"webhook_url": "https://example.org/"}, "LEDGER_WEBHOOK_SECRET"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, object], word: str) -> None:
    done = run_ledger("postgresql:///x", "serve", **settings)
    assert done.returncode == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pool_that_the_server_cannot_bear(ledger_dsn: str) -> None:
    """The tests' server takes 200 connections, 3 of them for superusers only."""
    done = run_ledger(ledger_dsn, "serve", pool_max=180, reserve_connections=20)
    assert done.returncode == 2
    assert "max_connections" in done.stderr


def test_a_taken_port(ledger: Callable[..., Ledger], ledger_dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_ledger(ledger_dsn, "serve", address=address)
    assert done.returncode == 1
    assert address in done.stderr


def test_a_database_that_does_not_answer() -> None:
    """Nobody accepts, nobody answers: over within the connect's budget of 3 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = run_ledger(f"postgresql://u:s3cret@127.0.0.1:{port}/x", "serve")
    assert done.returncode == 3
    assert "s3cret" not in done.stderr
    assert run_ledger("postgresql://127.0.0.1:1/x", "serve").returncode == 3


def test_a_password_file(ledger: Callable[..., Ledger], ledger_dsn: str, tmp_path: Path) -> None:
    """Read at every connect; one that is not there is a bad setting, at once."""
    before, _, after = ledger_dsn.partition("@")
    user, _, password = before.partition("://")[2].partition(":")
    path = tmp_path / "password"
    dsn = f"postgresql://{user}@{after}"
    assert run_ledger(dsn, "serve", password_file=path).returncode == 2
    path.write_text(f"{password}\n")
    with ledger(dsn, password_file=path).client() as client:
        assert client.transfer(1, 2, 5).status == 200


def test_a_dirty_schema_is_refused(ledger_dsn: str, books: Conn) -> None:
    books.execute("UPDATE reliable_ledger_migrations SET state = 'running', applied_at = NULL")
    done = run_ledger(ledger_dsn, "serve")
    assert done.returncode == 4
    assert "reliable-ledger migrate force" in done.stderr


def test_the_service_s_own_role_is_enough(
    ledger: Callable[..., Ledger], ledger_dsn: str, server: Server, books: Conn
) -> None:
    """Everything the interface offers, as ledger_app; what it does not, it may not do."""
    books.execute("ALTER ROLE ledger_app PASSWORD 'app'")
    parts = ledger_dsn.partition("@")
    dsn = f"postgresql://ledger_app:app@{parts[2]}"
    with ledger(dsn).client() as client:
        assert client.transfer(1, 2, 5, "as-the-app-1").status == 200
        assert client.transfer(1, 2, 5, "as-the-app-1").status == 200
        for path in ("/accounts/1", "/accounts/1/entries", "/transfers/1"):
            assert client.get(path).status == 200
        assert client.get("/readyz").status == 204
