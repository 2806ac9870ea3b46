-- Measured files, to be compared with what the demo reads itself.
--
-- $1 keys text[]
-- One row per file that could be measured: key, sha256, bytes
SELECT key, sha256, bytes
FROM demo_files
WHERE key = ANY ($1::text[])
  AND problem IS NULL
