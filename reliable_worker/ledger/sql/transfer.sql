-- One transfer, in one round trip and one transaction; ledger_transfer (migrations) says the rest.
-- $1 text: idempotency key, $2 bigint: sender, $3 bigint: receiver, $4 bigint: amount,
-- $5 boolean: enqueue a job transfer.completed, $6 integer: lock_timeout in ms
-- Returns: outcome text, transfer bigint; always one row. Called by: ledger.transfers.
SELECT outcome, transfer
FROM ledger_transfer($1::text, $2::bigint, $3::bigint, $4::bigint, $5::boolean, $6::integer)
