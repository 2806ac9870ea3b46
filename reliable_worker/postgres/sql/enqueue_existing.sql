-- The jobs that hold these keys, and whether each is the same job as the one offered.
--
-- $1 idempotency keys text[], $2 kinds text[], $3 payloads jsonb as text[], alike in order
-- One row per key that is taken: its position from 1, id and state of the job with that key, same
-- (kind equal, payload equal as jsonb: spelling and order of fields do not count), its kind.
-- Called by `enqueue` and `enqueue_many` after an INSERT found keys taken: a statement of its own,
-- because only a new snapshot sees a job that another transaction committed meanwhile.
SELECT o.position, j.id, j.state, j.kind = o.kind AND j.payload = o.payload::jsonb AS same, j.kind
FROM unnest($1::text[], $2::text[], $3::text[])
    WITH ORDINALITY AS o (idempotency_key, kind, payload, position)
JOIN jobs AS j USING (idempotency_key)
