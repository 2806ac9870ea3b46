"""`reliable-ledger verify`: does every entry, balance and sequence fit together?

Floor 6; imports postgres. Without locks, beside running transfers: an account's row says how many
entries belong to it, and those were committed with it. An account in order is marked, and the next
run goes on there; one that is not is looked at again every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from psycopg.rows import TupleRow

from reliable_worker.ledger import schema
from reliable_worker.postgres.database import Connection

# Problems told one by one; beyond that their number says enough.
TOLD = 100
ACCOUNTS_PER_BATCH = 500
ENTRIES_PER_BATCH = 5_000
TRANSFERS_PER_BATCH = 20_000
# Of the client's waits: a batch is a few ten milliseconds of work.
BATCH_SECONDS = 60.0
# How often a long run says where it is.
SAY_EVERY_ENTRIES = 500_000


@dataclass(slots=True)
class Report:
    """What a run looked at and found; `problems` are the first of `count`."""

    accounts: int = 0
    entries: int = 0
    count: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Account:
    id: int
    balance: int
    last_sequence: int
    sequence: int  # in order up to here
    balance_after: int | None


def verify(
    conn: Connection, *, full: bool, say: Callable[[str], None] = lambda text: None
) -> Report:
    """Look at what is new, or at everything. Raises psycopg.Error."""
    report = Report()
    ((after_id, up_to_id, through_id, started_at),) = _run(conn, "verify_range", [full])
    for account in _accounts(conn, full):
        found = list(_check_account(conn, account, report, say))
        report.accounts += 1
        _note(report, found)
        if not found and account.last_sequence:
            _run(conn, "verify_mark", [account.id, account.last_sequence, account.balance])
    for start in range(after_id, up_to_id, TRANSFERS_PER_BATCH):
        end = min(start + TRANSFERS_PER_BATCH, up_to_id)
        for transfer_id, status, entries in _run(conn, "verify_transfers", [start, end]):
            _note(report, [f"transfer {transfer_id} is {status} with {entries} entries, not two"])
    if report.count:
        through_id = after_id  # until they are mended they are found again
    _run(
        conn,
        "verify_record",
        [started_at, report.accounts, report.entries, report.count, max(after_id, through_id)],
    )
    return report


def _accounts(conn: Connection, full: bool) -> Iterator[_Account]:
    after = 0
    while rows := _run(conn, "verify_accounts", [after, full, ACCOUNTS_PER_BATCH]):
        for row in rows:
            yield _Account(*row)
        after = rows[-1][0]


def _check_account(
    conn: Connection, account: _Account, report: Report, say: Callable[[str], None]
) -> Iterator[str]:
    """The problems of one account."""
    name = f"account {account.id}"
    sequence, balance = account.sequence, account.balance_after
    while rows := _run(
        conn,
        "verify_entries",
        [account.id, sequence, account.last_sequence, ENTRIES_PER_BATCH],
    ):
        for number, transfer_id, amount, after, as_asked, balanced in rows:
            if number != sequence + 1:
                yield f"{name}: after entry {sequence} comes {number}"
            elif balance is not None and balance + amount != after:
                yield f"{name}: entry {number} says {after}, not {balance + amount}"
            elif balance is None and after - amount < 0:
                yield f"{name}: entry {number} says the opening balance was {after - amount}"
            if not as_asked:
                yield f"{name}: entry {number} is not what transfer {transfer_id} asked for"
            if not balanced:
                yield f"{name}: the entries of transfer {transfer_id} are not two that sum to 0"
            sequence, balance = number, after
        before, report.entries = report.entries, report.entries + len(rows)
        if before // SAY_EVERY_ENTRIES != report.entries // SAY_EVERY_ENTRIES:
            say(f"{report.entries} entries, at {name}")
    if sequence != account.last_sequence:
        yield f"{name}: has {account.last_sequence} entries, but the last found is {sequence}"
    elif sequence and balance != account.balance:
        yield f"{name}: its balance is {account.balance}, its last entry says {balance}"
    for (count,) in _run(conn, "verify_beyond", [account.id]):
        if count:
            yield f"{name}: {count} entries are beyond its last sequence"


def _note(report: Report, found: list[str]) -> None:
    report.count += len(found)
    report.problems += found[: TOLD - len(report.problems)]


def _run(conn: Connection, name: str, params: list[object]) -> list[TupleRow]:
    with conn.budget(BATCH_SECONDS, name):
        return schema.run(conn, name, params)
