-- notify: wake idle processes that listen.
-- Called by maintenance/waking.py, at most once a tick. The wake-up may be lost: polls find the
-- job all the same.
-- $1 text: JSON list of [queue, kind, priority], below 8,000 bytes
-- Rows: one row without meaning
SELECT pg_notify('reliable_worker', $1::text)
