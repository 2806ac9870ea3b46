-- Effect of every kind of the demo: one row for each time that an effect is committed.
--
-- $1 key, $2 fence of the run
INSERT INTO demo_effects (key, fence)
VALUES ($1, $2)
