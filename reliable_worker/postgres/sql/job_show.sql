-- One job, everything about it.
--
-- $1 id bigint
-- One row or none; times without zone, in UTC (see jobs_list.sql); lease_seconds_left by the
-- database's clock, negative once the lease has expired; the payload as text.
-- Called by `jobs show`.
SELECT j.id, j.state, j.kind, j.queue, j.priority, j.attempts, j.max_attempts, j.crashes,
       j.available_at AT TIME ZONE 'UTC' AS available_at,
       j.created_at AT TIME ZONE 'UTC' AS created_at,
       j.last_error,
       j.idempotency_key, j.fence, j.snoozes, j.refunds, j.lease_owner,
       extract(epoch FROM j.lease_until - clock_timestamp())::float8 AS lease_seconds_left,
       j.claimed_at AT TIME ZONE 'UTC' AS claimed_at,
       j.completed_at AT TIME ZONE 'UTC' AS completed_at,
       j.ended_at AT TIME ZONE 'UTC' AS ended_at,
       j.completed_by,
       j.payload::text AS payload
FROM jobs AS j
WHERE j.id = $1
