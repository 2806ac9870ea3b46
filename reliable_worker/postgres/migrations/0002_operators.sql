-- What operators need: cancelled jobs, paused queues, the history of attempts, who did what, and
-- which workers are alive.
-- expand

-- NOT VALID, so that no row is read under this lock: the next migration validates. Every row that
-- the old constraints let in fits the new ones.
ALTER TABLE jobs
    ADD COLUMN completed_by text,
    DROP CONSTRAINT jobs_state_known,
    ADD CONSTRAINT jobs_state_known CHECK (
        state IN ('ready', 'running', 'succeeded', 'dead', 'cancelled')) NOT VALID,
    DROP CONSTRAINT jobs_ended_when_over,
    ADD CONSTRAINT jobs_ended_when_over CHECK (
        (state IN ('succeeded', 'dead', 'cancelled')) = (ended_at IS NOT NULL)) NOT VALID;

COMMENT ON COLUMN jobs.completed_by IS 'the owner whose run succeeded';

-- A queue is listed here only once an operator has said something about it.
CREATE TABLE queues (
    name         text COLLATE "C" PRIMARY KEY
        CONSTRAINT queues_name_length CHECK (octet_length(name) BETWEEN 1 AND 128),
    paused_at    timestamptz, -- null: not paused
    paused_until timestamptz, -- null: until it is resumed
    CONSTRAINT queues_until_while_paused CHECK (paused_until IS NULL OR paused_at IS NOT NULL)
);

-- What claims leave out. A pause ends by itself: nobody has to be alive to end it.
CREATE VIEW paused_queues AS
SELECT name
FROM queues
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > now());

-- One row per attempt that ended otherwise than in success, written by the statement that ended it.
-- A success is in its job's own row (claimed_at, completed_at, completed_by), at no cost.
CREATE TABLE job_attempts (
    -- pruned from its head, so it grows with time like ended_at
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     bigint NOT NULL, -- no foreign key: it would lock the job's row for each attempt
    attempt    integer NOT NULL,
    owner      text,
    claimed_at timestamptz,
    ended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome    text NOT NULL CONSTRAINT job_attempts_outcome_known CHECK (
        outcome IN ('failed', 'dead', 'snoozed', 'released', 'refunded', 'crashed', 'stuck',
            'expired', 'cancelled')),
    error      text CONSTRAINT job_attempts_error_length CHECK (char_length(error) <= 200)
);
CREATE INDEX job_attempts_job_idx ON job_attempts (job_id, id);

-- One row per change an operator made, committed with the change.
CREATE TABLE operator_actions (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    acted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    account  text NOT NULL DEFAULT session_user, -- of the database
    operator text NOT NULL,                      -- as the command's machine knows them
    action   text NOT NULL,
    queue    text,
    job_ids  bigint[] NOT NULL DEFAULT '{}',
    details  jsonb NOT NULL DEFAULT '{}'         -- filters and values given
);
CREATE INDEX operator_actions_jobs_idx ON operator_actions USING gin (job_ids);

-- The live worker processes, each by its own word every few seconds.
CREATE TABLE worker_processes (
    boot       text COLLATE "C" PRIMARY KEY, -- prefix of its owners
    host       text NOT NULL,
    pid        integer NOT NULL,
    role       text NOT NULL,
    slots      integer NOT NULL,
    kinds      text[] NOT NULL,
    queues     text[] NOT NULL,              -- empty: every queue
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50); -- updated in place, for ever
