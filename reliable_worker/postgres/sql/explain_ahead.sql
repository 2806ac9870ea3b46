-- How many due jobs a worker takes before this one: those of its own place that are due earlier,
-- and all of the places named, which have a lower priority number.
--
-- $1 id bigint · $2 queues text[], $3 kinds text[], $4 priorities smallint[]: places before its own
-- $5 limit int: count no further, per place
-- One row: ahead bigint. Called by `jobs explain`.
SELECT own.n + others.n AS ahead
FROM (
    SELECT count(*) AS n
    FROM (
        SELECT o.id
        FROM jobs AS j
        CROSS JOIN LATERAL (
            SELECT r.id
            FROM jobs AS r
            WHERE r.state = 'ready'
              AND r.crashes = 0
              AND r.queue = j.queue
              AND r.kind = j.kind
              AND r.priority = j.priority
              AND (r.available_at, r.id) < (j.available_at, j.id)
            ORDER BY r.available_at, r.id
            LIMIT $5::int
        ) AS o
        WHERE j.id = $1::bigint
    ) AS earlier
) AS own,
(
    SELECT coalesce(sum(c.n), 0) AS n
    FROM unnest($2::text[], $3::text[], $4::smallint[]) AS p (queue, kind, priority)
    CROSS JOIN LATERAL (
        SELECT count(*) AS n
        FROM (
            SELECT r.id
            FROM jobs AS r
            WHERE r.state = 'ready'
              AND r.crashes = 0
              AND r.queue = p.queue
              AND r.kind = p.kind
              AND r.priority = p.priority
              AND r.available_at <= now()
            ORDER BY r.available_at, r.id
            LIMIT $5::int
        ) AS due
    ) AS c
) AS others
