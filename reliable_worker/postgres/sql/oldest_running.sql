-- oldest_running: when the oldest running row of a stretch of time was claimed.
-- Called by maintenance/expire.py at every tick, and slice by slice for its full scan. It walks
-- jobs_expired_idx from $1 and stops at the first live row, so its cost is the dead index entries
-- it passes: that is why scans start at a mark.
-- $1 float8: from this claimed_at on, in epoch seconds, -Infinity allowed
-- $2 float8: before this one, Infinity allowed
-- Rows: one, always: now float8 (the database's clock), oldest float8 (null: none),
--   undated boolean (plain SQL wrote a running row without claimed_at: no mark finds it)
SELECT
    extract(EPOCH FROM clock_timestamp())::float8 AS now,
    (
        SELECT extract(EPOCH FROM claimed_at)::float8
        FROM jobs
        WHERE state = 'running'
            AND claimed_at >= to_timestamp($1::float8)
            AND claimed_at < to_timestamp($2::float8)
        ORDER BY claimed_at
        LIMIT 1
    ) AS oldest,
    EXISTS (SELECT FROM jobs WHERE state = 'running' AND claimed_at IS NULL) AS undated
