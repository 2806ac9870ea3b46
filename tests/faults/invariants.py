"""The invariants, judged from the evidence after any run; each violation is one readable line.

I1 conservation · I2 one effect · I3 ended is ended · I4 the fence · I5 accounting · I6 the shape
of a lease · I7 nothing abandoned · I8 no overlap · I9 clean sessions. (I10 is about processes:
tests ask the operating system.)
"""

from collections.abc import Collection, Iterable
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

# Kinds of tests.faults.apps whose success leaves exactly one row in `effects`.
EFFECT_KINDS = ("work", "plain")

_I2_TWICE = """
SELECT 'I2 key ' || key || ' has ' || count(*) || ' effects' FROM effects GROUP BY key
HAVING count(*) > 1
"""
_I2_WITHOUT = """
SELECT 'I2 job ' || j.id || ' is ' || j.state || ' with ' || count(e.key) || ' effects'
FROM jobs AS j LEFT JOIN effects AS e ON e.key = j.idempotency_key
WHERE j.kind = ANY (%s) AND NOT j.payload @> '{"how": "none"}'
GROUP BY j.id HAVING (j.state = 'succeeded') <> (count(e.key) = 1)
"""
_I2_TRANSACTION = """
SELECT 'I2 effect of job ' || e.job_id || ' in another transaction than its completion'
FROM effects AS e WHERE NOT EXISTS (
    SELECT FROM audit AS a
    WHERE a.xid = e.xid AND a.id = e.job_id AND a.new_state = 'succeeded' AND a.old_fence = e.fence)
"""
_I3_ALLOWED = """
SELECT 'I3 job ' || id || ' went ' || old_state || ' → ' || new_state || ' by ' || statement
FROM audit WHERE op = 'UPDATE' AND (old_state, new_state) NOT IN (
    ('ready', 'running'), ('ready', 'dead'), ('running', 'running'), ('running', 'ready'),
    ('running', 'succeeded'), ('running', 'dead'))
"""
_I4_CLAIM = """
SELECT 'I4 job ' || id || ' claimed with fence ' || old_fence || ' → ' || new_fence
FROM audit WHERE old_state = 'ready' AND new_state = 'running' AND new_fence <> old_fence + 1
"""
_I4_RENEWAL = """
SELECT 'I4 job ' || id || ' running → running changed its holder: ' || old_owner || '/' || old_fence
    || ' → ' || new_owner || '/' || new_fence
FROM audit WHERE old_state = 'running' AND new_state = 'running'
    AND (old_owner, old_fence) IS DISTINCT FROM (new_owner, new_fence)
"""
_I4_LEAVING = """
SELECT 'I4 job ' || id || ' left running by ' || app || ', fence ' || old_fence || ' → '
    || new_fence || ', owner ' || old_owner || ' by ' || statement
FROM audit WHERE old_state = 'running' AND new_state <> 'running'
    AND NOT (new_fence = old_fence + 1
        OR (new_fence = old_fence AND split_part(app, ':', 2) = split_part(old_owner, '.', 1)))
"""
_I4_EXPIRY = """
SELECT 'I4 job ' || id || ' expired ' || (old_lease_until - at) || ' before its lease ended'
FROM audit WHERE statement LIKE '-- expire%%' AND old_state = 'running' AND old_lease_until > at
"""
_I4_LOWERED = """
SELECT 'I4 job ' || id || ' has its fence lowered' FROM audit
WHERE op = 'UPDATE' AND new_fence < old_fence
"""
_I5_STEPS = """
SELECT 'I5 job ' || id || ': attempts ' || old_attempts || ' → ' || new_attempts || ' at '
    || old_state || ' → ' || new_state || ' by ' || statement
FROM audit WHERE op = 'UPDATE' AND CASE
    WHEN old_state = 'ready' AND new_state = 'running' THEN new_attempts <> old_attempts + 1
    WHEN old_state = 'running' AND new_state IN ('ready', 'dead')
        THEN new_attempts NOT IN (old_attempts, old_attempts - 1)
    ELSE new_attempts <> old_attempts END
"""
_I5_STRANDED = """
SELECT 'I5 job ' || id || ' is ready with ' || attempts || ' of ' || max_attempts || ' attempts'
FROM jobs WHERE state = 'ready' AND attempts >= max_attempts
"""
_I5_DEAD = """
SELECT 'I5 job ' || id || ' died with ' || attempts || ' of ' || max_attempts || ' attempts, '
    || crashes || ' crashes, kind ' || kind
FROM jobs WHERE state = 'dead' AND attempts < max_attempts AND crashes < 3 AND kind <> 'discard'
"""
_I6_SHAPE = """
SELECT 'I6 job ' || id || ' is ' || state || ' with owner ' || coalesce(lease_owner, 'none')
FROM jobs WHERE (state = 'running') <> (lease_owner IS NOT NULL AND lease_until IS NOT NULL)
"""
_I7_ABANDONED = """
SELECT 'I7 job ' || id || ' is running, its lease ended ' || (clock_timestamp() - lease_until)
FROM jobs WHERE state = 'running'
    AND lease_until < clock_timestamp() - %s::float8 * interval '1 second'
"""
# A run that was killed has no end row: it lasts until its process dies, and the test that killed
# the process names its pid. Anybody else's missing end is an overlap.
_I8_OVERLAP = """
WITH runs AS (
    SELECT s.job_id, s.fence, s.pid, s.at AS began,
           (SELECT min(e.at) FROM hist AS e
            WHERE e.event = 'end' AND e.job_id = s.job_id AND e.fence = s.fence AND e.pid = s.pid
           ) AS ended
    FROM hist AS s WHERE s.event = 'start'
)
SELECT 'I8 job ' || b.job_id || ': run ' || b.fence || ' in ' || b.pid || ' began '
    || b.began || ' while run ' || a.fence || ' in ' || a.pid || ' of ' || a.began
    || coalesce(' lasted until ' || a.ended, ' had no end')
FROM runs AS a JOIN runs AS b ON a.job_id = b.job_id AND a.began < b.began
WHERE coalesce(a.ended, 'infinity') > b.began AND NOT (a.pid = ANY (%s))
"""
_I8_TWICE = """
SELECT 'I8 job ' || job_id || ' ran ' || count(*) || ' times under fence ' || fence
FROM hist WHERE event = 'start' GROUP BY job_id, fence HAVING count(*) > 1
"""
_I9_SESSIONS = """
SELECT 'I9 ' || application_name || ' is idle in a transaction since ' || state_change
FROM pg_stat_activity WHERE application_name LIKE 'rw:%%' AND datname = current_database()
    AND state LIKE 'idle in transaction%%'
    AND state_change < clock_timestamp() - interval '5 s'
UNION ALL
SELECT 'I9 pid ' || pid || ' waits for a lock since ' || waitstart
FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '1 s'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_ALWAYS = (
    _I2_TWICE,
    _I2_TRANSACTION,
    _I3_ALLOWED,
    _I4_CLAIM,
    _I4_RENEWAL,
    _I4_LEAVING,
    _I4_EXPIRY,
    _I4_LOWERED,
    _I5_STEPS,
    _I5_STRANDED,
    _I5_DEAD,
    _I6_SHAPE,
    _I8_TWICE,
    _I9_SESSIONS,
)


def violations(
    conn: Connection,
    *,
    keys: Iterable[str] | None = None,
    killed: Collection[int] = (),
    quiet: bool = True,
    slack_seconds: float = 10.0,
) -> list[str]:
    """Every violation found, as a line each; empty is sound.

    `keys`: all that were enqueued. `killed`: pids that the test stopped or killed, the children of
    a killed parent included. `quiet`: all work is done, so each success must show its effect.
    `slack_seconds`: how long after its end a lease may stay unreaped (reap + lease).
    """
    found: list[str] = []

    def ask(query: str, *params: object) -> None:
        found.extend(line for (line,) in conn.execute(query, params or None))

    for query in _ALWAYS:
        ask(query.replace("%%", "%"))
    if quiet:
        ask(_I2_WITHOUT, list(EFFECT_KINDS))
    ask(_I7_ABANDONED, slack_seconds)
    ask(_I8_OVERLAP, list(killed))
    if keys is not None:
        rows = {key for (key,) in conn.execute("SELECT idempotency_key FROM jobs")}
        found.extend(f"I1 key {key} is lost" for key in sorted(set(keys) - rows))
    return found


def assert_sound(
    conn: Connection,
    *,
    keys: Iterable[str] | None = None,
    killed: Collection[int] = (),
    quiet: bool = True,
    slack_seconds: float = 10.0,
) -> None:
    """Fail with the first violations, if there are any."""
    found = violations(conn, keys=keys, killed=killed, quiet=quiet, slack_seconds=slack_seconds)
    assert not found, f"{len(found)} violations:\n" + "\n".join(found[:20])
