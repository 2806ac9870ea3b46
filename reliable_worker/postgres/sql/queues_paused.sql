-- The queues that are paused now.
--
-- Rows: name, paused_at, paused_until (null: until resumed); times without zone, in UTC.
-- Called by `queues list`, `top`, `jobs explain` and `doctor`.
SELECT q.name,
       q.paused_at AT TIME ZONE 'UTC' AS paused_at,
       q.paused_until AT TIME ZONE 'UTC' AS paused_until
FROM queues AS q
JOIN paused_queues AS p ON p.name = q.name
ORDER BY q.name
