-- Take up to $5 due suspects (jobs that saw their process crash) for a quarantine process.
--
-- $1 queues text[], $2 kinds text[], $3 priorities smallint[], $4 marks bigint[]: the combinations
--    to look into, in the order to take turns; mark = microseconds since 1970 where this
--    combination's scan starts (-2^56 = its beginning), a hint never needed for correctness
-- $5 limit int · $6 owners text[], one per job at most · $7 lease_seconds float8
--
-- One row per job taken. When none was due: one row with id null, available_us the present, and
-- due_seconds, the time until the first of these combinations has a due job (null: none waits).
--
-- A paused queue is left out here, so that a pause holds from its commit on.
-- Each combination is its own equality scan of jobs_suspect_idx; the inner LIMIT bounds it and
-- the outer one ends the loop, so only rows that are taken are locked, and neither foreign kinds
-- nor scheduled jobs are read.
WITH place AS MATERIALIZED (
    SELECT c.queue, c.kind, c.priority,
           timestamptz 'epoch' + c.mark * interval '1 microsecond' AS mark
    FROM unnest($1::text[], $2::text[], $3::smallint[], $4::bigint[])
        WITH ORDINALITY AS c (queue, kind, priority, mark, turn)
    WHERE c.queue <> ALL (ARRAY(SELECT q.name FROM paused_queues AS q))
    ORDER BY c.priority, c.turn
),
due AS MATERIALIZED (
    SELECT j.id
    FROM place AS p
    CROSS JOIN LATERAL (
        SELECT r.id
        FROM jobs AS r
        WHERE true
          AND r.state = 'ready' -- fence
          AND r.crashes > 0
          AND r.queue = p.queue
          AND r.kind = p.kind
          AND r.priority = p.priority
          AND r.available_at >= p.mark
          AND r.available_at <= now()
          AND r.attempts < r.max_attempts
        ORDER BY r.available_at, r.id
        LIMIT $5
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    LIMIT $5
),
numbered AS (
    SELECT id, row_number() OVER () AS n FROM due
),
taken AS (
    UPDATE jobs AS j
    SET state = 'running',
        attempts = j.attempts + 1,
        fence = j.fence + 1,
        lease_owner = ($6::text[])[numbered.n],
        lease_until = clock_timestamp() + $7::float8 * interval '1 second',
        claimed_at = clock_timestamp()
    FROM numbered
    WHERE j.id = numbered.id
    RETURNING numbered.n, j.id, j.lease_owner, j.fence, j.idempotency_key, j.kind, j.queue,
        j.priority, j.payload::text AS payload, j.attempts, j.max_attempts, j.crashes,
        j.refunds, j.snoozes,
        (extract(epoch FROM clock_timestamp() - j.available_at))::float8 AS wait_seconds,
        (extract(epoch FROM j.available_at) * 1000000)::bigint AS available_us,
        NULL::float8 AS due_seconds
)
SELECT * FROM taken
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    (extract(epoch FROM now()) * 1000000)::bigint,
    (extract(epoch FROM min(next.available_at) - now()))::float8
FROM place AS p
CROSS JOIN LATERAL (
    SELECT r.available_at
    FROM jobs AS r
    WHERE r.state = 'ready'
      AND r.crashes > 0
      AND r.queue = p.queue
      AND r.kind = p.kind
      AND r.priority = p.priority
      AND r.available_at > now()
    ORDER BY r.available_at
    LIMIT 1
) AS next
WHERE NOT EXISTS (SELECT FROM due)
HAVING NOT EXISTS (SELECT FROM due)
ORDER BY 1
