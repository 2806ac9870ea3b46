"""Running the effects a handler recorded, inside the transaction that completes its job.

Floor 3. Effects of many jobs share a transaction, so one that ended it would commit its neighbours'
completions without their effects. Therefore each is sent as exactly one statement (the extended
protocol takes no more), a statement that ends or begins a transaction is refused unsent, and the
transaction is looked at after each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from reliable_worker.jobs import failpoints
from reliable_worker.jobs.errors import TransactionBroken
from reliable_worker.jobs.job import Params
from reliable_worker.postgres.database import Connection

Effect = tuple[Any, Params | None]

# Statements that leave nothing behind in a session.
PLAIN_TAGS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})

# First words of effects that may share a transaction with other jobs' effects.
_MINGLING = PLAIN_TAGS | {"SELECT", "WITH"}

# What may stand before the first word: blanks, and comments, which may hold comments.
_BLANKS = re.compile(r"(?:\s|;|--[^\r\n]*)*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_WORD = re.compile(r"[A-Za-z]+")
_CONTROL = frozenset(
    {"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE"}
)


def run(conn: Connection, effects: Sequence[Effect]) -> set[str]:
    """Run one job's effects in order; the statements' tags (INSERT, SELECT, …).

    Raises psycopg.Error, and `TransactionBroken` for a statement that ends the transaction.
    """
    tags: set[str] = set()
    for number, (query, params) in enumerate(effects):
        _refuse_control(query)
        # binary: asks for the extended protocol also where there are no parameters
        cursor = conn.execute(query, params, binary=True)
        _still_inside(conn)
        tags.add(tag(cursor))
        if number == 0:
            failpoints.reach("after_first_effect")
    return tags


def run_together(conn: Connection, query: Any, rows: Sequence[Params]) -> set[str]:
    """Run the same effect of many jobs in one round trip; raises as `run` does."""
    _refuse_control(query)
    with conn.cursor() as cursor:
        cursor.executemany(query, rows)
        _still_inside(conn)
        found = tag(cursor)
    failpoints.reach("after_first_effect")
    return {found}


def together(effects: Sequence[Effect]) -> Any:
    """The statement by which a job can join others in `run_together`; None: it cannot."""
    if len(effects) != 1:
        return None  # its own effects have an order
    query, params = effects[0]
    return query if isinstance(query, str) and params is not None else None


def mingle(effects: Sequence[Effect]) -> bool:
    """Whether these effects may share a transaction with those of other jobs.

    A setting made for one transaction (SET LOCAL, deferred constraints) lasts until its COMMIT:
    with a neighbour's search_path or role, a job's rows would go elsewhere.
    """
    try:
        return all(
            _first_word(query) in _MINGLING and "set_config" not in str(query)
            for query, _ in effects
        )
    except Exception:  # a query that cannot even be read fails by itself, when it runs
        return False


def tag(cursor: psycopg.Cursor[Any]) -> str:
    """The kind of statement a cursor ran last: INSERT, SELECT, SET …"""
    return (cursor.statusmessage or "").split(" ")[0]


def traceless(query: Any, word: str) -> bool:
    """Whether a statement of this tag can leave nothing in the session.

    A SELECT can by the functions it calls (set_config, advisory locks), so one without a
    parenthesis cannot.
    """
    plain = word == "SELECT" and isinstance(query, str) and "(" not in query
    return plain or word in PLAIN_TAGS


def _refuse_control(query: Any) -> None:
    word = _first_word(query)
    if word in _CONTROL:
        raise TransactionBroken(
            f"an effect is {word}: effects run inside the job's transaction "
            "and cannot end or begin one"
        )


def _still_inside(conn: Connection) -> None:
    if conn.info.transaction_status is not TransactionStatus.INTRANS:
        raise TransactionBroken("an effect ended the transaction it belongs to")


def _first_word(query: object) -> str:
    if isinstance(query, Composable):
        text = query.as_string()
    elif isinstance(query, bytes):
        text = query.decode("utf-8", "replace")
    else:
        text = str(query)
    word = _WORD.match(text, _first_place(text))
    return word.group().upper() if word else ""


def _first_place(text: str) -> int:
    """Where the first word begins."""
    at = 0
    while True:
        blanks = _BLANKS.match(text, at)
        at = blanks.end() if blanks else at
        if not text.startswith("/*", at):
            return at
        depth = 0
        for edge in _COMMENT_EDGE.finditer(text, at):
            depth += 1 if edge.group() == "/*" else -1
            if depth == 0:
                at = edge.end()
                break
        else:
            return len(text)
