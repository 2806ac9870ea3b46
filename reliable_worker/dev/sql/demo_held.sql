-- What the process that runs one job holds just now, that job included.
--
-- $1 key text
-- One row per held job: boot id of the process, id, fence; none if the job is not running
SELECT split_part(mine.lease_owner, '.', 1) AS boot, held.id, held.fence
FROM jobs AS mine
JOIN jobs AS held
  ON held.state = 'running'
 AND split_part(held.lease_owner, '.', 1) = split_part(mine.lease_owner, '.', 1)
WHERE mine.idempotency_key = $1
  AND mine.state = 'running'
