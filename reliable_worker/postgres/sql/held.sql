-- Every lease held under one boot id: finds jobs whose claim was committed while its reply was
-- lost.
--
-- $1 boot text (32 hex digits) · Rows: id, lease_owner, fence.
SELECT id, lease_owner, fence
FROM jobs
WHERE state = 'running' AND starts_with(lease_owner, $1 || '.')
ORDER BY id
