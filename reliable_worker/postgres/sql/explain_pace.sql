-- How quickly jobs like this one end at present: those of the last minute among the 2,000 that were
-- enqueued just before the first that still waits in its place.
--
-- $1 id bigint
-- One row: ended bigint, seconds float8 (the time in which they ended: a minute, or since the
-- first of them if all 2,000 did). Called by `jobs explain`.
SELECT count(*) AS ended,
       CASE
           WHEN count(*) < 2000 THEN 60.0
           ELSE extract(epoch FROM now() - min(past.ended_at))::float8
       END AS seconds
FROM (
    SELECT before.ended_at
    FROM jobs AS j
    CROSS JOIN LATERAL (
        SELECT r.id
        FROM jobs AS r
        WHERE r.state = 'ready'
          AND r.crashes = 0
          AND r.queue = j.queue
          AND r.kind = j.kind
          AND r.priority = j.priority
        ORDER BY r.available_at, r.id
        LIMIT 1
    ) AS first
    CROSS JOIN LATERAL (
        SELECT p.ended_at
        FROM jobs AS p
        WHERE p.id < first.id
        ORDER BY p.id DESC
        LIMIT 2000
    ) AS before
    WHERE j.id = $1::bigint
) AS past
WHERE past.ended_at > now() - interval '1 minute'
