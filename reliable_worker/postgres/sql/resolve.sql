-- What a COMMIT whose reply was lost has done. A locking read: a plain one could miss a COMMIT
-- that the old backend has received and not yet carried out. Waits at most lock_timeout (55P03).
--
-- $1 id bigint · One row (state, lease_owner, fence), or none: the row was deleted.
SELECT state, lease_owner, fence
FROM jobs
WHERE id = $1
FOR NO KEY UPDATE
