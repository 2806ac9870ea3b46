-- How many jobs of a killed process are neither over nor running again under a newer fence.
--
-- $1 ids bigint[], $2 their fences bigint[] when the process was killed
SELECT count(*)
FROM unnest($1::bigint[], $2::bigint[]) AS held (id, fence)
JOIN jobs ON jobs.id = held.id
WHERE jobs.state NOT IN ('succeeded', 'dead')
  AND NOT (jobs.state = 'running' AND jobs.fence > held.fence)
