-- How many jobs wait in each of these places, due or not, suspects aside.
--
-- $1 queues text[], $2 kinds text[], $3 priorities smallint[]: as `combinations` found them
-- $4 limit int: count no further, per place
-- One row per kind and queue: kind, queue, waiting bigint. Called by `doctor`.
SELECT p.kind, p.queue, sum(c.n)::bigint AS waiting
FROM unnest($1::text[], $2::text[], $3::smallint[]) AS p (queue, kind, priority)
CROSS JOIN LATERAL (
    SELECT count(*) AS n
    FROM (
        SELECT j.id
        FROM jobs AS j
        WHERE j.state = 'ready'
          AND j.crashes = 0
          AND j.queue = p.queue
          AND j.kind = p.kind
          AND j.priority = p.priority
        ORDER BY j.available_at, j.id
        LIMIT $4::int
    ) AS w
) AS c
GROUP BY p.kind, p.queue
ORDER BY p.kind, p.queue
