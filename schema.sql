-- The whole schema and the record of its migrations. On an empty database
--     psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f schema.sql
-- is a full installation. Made from the migrations, whose files say why things are as they are:
--     python -m reliable_worker.postgres.snapshot > schema.sql

BEGIN;

-- The marks of a migration line: one row per file, committed as 'running' before the file and
-- turned 'applied' with it. Made by the runner, since the first file is marked too.
CREATE TABLE IF NOT EXISTS reliable_worker_migrations (
    version    integer PRIMARY KEY CONSTRAINT migration_version_positive CHECK (version > 0),
    name       text NOT NULL,
    kind       text NOT NULL
        CONSTRAINT migration_kind_known CHECK (kind IN ('expand', 'contract')),
    checksum   text NOT NULL, -- sha256 of the file, hexadecimal
    state      text NOT NULL
        CONSTRAINT migration_state_known CHECK (state IN ('running', 'applied')),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at timestamptz,
    CONSTRAINT migration_applied_has_time CHECK ((state = 'applied') = (applied_at IS NOT NULL))
);

-- 0001_jobs
-- The queue and the example effect. Table and column names are a contract: a client in any
-- language enqueues with INSERT INTO jobs (idempotency_key, payload) VALUES ('welcome-1', '{...}').
-- expand

-- A domain and not a CHECK of the table: a table's CHECK renders the payload again at every claim,
-- renewal and completion (0.3 ms each at 100 kB), a domain's only where a payload is written.
-- As text, because a few bytes of jsonb (1e131071) can be a hundred thousand of text.
CREATE DOMAIN job_payload AS jsonb
    CONSTRAINT jobs_payload_size CHECK (octet_length(VALUE::text) <= 1048576);

CREATE TABLE jobs (
    -- ALWAYS: an id chosen by hand would meet the sequence later, in somebody else's INSERT
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- COLLATE "C" wherever text is indexed: keys are bytes, and an upgrade of the system's library
    -- of collations cannot make a unique index miss the key that is already there
    idempotency_key text COLLATE "C" NOT NULL CONSTRAINT jobs_idempotency_key_unique UNIQUE,
    payload         job_payload NOT NULL,
    state           text NOT NULL DEFAULT 'ready',
    attempts        integer NOT NULL DEFAULT 0,
    max_attempts    integer NOT NULL DEFAULT 5,
    available_at    timestamptz NOT NULL DEFAULT now(),
    lease_owner     text,
    lease_until     timestamptz,
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    completed_at    timestamptz,
    queue           text COLLATE "C" NOT NULL DEFAULT 'default',
    kind            text COLLATE "C" NOT NULL DEFAULT 'message',
    priority        smallint NOT NULL DEFAULT 5,
    fence           bigint NOT NULL DEFAULT 0,
    crashes         integer NOT NULL DEFAULT 0,
    snoozes         integer NOT NULL DEFAULT 0,
    refunds         integer NOT NULL DEFAULT 0,
    claimed_at      timestamptz,
    ended_at        timestamptz,

    CONSTRAINT jobs_state_known CHECK (state IN ('ready', 'running', 'succeeded', 'dead')),
    -- 512 bytes keep a key well inside what one B-tree entry can hold (a third of a page)
    CONSTRAINT jobs_key_length CHECK (octet_length(idempotency_key) BETWEEN 1 AND 512),
    -- queue and kind become labels of metrics and lines of logs
    CONSTRAINT jobs_queue_length CHECK (octet_length(queue) BETWEEN 1 AND 128),
    CONSTRAINT jobs_kind_length CHECK (octet_length(kind) BETWEEN 1 AND 128),
    CONSTRAINT jobs_priority_range CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT jobs_max_attempts_positive CHECK (max_attempts > 0),
    CONSTRAINT jobs_counters_not_negative CHECK (
        attempts >= 0 AND fence >= 0 AND crashes >= 0 AND snoozes >= 0 AND refunds >= 0),
    -- what every client can load: drivers refuse infinity, years before 1 and after 9999
    CONSTRAINT jobs_available_at_range CHECK (
        available_at >= '0001-01-01 00:00:00+00' AND available_at < '10000-01-01 00:00:00+00'),
    -- a lease is whole or absent, and only a running job has one
    CONSTRAINT jobs_lease_while_running CHECK (
        (state = 'running') = (lease_owner IS NOT NULL)
        AND (state = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT jobs_completed_when_succeeded CHECK (
        (state = 'succeeded') = (completed_at IS NOT NULL)),
    -- retention counts from here: an ended job without it would be kept for ever
    CONSTRAINT jobs_ended_when_over CHECK (
        (state IN ('succeeded', 'dead')) = (ended_at IS NOT NULL)),
    CONSTRAINT jobs_last_error_length CHECK (char_length(last_error) <= 1000)
) WITH (
    -- A fifth of each page stays free, so that a renewal finds room beside its row and touches no
    -- index: 99 % of 18,000 renewals were HOT, 89 % in full pages.
    fillfactor = 80,
    -- Each job leaves two to three dead versions. The default (20 % of the table) would let a
    -- table of 10,000,000 kept rows gather 2,000,000 of them.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    -- a queue fills and empties within minutes, and the planner should know which it is
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 5000,
    -- five times the default pace, so that one pass ends before the next is due under load
    autovacuum_vacuum_cost_limit = 1000
);

-- None of these holds lease_until: an index on it would cost every renewal its HOT update.

-- claim: first of a queue, kind and priority, read in order
CREATE INDEX jobs_claimable_idx ON jobs (queue, kind, priority, available_at, id)
    WHERE state = 'ready' AND crashes = 0;
-- claim by a quarantine child: jobs whose process died once run alone
CREATE INDEX jobs_suspect_idx ON jobs (queue, kind, priority, available_at, id)
    WHERE state = 'ready' AND crashes > 0;
-- expiry, obituaries and census start at the oldest claim still running
CREATE INDEX jobs_expired_idx ON jobs (claimed_at) WHERE state = 'running';
-- the sweep of jobs that plain SQL left ready without an attempt
CREATE INDEX jobs_exhausted_idx ON jobs (id) WHERE state = 'ready' AND attempts >= max_attempts;
-- the gauge and the list of dead jobs
CREATE INDEX jobs_dead_idx ON jobs (queue, id) WHERE state = 'dead';

COMMENT ON TABLE jobs IS
    'One row per job. Enqueue with INSERT (idempotency_key, payload); the worker does the rest.';
COMMENT ON COLUMN jobs.idempotency_key IS 'names the job for ever: one committed effect per key';
COMMENT ON COLUMN jobs.priority IS '0 to 9, lower runs first';
COMMENT ON COLUMN jobs.available_at IS 'not before; ready and later than now is "scheduled"';
COMMENT ON COLUMN jobs.attempts IS 'accounting only: what counts against max_attempts';
COMMENT ON COLUMN jobs.fence IS 'raised whenever the job changes hands, never lowered';
COMMENT ON COLUMN jobs.crashes IS 'processes that died running it; from the first on it runs alone';
COMMENT ON COLUMN jobs.refunds IS 'infrastructure faults in a row whose attempt was given back';
COMMENT ON COLUMN jobs.snoozes IS 'postponements in a row by the handler';

-- What the built-in handler of kind "message" writes: one row per key, whatever is delivered twice.
CREATE TABLE processed_messages (
    idempotency_key text COLLATE "C" PRIMARY KEY,
    message         text NOT NULL,
    processed_at    timestamptz NOT NULL DEFAULT now()
);

INSERT INTO reliable_worker_migrations (version, name, kind, checksum, state, applied_at)
VALUES (
    1, 'jobs', 'expand',
    '14d4d9543ce9194524f9278f19a9e12afde9c945fa28548e30fa39aa4014f915',
    'applied', clock_timestamp()
)
ON CONFLICT (version) DO UPDATE
SET name = excluded.name, kind = excluded.kind, checksum = excluded.checksum, state = 'applied',
    applied_at = coalesce(reliable_worker_migrations.applied_at, excluded.applied_at);

-- 0002_operators
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

INSERT INTO reliable_worker_migrations (version, name, kind, checksum, state, applied_at)
VALUES (
    2, 'operators', 'expand',
    'b9d5c1ab4f9268513f6f81546533f2c2abd6b6d7330444dae4bd26fbcfa10b75',
    'applied', clock_timestamp()
)
ON CONFLICT (version) DO UPDATE
SET name = excluded.name, kind = excluded.kind, checksum = excluded.checksum, state = 'applied',
    applied_at = coalesce(reliable_worker_migrations.applied_at, excluded.applied_at);

-- 0003_validated
-- Validate what 0002 added: reads every row, and stops nobody from writing meanwhile.
-- expand

ALTER TABLE jobs
    VALIDATE CONSTRAINT jobs_state_known,
    VALIDATE CONSTRAINT jobs_ended_when_over;

INSERT INTO reliable_worker_migrations (version, name, kind, checksum, state, applied_at)
VALUES (
    3, 'validated', 'expand',
    'cb735f872b08fa84cf2804b4acabebb2241149129bd8105cc7f45d3ff5d0b59b',
    'applied', clock_timestamp()
)
ON CONFLICT (version) DO UPDATE
SET name = excluded.name, kind = excluded.kind, checksum = excluded.checksum, state = 'applied',
    applied_at = coalesce(reliable_worker_migrations.applied_at, excluded.applied_at);

COMMIT;
