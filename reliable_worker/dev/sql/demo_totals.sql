-- How far the demo is, in one row.
--
-- retried: attempts after the first. files_per_second: file jobs that no crash disturbed (their
-- first claim succeeded, so their fence is 1), from the first claim to the last commit; null until
-- two have ended.
SELECT count(*) AS enqueued,
       count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE state = 'running') AS running,
       count(*) FILTER (WHERE state = 'ready') AS waiting,
       count(*) FILTER (WHERE state = 'dead') AS dead,
       coalesce(sum(greatest(attempts - 1, 0)), 0)::bigint AS retried,
       count(*) FILTER (WHERE kind = 'demo.file' AND state = 'succeeded') AS files_done,
       (SELECT count(*) FROM demo_effects) + (SELECT count(*) FROM processed_messages) AS effects,
       (SELECT count(*) - count(DISTINCT key) FROM demo_effects) AS duplicate_effects,
       (SELECT (count(*) / nullif(extract(epoch FROM max(completed_at) - min(claimed_at)), 0)
               )::float8
        FROM jobs
        WHERE kind = 'demo.file' AND state = 'succeeded' AND fence = 1) AS files_per_second
FROM jobs
