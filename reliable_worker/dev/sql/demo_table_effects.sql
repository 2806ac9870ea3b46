-- Every effect once more, append-only and without any unique key: an effect that was committed
-- twice would stand here twice.
CREATE TABLE demo_effects (
    key   text NOT NULL,
    fence bigint NOT NULL, -- of the run that committed it
    at    timestamptz NOT NULL DEFAULT clock_timestamp()
)
