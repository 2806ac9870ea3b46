-- Where the table ends and when, for the rates that `top` shows.
--
-- One row: last bigint (the greatest id, 0 for none), at float8 (the database's clock, in epoch
-- seconds).
SELECT coalesce(max(j.id), 0) AS last,
       extract(epoch FROM clock_timestamp())::float8 AS at
FROM jobs AS j
