-- Give up a transaction.
ROLLBACK
