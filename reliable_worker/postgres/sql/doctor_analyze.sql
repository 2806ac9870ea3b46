-- Learn what the table holds, so that the planner knows. Called by `doctor --fix`.
ANALYZE jobs
