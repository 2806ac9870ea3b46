"""Every statement that writes on jobs touches exactly the rows it may; each fence is needed.

The matrix (see `matrix`, `verbs`) is run on each statement as it stands, then on each statement
with one of its marked predicates taken out: it must notice every time.
"""

from __future__ import annotations

import re
import threading
from importlib.resources import files

import psycopg
import pytest
from psycopg.raw_cursor import RawCursor

from tests.fixtures.waiting import wait_until
from tests.postgres import matrix, verbs

WRITES = re.compile(rb"^\s*(UPDATE|DELETE\s+FROM)\s+jobs\b", re.IGNORECASE | re.MULTILINE)
FENCE = re.compile(rb"^.*-- fence[ ]*$", re.MULTILINE)

STATEMENTS = {
    entry.name.removesuffix(".sql"): entry.read_bytes()
    for entry in files("reliable_worker.postgres").joinpath("sql").iterdir()
    if entry.name.endswith(".sql")
}
WRITING = sorted(name for name, text in STATEMENTS.items() if WRITES.search(text))
MUTANTS = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name in WRITING
    for number in range(1, 1 + len(FENCE.findall(STATEMENTS[name])))
]

Conn = psycopg.Connection[tuple[object, ...]]


def without(text: bytes, number: int) -> bytes:
    """The statement without its marked line of that number, counted from 1."""
    line = list(FENCE.finditer(text))[number - 1]
    return text[: line.start()] + text[line.end() :]


def test_every_writing_statement_is_in_the_matrix_and_fenced() -> None:
    assert sorted(verbs.VERBS) == WRITING
    unfenced = [name for name in WRITING if not FENCE.search(STATEMENTS[name])]
    assert unfenced == [], "writes on rows without a marked predicate"


@pytest.mark.quick
@pytest.mark.parametrize("name", WRITING)
def test_rows_are_touched_exactly_as_they_should_be(conn: Conn, name: str) -> None:
    assert matrix.mismatches(conn, verbs.VERBS[name], STATEMENTS[name]) == []


@pytest.mark.parametrize(("name", "number"), MUTANTS)
def test_the_matrix_misses_no_missing_fence(conn: Conn, name: str, number: int) -> None:
    mutant = without(STATEMENTS[name], number)
    assert matrix.mismatches(conn, verbs.VERBS[name], mutant), (
        "the matrix does not notice that this predicate is missing"
    )


@pytest.mark.parametrize("name", [verb.statement for verb in verbs.HOLDERS])
def test_a_lease_lost_while_waiting_for_its_row(dsn: str, conn: Conn, name: str) -> None:
    """Somebody takes the row while the holder's statement waits for its lock: nothing is written.

    What skips locked rows writes nothing at once; the others see the row as it is after the wait.
    """
    verb = verbs.VERBS[name]
    rows = matrix.populate(conn)
    (running,) = [row for row in rows if row["idempotency_key"] == "running"]
    touched: list[int] = []

    def ask(asking: Conn) -> None:
        params = verb.params(matrix.HOLDER, running["id"])
        touched.append(RawCursor(asking).execute(STATEMENTS[name], params).rowcount)

    with psycopg.connect(dsn) as taker, psycopg.connect(dsn, autocommit=True) as asking:
        taker.execute(
            "UPDATE jobs SET fence = fence + 1, lease_owner = %s WHERE id = %s",
            [matrix.FOREIGN_OWNER, running["id"]],
        )
        thread = threading.Thread(target=ask, args=[asking])
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        pid = asking.info.backend_pid
        wait_until(
            lambda: touched or conn.execute(waiting, [pid]).fetchone(), 30, "the statement waits"
        )
        taker.commit()
        thread.join(30)
    assert touched == [0]
    after = {row["id"]: row for row in matrix.read(conn)[0]}
    taken = {"fence": matrix.FENCE + 1, "lease_owner": matrix.FOREIGN_OWNER}
    assert after[running["id"]] == {**running, **taken}
