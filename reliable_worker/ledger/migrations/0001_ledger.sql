-- Accounts, transfers and their entries. Every amount is a whole number of the smallest unit of the
-- currency. What the service checks the tables check again: they outlive it.
-- expand

CREATE TABLE accounts (
    id            bigint PRIMARY KEY CONSTRAINT accounts_id_positive CHECK (id > 0),
    balance       bigint NOT NULL CONSTRAINT accounts_balance_not_negative CHECK (balance >= 0),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- the sequence of its last entry: counted under the row's lock, so it has no gaps
    last_sequence bigint NOT NULL DEFAULT 0
        CONSTRAINT accounts_last_sequence_not_negative CHECK (last_sequence >= 0)
) WITH (
    -- Half of each page stays free, so that a balance's next version finds room beside the last
    -- one: no index is touched and the next writer cleans up.
    fillfactor = 50,
    -- a few hot accounts leave thousands of dead versions within a second
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_limit = 1000
);

CREATE TABLE transfer_requests (
    -- COLLATE "C": a key is bytes, and no upgrade of the system's collations may lose one
    idempotency_key text COLLATE "C" PRIMARY KEY
        CONSTRAINT transfer_requests_key_length
        CHECK (octet_length(idempotency_key) BETWEEN 8 AND 128),
    -- ALWAYS: an id chosen by hand would meet the sequence later, in somebody else's transfer
    transfer_id     bigint GENERATED ALWAYS AS IDENTITY
        CONSTRAINT transfer_requests_transfer_id_unique UNIQUE,
    from_id         bigint NOT NULL
        CONSTRAINT transfer_requests_from_id_fkey REFERENCES accounts (id),
    to_id           bigint NOT NULL
        CONSTRAINT transfer_requests_to_id_fkey REFERENCES accounts (id),
    amount          bigint NOT NULL
        CONSTRAINT transfer_requests_amount_positive CHECK (amount > 0),
    status          text NOT NULL
        CONSTRAINT transfer_requests_status_known CHECK (status IN ('pending', 'completed')),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at    timestamptz,
    CONSTRAINT transfer_requests_two_accounts CHECK (from_id <> to_id),
    CONSTRAINT transfer_requests_completed_has_time CHECK (
        (status = 'completed') = (completed_at IS NOT NULL))
) WITH (
    -- each row is written twice, within one transaction
    fillfactor = 80
);

CREATE TABLE entries (
    account_id    bigint NOT NULL CONSTRAINT entries_account_id_fkey REFERENCES accounts (id),
    sequence      bigint NOT NULL CONSTRAINT entries_sequence_positive CHECK (sequence > 0),
    transfer_id   bigint NOT NULL
        CONSTRAINT entries_transfer_id_fkey REFERENCES transfer_requests (transfer_id),
    amount        bigint NOT NULL CONSTRAINT entries_amount_not_zero CHECK (amount <> 0),
    balance_after bigint NOT NULL
        CONSTRAINT entries_balance_not_negative CHECK (balance_after >= 0),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account_id, sequence),
    CONSTRAINT entries_once_per_account UNIQUE (transfer_id, account_id)
);

-- a balance as of a time
CREATE INDEX entries_as_of_idx ON entries (account_id, created_at);

-- How far `verify` has found each account in order: it goes on from there.
CREATE TABLE ledger_verified (
    account_id    bigint PRIMARY KEY
        CONSTRAINT ledger_verified_account_id_fkey REFERENCES accounts (id),
    sequence      bigint NOT NULL CONSTRAINT ledger_verified_sequence_positive CHECK (sequence > 0),
    balance_after bigint NOT NULL
);

-- What each run of `verify` found; the service shows the last one as a metric.
CREATE TABLE ledger_verifications (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    accounts   bigint NOT NULL,
    entries    bigint NOT NULL,
    problems   bigint NOT NULL,
    -- transfers up to here were looked at and will not be joined by one that commits late
    through_id bigint NOT NULL
);

COMMENT ON TABLE accounts IS 'One row per account; balance in the smallest unit of the currency.';
COMMENT ON TABLE transfer_requests IS 'One row per transfer; a key is bound to its payload.';
COMMENT ON TABLE entries IS 'Two per transfer, one an account; never changed, never deleted.';
COMMENT ON COLUMN entries.sequence IS 'counts an account''s entries from 1, without gaps';
COMMENT ON COLUMN entries.amount IS 'negative for the sender, positive for the receiver';

CREATE FUNCTION ledger_refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries are append-only: correct a transfer by another one'
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE ON entries
    FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change();
CREATE TRIGGER entries_never_emptied BEFORE TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change();

-- One transfer, in the caller's transaction (one statement is one round trip and one transaction).
--
-- asked_key, asked_from, asked_to, asked_amount: the request · with_job: enqueue a job
-- `transfer.completed`
-- lock_ms: lock_timeout of this transaction
-- One row: outcome, transfer (id, null where nothing was made or found). outcome is
--   completed · replayed (the same request has been carried out before) · conflict (the key stands
--   for another request) · key_busy · account_busy (a lock did not come) · insufficient_funds ·
--   account_missing · receiver_overflow.
-- All but the first two leave nothing behind. Other errors are raised, and leave nothing either.
--
-- FOR NO KEY UPDATE: the foreign keys have taken FOR KEY SHARE on both accounts; FOR UPDATE would
-- not bear with another transfer's, and deadlock in spite of the order.
CREATE FUNCTION ledger_transfer(
    asked_key text, asked_from bigint, asked_to bigint, asked_amount bigint,
    with_job boolean, lock_ms integer,
    OUT outcome text, OUT transfer bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    known transfer_requests;
    at_key boolean := true;
    happened timestamptz;
    sender accounts;
    receiver accounts;
    waited_at text;
BEGIN
    PERFORM set_config('lock_timeout', lock_ms::text, true);
    BEGIN
        INSERT INTO transfer_requests (idempotency_key, from_id, to_id, amount, status)
        VALUES (asked_key, asked_from, asked_to, asked_amount, 'pending')
        ON CONFLICT (idempotency_key) DO NOTHING
        RETURNING transfer_id INTO transfer;

        IF transfer IS NULL THEN
            -- a statement of its own: it sees what the insert has waited for
            SELECT * INTO known FROM transfer_requests WHERE idempotency_key = asked_key;
            IF NOT FOUND OR known.status <> 'completed' THEN
                outcome := 'key_busy';
            ELSIF (known.from_id, known.to_id, known.amount)
                    <> (asked_from, asked_to, asked_amount) THEN
                outcome := 'conflict';
            ELSE
                outcome := 'replayed';
                transfer := known.transfer_id;
            END IF;
            RETURN;
        END IF;

        at_key := false;
        PERFORM 1 FROM accounts WHERE id IN (asked_from, asked_to) ORDER BY id FOR NO KEY UPDATE;
        -- under both locks, so that an account's entries are in the order of their times
        happened := clock_timestamp();

        UPDATE accounts
        SET balance = balance - asked_amount, last_sequence = last_sequence + 1,
            updated_at = happened
        WHERE id = asked_from AND balance >= asked_amount
        RETURNING * INTO sender;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'RL001', MESSAGE = 'insufficient funds';
        END IF;

        UPDATE accounts
        SET balance = balance + asked_amount, last_sequence = last_sequence + 1,
            updated_at = happened
        WHERE id = asked_to
        RETURNING * INTO receiver;

        INSERT INTO entries
            (account_id, sequence, transfer_id, amount, balance_after, created_at)
        VALUES
            (asked_from, sender.last_sequence, transfer, -asked_amount, sender.balance, happened),
            (asked_to, receiver.last_sequence, transfer, asked_amount, receiver.balance, happened);

        IF with_job THEN
            INSERT INTO jobs (idempotency_key, kind, payload, max_attempts)
            VALUES ('transfer.completed:' || transfer, 'transfer.completed',
                    jsonb_build_object(
                        'transfer_id', transfer, 'from_id', asked_from, 'to_id', asked_to,
                        'amount', asked_amount,
                        'completed_at', to_char(happened AT TIME ZONE 'UTC',
                                                'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
                    -- the pauses of ledger/jobs.py between them add up to three days
                    10);
        END IF;

        UPDATE transfer_requests SET status = 'completed', completed_at = happened
        WHERE idempotency_key = asked_key;
        outcome := 'completed';
        RETURN;
    EXCEPTION
        -- What was done since the inner BEGIN is undone when one of these is reached.
        WHEN lock_not_available THEN
            GET STACKED DIAGNOSTICS waited_at = PG_EXCEPTION_CONTEXT;
            -- the foreign keys' own look at an account is a wait at an account, too
            outcome := CASE WHEN at_key AND position('FOR KEY SHARE' IN waited_at) = 0
                            THEN 'key_busy' ELSE 'account_busy' END;
        WHEN SQLSTATE 'RL001' THEN
            outcome := 'insufficient_funds';
        WHEN foreign_key_violation THEN
            outcome := 'account_missing';
        WHEN numeric_value_out_of_range THEN
            outcome := 'receiver_overflow';
    END;
    transfer := NULL;
END
$$;

-- The service's two accounts. Their passwords are the operator's to set; roles belong to the whole
-- server, so another database of it may have made them already, even at this moment.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['ledger_app', 'ledger_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    -- The table of the worker, where it is in this database; else grant it after its migration.
    IF to_regclass('jobs') IS NOT NULL THEN
        GRANT INSERT ON jobs TO ledger_app;
    END IF;
END
$$;

GRANT SELECT ON reliable_ledger_migrations, accounts, transfer_requests, entries,
    ledger_verifications TO ledger_app, ledger_reader;
GRANT UPDATE (balance, last_sequence, updated_at) ON accounts TO ledger_app;
GRANT INSERT, UPDATE (status, completed_at) ON transfer_requests TO ledger_app;
GRANT INSERT ON entries TO ledger_app;
