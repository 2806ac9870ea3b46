-- Every queue that holds unfinished or dead jobs, with their numbers.
--
-- One row per queue: ready (due now), scheduled (due later), suspects (ready or scheduled, alone
-- after a crash), running (lease live), expired (lease over), dead, oldest_ready_age_seconds (null
-- without a ready job). Called by `queues list`.
--
-- One branch per state, each on that state's partial index; the succeeded rows are never read.
SELECT s.queue,
       sum(s.ready)::bigint AS ready,
       sum(s.scheduled)::bigint AS scheduled,
       sum(s.suspects)::bigint AS suspects,
       sum(s.running)::bigint AS running,
       sum(s.expired)::bigint AS expired,
       sum(s.dead)::bigint AS dead,
       max(s.age)::float8 AS oldest_ready_age_seconds
FROM (
    SELECT queue,
           count(*) FILTER (WHERE available_at <= now()) AS ready,
           count(*) FILTER (WHERE available_at > now()) AS scheduled,
           0 AS suspects, 0 AS running, 0 AS expired, 0 AS dead,
           extract(epoch FROM now() - min(available_at) FILTER (WHERE available_at <= now())) AS age
    FROM jobs
    WHERE state = 'ready' AND crashes = 0
    GROUP BY queue
    UNION ALL
    SELECT queue,
           count(*) FILTER (WHERE available_at <= now()),
           count(*) FILTER (WHERE available_at > now()),
           count(*), 0, 0, 0,
           extract(epoch FROM now() - min(available_at) FILTER (WHERE available_at <= now()))
    FROM jobs
    WHERE state = 'ready' AND crashes > 0
    GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0,
           count(*) FILTER (WHERE lease_until > now()),
           count(*) FILTER (WHERE lease_until <= now()),
           0, NULL
    FROM jobs
    WHERE state = 'running'
    GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0, 0, 0, count(*), NULL
    FROM jobs
    WHERE state = 'dead'
    GROUP BY queue
) AS s
GROUP BY s.queue
ORDER BY s.queue
