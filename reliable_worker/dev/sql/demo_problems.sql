-- How many files could not be measured any more when their job ran.
SELECT count(*)
FROM demo_files
WHERE problem IS NOT NULL
