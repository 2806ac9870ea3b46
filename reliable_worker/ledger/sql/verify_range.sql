-- Which transfers there are to look at.
-- $1 boolean: all of them, not only those since the last run
-- Returns: after which id, up to which, up to which the next run need not look again (one with a
-- lower id may still be waiting for its locks, but not for ten minutes), and the time.
-- Called by: ledger.verify.
SELECT CASE WHEN $1::boolean THEN 0 ELSE coalesce(
           (SELECT v.through_id FROM ledger_verifications AS v ORDER BY v.id DESC LIMIT 1), 0)
       END AS after_id,
       coalesce((SELECT max(t.transfer_id) FROM transfer_requests AS t), 0) AS up_to_id,
       coalesce((SELECT t.transfer_id FROM transfer_requests AS t
                 WHERE t.created_at < clock_timestamp() - interval '10 minutes'
                 ORDER BY t.transfer_id DESC LIMIT 1), 0) AS through_id,
       clock_timestamp()::text AS started_at
