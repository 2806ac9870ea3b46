-- obituary_left: how many jobs a dead process still holds.
-- Called by maintenance/obituary.py after freeing what it could lock.
-- $1 text: the boot id of the dead process, the prefix of its owners
-- $2 float8: the mark, a claimed_at in epoch seconds below which nothing runs
-- Rows: one row, left bigint
SELECT count(*) AS left
FROM jobs
WHERE state = 'running'
    AND claimed_at >= to_timestamp($2::float8)
    AND starts_with(lease_owner, $1::text || '.')
