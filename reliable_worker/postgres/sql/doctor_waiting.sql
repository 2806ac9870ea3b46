-- Kinds and queues with jobs that wait, however far away their turn is.
--
-- One row per kind and queue: kind, queue, number of ready jobs. Called by `doctor`, which knows
-- the application's kinds and the queues it serves.
SELECT j.kind, j.queue, count(*) AS waiting
FROM jobs AS j
WHERE j.state = 'ready'
GROUP BY j.kind, j.queue
ORDER BY j.kind, j.queue
