-- Say for the life of this session that the demo of this number lives; see demo_leftovers.
--
-- $1 number bigint, the one in the name of the demo's database
SELECT pg_advisory_lock($1)
