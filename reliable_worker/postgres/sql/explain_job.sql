-- What `jobs explain` wants to know of a job's own row, by the database's clock.
--
-- $1 id bigint
-- One row or none: id, state, kind, queue, priority, attempts, max_attempts, crashes, snoozes,
-- last_error, lease_owner, available_at (without zone, in UTC), due_seconds (until then, negative
-- when due), lease_seconds (left; null without a lease), held_seconds (since the claim),
-- ended_at (without zone, in UTC).
SELECT j.id, j.state, j.kind, j.queue, j.priority, j.attempts, j.max_attempts, j.crashes, j.snoozes,
       j.last_error, j.lease_owner,
       j.available_at AT TIME ZONE 'UTC' AS available_at,
       extract(epoch FROM j.available_at - clock_timestamp())::float8 AS due_seconds,
       extract(epoch FROM j.lease_until - clock_timestamp())::float8 AS lease_seconds,
       extract(epoch FROM clock_timestamp() - j.claimed_at)::float8 AS held_seconds,
       j.ended_at AT TIME ZONE 'UTC' AS ended_at
FROM jobs AS j
WHERE j.id = $1::bigint
