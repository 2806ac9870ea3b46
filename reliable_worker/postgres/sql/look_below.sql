-- look_below: the oldest due job of each stretch of time that claims pass over.
-- Called by worker/places.py now and then: a claim starts at its combination's mark, and what
-- became due behind that (a job released in its old place, a transaction that committed late) is
-- found here. Reads only: it walks jobs_claimable_idx to the first live row of each stretch.
-- $1 queues text[], $2 kinds text[], $3 priorities smallint[]
-- $4 bigint[], $5 bigint[]: from, and before, in microseconds since 1970
-- Rows: queue, kind, priority, available_us bigint, one row per stretch with a due job
SELECT c.queue, c.kind, c.priority,
       (extract(epoch FROM first.available_at) * 1000000)::bigint AS available_us
FROM unnest($1::text[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[])
    AS c (queue, kind, priority, since_us, before_us)
CROSS JOIN LATERAL (
    SELECT r.available_at
    FROM jobs AS r
    WHERE r.state = 'ready'
      AND r.crashes = 0
      AND r.queue = c.queue
      AND r.kind = c.kind
      AND r.priority = c.priority
      AND r.available_at >= timestamptz 'epoch' + c.since_us * interval '1 microsecond'
      AND r.available_at < timestamptz 'epoch' + c.before_us * interval '1 microsecond'
      AND r.available_at <= now()
      AND r.attempts < r.max_attempts
    ORDER BY r.available_at
    LIMIT 1
) AS first
