"""Each file in `sql/` is one valid statement that says what it is for."""

import re
from importlib.resources import files

import psycopg
import pytest
from psycopg import pq

STATEMENTS = {
    entry.name: entry.read_bytes()
    for entry in files("reliable_worker.postgres").joinpath("sql").iterdir()
    if entry.name.endswith(".sql")
}
Conn = psycopg.Connection[tuple[object, ...]]


@pytest.mark.quick
def test_every_statement_is_one_and_valid(conn: Conn) -> None:
    """The server itself parses and analyses each on the schema, with its $n as they are.

    Its Parse message refuses two statements in one.
    """
    refused = {}
    for name, text in STATEMENTS.items():
        result = conn.pgconn.prepare(b"", text)
        if result.status != pq.ExecStatus.COMMAND_OK:
            refused[name] = result.error_message.decode()
    assert refused == {}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_every_statement_says_what_it_is_for(name: str) -> None:
    text = STATEMENTS[name].decode()
    assert text.startswith("-- ")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("--"))
    body = re.sub(r"--.*", "", text)
    used = {int(number) for number in re.findall(r"\$(\d+)", body)}
    assert used == set(range(1, len(used) + 1)), "parameters are numbered without gaps"
    told = {int(number) for number in re.findall(r"\$(\d+)", head)}
    assert told == used, "the comment tells of each parameter, and of no other"
    assert not body.rstrip().endswith(";")
