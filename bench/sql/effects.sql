-- The table the benchmark's effects are written to: one row per job, its key unique, so that an
-- effect applied twice would end the run.
CREATE TABLE bench_effects (
    key text PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now()
)
