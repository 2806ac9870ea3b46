-- This worker process is alive: said when it starts and every few seconds, so that operators can be
-- told who runs a job and whether anybody knows its kind.
--
-- $1 boot text · $2 host text · $3 pid int · $4 role text · $5 slots int · $6 kinds text[]
-- $7 queues text[] (empty: every queue)
-- Rows: none. Called by worker/presence.py.
INSERT INTO worker_processes (boot, host, pid, role, slots, kinds, queues)
VALUES ($1::text, $2::text, $3::int, $4::text, $5::int, $6::text[], $7::text[])
ON CONFLICT (boot) DO UPDATE SET seen_at = clock_timestamp()
