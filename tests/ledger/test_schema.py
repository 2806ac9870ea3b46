"""The ledger's schema: one file is the migrations; the tables refuse what the code refuses."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files

import psycopg
import pytest
from psycopg import errors, pq

from reliable_worker.ledger.schema import LEDGER
from reliable_worker.postgres import snapshot
from tests.fixtures.postgres import ROOT, Server
from tests.ledger.conftest import SCHEMAS, Conn, run_ledger

FOLDER = ROOT / "reliable_worker" / "ledger"
STATEMENTS = {path.stem: path.read_text("utf-8") for path in sorted((FOLDER / "sql").glob("*.sql"))}


def dump(server: Server, dsn: str) -> str:
    command = [str(server.pg_bin / "pg_dump"), "--inserts", "--no-owner", "-d", dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    text = re.sub(r"'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^']*'", "'TIME'", text)
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


def test_the_snapshot_is_the_migrations(server: Server, empty_dsn: str) -> None:
    path = "reliable_worker/ledger/schema.sql"
    command = "python -m reliable_worker.ledger.schema"
    assert (FOLDER / "schema.sql").read_text("utf-8") == snapshot.render(LEDGER, path, command)
    assert run_ledger(empty_dsn, "migrate", "up").returncode == 0
    migrated = dump(server, empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("DROP OWNED BY ledger_app, ledger_reader")
        conn.execute("DROP SCHEMA public CASCADE")
        conn.execute("CREATE SCHEMA public")
        conn.execute("GRANT USAGE ON SCHEMA public TO public")
    server.psql(empty_dsn.rpartition("/")[2], "-f", str(SCHEMAS[1]))
    assert objects(dump(server, empty_dsn)) == objects(migrated)
    assert run_ledger(empty_dsn, "migrate", "verify").returncode == 0


def objects(text: str) -> list[str]:
    """What a dump creates, without the schema that was made anew."""
    return sorted(part for part in re.split(r"\n--\n-- ", text) if "SCHEMA" not in part[:80])


@pytest.mark.quick
@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_one_valid_and_told(books: Conn, name: str) -> None:
    text = STATEMENTS[name]
    result = books.pgconn.prepare(b"", text.encode())
    assert result.status == pq.ExecStatus.COMMAND_OK, result.error_message.decode()
    assert text.startswith("-- ")
    told = {int(n) for n in re.findall(r"\$(\d+)", re.sub(r"^[^-].*", "", text, flags=re.M))}
    used = {int(n) for n in re.findall(r"\$(\d+)", re.sub(r"--.*", "", text))}
    assert told == used == set(range(1, len(used) + 1))


REFUSED = [
    ("UPDATE accounts SET balance = -1 WHERE id = 1", errors.CheckViolation),
    ("INSERT INTO accounts (id, balance) VALUES (0, 0)", errors.CheckViolation),
    ("INSERT INTO accounts (id, balance) VALUES (9, NULL)", errors.NotNullViolation),
    ("DELETE FROM accounts WHERE id = 1", errors.ForeignKeyViolation),
    ("UPDATE transfer_requests SET amount = 0", errors.CheckViolation),
    ("UPDATE transfer_requests SET status = 'failed'", errors.CheckViolation),
    ("UPDATE transfer_requests SET status = 'pending'", errors.CheckViolation),
    ("UPDATE transfer_requests SET to_id = from_id", errors.CheckViolation),
    ("UPDATE transfer_requests SET to_id = 99", errors.ForeignKeyViolation),
    ("UPDATE transfer_requests SET idempotency_key = 'short'", errors.CheckViolation),
    ("DELETE FROM transfer_requests", errors.ForeignKeyViolation),
    ("UPDATE entries SET amount = amount", errors.RestrictViolation),
    ("DELETE FROM entries", errors.RestrictViolation),
    ("TRUNCATE entries", errors.RestrictViolation),
    ("INSERT INTO entries VALUES (1, 1, 1, 5, 5)", errors.UniqueViolation),
    ("INSERT INTO entries VALUES (1, 2, 1, 5, 5)", errors.UniqueViolation),
    ("INSERT INTO entries VALUES (3, 1, 1, 5, -5)", errors.CheckViolation),
    ("INSERT INTO entries VALUES (3, 1, 1, 0, 5)", errors.CheckViolation),
    ("INSERT INTO entries VALUES (3, 1, 2, 5, 5)", errors.ForeignKeyViolation),
    ("INSERT INTO entries VALUES (99, 1, 1, 5, 5)", errors.ForeignKeyViolation),
]


@pytest.mark.parametrize(("statement", "error"), REFUSED, ids=[text for text, _ in REFUSED])
def test_the_tables_refuse_what_cannot_be(
    books: Conn, statement: str, error: type[psycopg.Error]
) -> None:
    books.execute("SELECT ledger_transfer('schema-01', 1, 2, 5, false, 500)")
    with pytest.raises(error):
        books.execute(statement.encode())


FORBIDDEN = {
    "ledger_app": [
        "INSERT INTO accounts (id, balance) VALUES (9, 9)",
        "UPDATE accounts SET id = 9 WHERE id = 1",
        "DELETE FROM accounts",
        "UPDATE transfer_requests SET amount = 1",
        "DELETE FROM transfer_requests",
        "UPDATE entries SET amount = 1",
        "DELETE FROM entries",
        "TRUNCATE entries",
        "SELECT * FROM jobs",
        "UPDATE reliable_ledger_migrations SET name = 'x'",
        "CREATE TABLE mine (id int)",
    ],
    "ledger_reader": [
        "SELECT ledger_transfer('schema-02', 1, 2, 5, false, 500)",
        "UPDATE accounts SET balance = 1",
        "INSERT INTO entries VALUES (1, 1, 1, 5, 5)",
    ],
}


@pytest.mark.parametrize("role", FORBIDDEN)
def test_roles_may_do_what_they_need_and_no_more(books: Conn, role: str) -> None:
    books.execute(f"SET ROLE {role}".encode())
    for table in ("accounts", "transfer_requests", "entries"):
        books.execute(f"SELECT * FROM {table}".encode())  # noqa: S608 -- names above
    for statement in FORBIDDEN[role]:
        with pytest.raises(errors.InsufficientPrivilege):
            books.execute(statement.encode())
    if role == "ledger_app":
        row = books.execute("SELECT (ledger_transfer('schema-03', 1, 2, 5, true, 500)).outcome")
        assert row.fetchone() == ("completed",)


def test_the_package_has_the_files() -> None:
    assert files("reliable_worker.ledger").joinpath("schema.sql").is_file()
    assert LEDGER.maximum == len(LEDGER.migrations)
