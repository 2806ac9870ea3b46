-- What a run found.
-- $1 text: when it began, $2 bigint: accounts, $3 bigint: entries, $4 bigint: problems,
-- $5 bigint: transfers up to here need not be looked at again. Called by: ledger.verify.
INSERT INTO ledger_verifications (started_at, accounts, entries, problems, through_id)
VALUES ($1::text::timestamptz, $2::bigint, $3::bigint, $4::bigint, $5::bigint)
