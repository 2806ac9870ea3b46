"""Opening accounts: an operator's act, not part of the HTTP interface.

Floor 6; imports postgres. The opening balance has no entry: it is what the first entry's balance
after, less its amount, says; of an account without entries, the balance.
"""

from __future__ import annotations

from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.ledger import schema
from reliable_worker.ledger.decode import MAX_ID
from reliable_worker.postgres.database import Connection


class AccountRefused(ReliableWorkerError):
    """The account cannot be opened; one line that says why."""


def create(conn: Connection, account_id: int, balance: int) -> None:
    """Open an account, committed at once. Raises AccountRefused, psycopg.Error."""
    if not 1 <= account_id <= MAX_ID:
        raise AccountRefused(f"an account's id is a whole number from 1 to {MAX_ID}")
    if not 0 <= balance <= MAX_ID:
        raise AccountRefused(f"a balance is a whole number from 0 to {MAX_ID}")
    if not schema.run(conn, "account_create", [account_id, balance]):
        raise AccountRefused(f"account {account_id} exists already; nothing was changed")
