-- Invariant: no effect was committed twice.
--
-- One row: violations bigint, an example's key
SELECT coalesce(sum(times - 1), 0)::bigint, min(key)
FROM (SELECT key, count(*) AS times FROM demo_effects GROUP BY key HAVING count(*) > 1) AS repeated
