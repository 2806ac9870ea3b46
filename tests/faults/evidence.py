"""What really happened, written by the database itself and by the handlers, not by the product.

`audit` is a trigger's record of every change of a job, made in the same transaction. `hist` holds
the handlers' own start and end rows from an independent autocommit connection, so they survive
rollbacks of the product's transactions. `effects` has no unique key: an effect applied twice shows.
invariants.py judges it.
"""

from typing import Any

import psycopg

_TABLES = """
CREATE TABLE audit (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    op text NOT NULL,
    id bigint NOT NULL,
    key text NOT NULL,
    old_state text, new_state text,
    old_fence bigint, new_fence bigint,
    old_owner text, new_owner text,
    old_lease_until timestamptz, new_lease_until timestamptz,
    old_attempts int, new_attempts int, max_attempts int,
    old_crashes int, new_crashes int,
    old_refunds int, new_refunds int,
    old_snoozes int, new_snoozes int,
    old_available_at timestamptz, new_available_at timestamptz,
    new_error text,
    app text NOT NULL DEFAULT current_setting('application_name'),
    statement text NOT NULL DEFAULT left(current_query(), 80),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX ON audit (id, seq);
CREATE TABLE hist (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id bigint NOT NULL,
    fence bigint NOT NULL,
    event text NOT NULL,  -- start, end
    pid int NOT NULL,
    tid int NOT NULL
);
CREATE TABLE effects (
    key text NOT NULL,
    job_id bigint NOT NULL,
    fence bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id()
);
"""

_TRIGGER = """
CREATE FUNCTION audit_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (
        op, id, key, old_state, new_state, old_fence, new_fence, old_owner, new_owner,
        old_lease_until, new_lease_until, old_attempts, new_attempts, max_attempts,
        old_crashes, new_crashes, old_refunds, new_refunds, old_snoozes, new_snoozes,
        old_available_at, new_available_at, new_error
    ) VALUES (
        TG_OP, coalesce(NEW.id, OLD.id), coalesce(NEW.idempotency_key, OLD.idempotency_key),
        OLD.state, NEW.state, OLD.fence, NEW.fence, OLD.lease_owner, NEW.lease_owner,
        OLD.lease_until, NEW.lease_until, OLD.attempts, NEW.attempts,
        coalesce(NEW.max_attempts, OLD.max_attempts),
        OLD.crashes, NEW.crashes, OLD.refunds, NEW.refunds, OLD.snoozes, NEW.snoozes,
        OLD.available_at, NEW.available_at, NEW.last_error
    );
    RETURN NULL;
END $$;
CREATE TRIGGER audit_jobs AFTER INSERT OR UPDATE OR DELETE ON jobs
    FOR EACH ROW EXECUTE FUNCTION audit_jobs();
"""


def install(conn: psycopg.Connection[Any]) -> None:
    """Make the evidence tables and the trigger in a migrated database; `conn` is autocommit."""
    with conn.transaction():
        conn.execute(_TABLES)
        conn.execute(_TRIGGER)


def add_jobs(
    conn: psycopg.Connection[Any],
    kind: str,
    payloads: list[str],
    *,
    prefix: str = "",
    max_attempts: int = 5,
    queue: str = "default",
) -> list[int]:
    """INSERT one job per payload (JSON text), as a client of any language would; their ids.

    Keys are `<prefix or kind>-<n>`, from 1.
    """
    rows = conn.execute(
        "INSERT INTO jobs (idempotency_key, kind, payload, max_attempts, queue)"
        " SELECT %s || '-' || n, %s, p::jsonb, %s, %s"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS t (p, n) RETURNING id",
        (prefix or kind, kind, max_attempts, queue, payloads),
    ).fetchall()
    return [job_id for (job_id,) in rows]
