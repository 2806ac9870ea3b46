"""Floor 6: the ledger, a service that moves whole minor currency units between accounts.

Imports http, postgres, enqueue, jobs, logs and settings; never worker, maintenance or supervisor.
A request's way: `http` reads it whole → `service` routes it → `decode` checks it → `workers` gives
it a thread, `pool` a connection → `transfers` runs one function of the database → 200, or one of
`problems`.

Nobody imports it but `cli`; its job's handler is in `reliable_worker.ledger.jobs:app`.
"""
