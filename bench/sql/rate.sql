-- How many jobs succeeded, and in how many seconds from the first claim to the last completion.
SELECT count(*),
       extract(epoch FROM max(completed_at) - min(claimed_at))::float8
FROM jobs
WHERE state = 'succeeded'
