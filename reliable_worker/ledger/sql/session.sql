-- A new connection of the service. Its statements name rows by their keys, so one plan serves all
-- (planning anew takes a third of a transfer's time), provided that it was not made for tables that
-- were still small enough to be read whole.
-- No parameters. Returns: one row, the settings. Called by: ledger.pool.
SELECT set_config('plan_cache_mode', 'auto', false), set_config('enable_seqscan', 'off', false)
