-- How the jobs that wait in these queues divide, of the first $2 of each in the claim's order.
--
-- $1 names text[] · $2 limit int: count no further, per queue and index
-- Rows: queue, scheduled bigint (due later), suspects bigint (of both, run alone after a crash).
-- Called by `queues list` and `top`, beside the census.
SELECT n.queue,
       (o.scheduled + s.scheduled) AS scheduled,
       s.suspects
FROM unnest($1::text[]) AS n (queue)
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE w.available_at > now()) AS scheduled
    FROM (
        SELECT j.available_at
        FROM jobs AS j
        WHERE j.state = 'ready' AND j.crashes = 0 AND j.queue = n.queue
        ORDER BY j.kind, j.priority, j.available_at, j.id
        LIMIT $2::int
    ) AS w
) AS o
CROSS JOIN LATERAL (
    SELECT count(*) AS suspects, count(*) FILTER (WHERE w.available_at > now()) AS scheduled
    FROM (
        SELECT j.available_at
        FROM jobs AS j
        WHERE j.state = 'ready' AND j.crashes > 0 AND j.queue = n.queue
        ORDER BY j.kind, j.priority, j.available_at, j.id
        LIMIT $2::int
    ) AS w
) AS s
