-- What the demo enqueued and what must become of it, written in the transaction of the enqueue.
CREATE TABLE demo_expected (
    key     text PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ('succeeded', 'dead')),
    -- the table its one effect goes to; none for a job that is to die
    effect  text CHECK (effect IN ('demo_effects', 'processed_messages')),
    CHECK ((outcome = 'succeeded') = (effect IS NOT NULL))
)
