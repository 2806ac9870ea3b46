"""What each statement that writes on jobs must do, row by row: the truth the fence matrix holds.

A new statement that writes on jobs needs an entry here; a test sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.postgres.matrix import (
    GONE,
    HOLDER,
    MAX_ATTEMPTS,
    SITUATIONS,
    Asker,
    Row,
    Verb,
    Within,
)

NO_LEASE: dict[str, object] = {"lease_owner": None, "lease_until": None}
NO_STREAK: dict[str, object] = {"refunds": 0, "snoozes": 0}
NOW = Within(0)
DELAY_SECONDS = 500.0
LEASE_SECONDS = 300.0
BASE_SECONDS, MAX_SECONDS = 100.0, 100_000.0  # of a backoff
MAX_CRASHES = 3
ROWS = 2 * len(SITUATIONS)  # as many as there are, twins included


def one(asker: Asker, job_id: int) -> list[object]:
    return [job_id, asker.owner, asker.fence]


def many(asker: Asker, job_id: int) -> list[object]:
    return [[job_id], [asker.owner], [asker.fence]]


def holds(row: Row, named: bool, asker: Asker) -> bool:
    """A holder's statement touches the row it names, and only while owner and fence are its own."""
    own = (row["lease_owner"], row["fence"]) == (asker.owner, asker.fence)
    return named and row["state"] == "running" and own


def dead_if(dead: bool, alive: Mapping[str, object], **buried: object) -> dict[str, object]:
    ends = {"state": "dead", "ended_at": NOW, **buried}
    return {**NO_LEASE, **(ends if dead else {"state": "ready", **alive})}


def completed(row: Row) -> dict[str, object]:
    times = {"completed_at": NOW, "ended_at": NOW}
    return {
        "state": "succeeded",
        "last_error": None,
        "completed_by": row["lease_owner"],
        "crashes": 0,
        **times,
        **NO_LEASE,
        **NO_STREAK,
    }


def given_back(row: Row, **more: object) -> dict[str, object]:
    return {"state": "ready", "attempts": row["attempts"] - 1, **NO_LEASE, **more}


def claimed(row: Row) -> dict[str, object]:
    return {
        "state": "running",
        "attempts": row["attempts"] + 1,
        "fence": row["fence"] + 1,
        "lease_owner": "d.0",
        "lease_until": Within(LEASE_SECONDS),
        "claimed_at": NOW,
    }


def claim(statement: str, suspects: bool) -> Verb:
    def due(row: Row, named: bool, asker: Asker) -> bool:
        kept = ("exhausted" in row["idempotency_key"]) or ("scheduled" in row["idempotency_key"])
        return row["state"] == "ready" and (row["crashes"] > 0) == suspects and not kept

    place: list[object] = [["default"], ["message"], [5], [0]]
    return Verb(
        statement,
        lambda asker, job_id: [*place, ROWS, ["d.0"] * ROWS, LEASE_SECONDS],
        due,
        claimed,
        askers=[HOLDER],  # nobody's name is asked for
    )


HOLDERS = [
    Verb(
        "renew",
        lambda asker, job_id: [*many(asker, job_id), LEASE_SECONDS],
        holds,
        lambda row: {"lease_until": Within(LEASE_SECONDS)},
    ),
    Verb("complete", one, holds, completed),
    Verb("complete_many", many, holds, completed),
    Verb(
        "retry",
        lambda asker, job_id: [*one(asker, job_id), DELAY_SECONDS, "it failed"],
        holds,
        lambda row: {
            "state": "ready",
            "available_at": Within(DELAY_SECONDS),
            "last_error": "it failed",
            **NO_LEASE,
            **NO_STREAK,
        },
    ),
    Verb(
        "bury",
        lambda asker, job_id: [*one(asker, job_id), "it failed"],
        holds,
        lambda row: {
            "state": "dead",
            "ended_at": NOW,
            "last_error": "it failed",
            **NO_LEASE,
            **NO_STREAK,
        },
    ),
    Verb("release", many, holds, given_back),
    Verb(
        "refund",
        lambda asker, job_id: [*one(asker, job_id), DELAY_SECONDS],
        holds,
        lambda row: given_back(row, refunds=row["refunds"] + 1, available_at=Within(DELAY_SECONDS)),
    ),
    Verb(
        "snooze",
        lambda asker, job_id: [*one(asker, job_id), DELAY_SECONDS],
        holds,
        lambda row: given_back(
            row, refunds=0, snoozes=row["snoozes"] + 1, available_at=Within(DELAY_SECONDS)
        ),
    ),
]

CLAIMS = [claim("claim", suspects=False), claim("claim_suspects", suspects=True)]


def expired(row: Row, named: bool, asker: Asker) -> bool:
    dated = row["claimed_at"] is not None
    return dated and row["idempotency_key"].startswith("expired")


def after_expiry(row: Row) -> dict[str, object]:
    dead = row["attempts"] >= row["max_attempts"]
    said = row["last_error"] or "lease expired after final attempt"
    alive = {"available_at": Within(row["attempts"] - 1)}
    return {"fence": row["fence"] + 1, **dead_if(dead, alive, last_error=said)}


def of_the_dead(row: Row, named: bool, asker: Asker) -> bool:
    """An obituary's judgement of a started job: its fence, and an owner of that process."""
    own = (row["lease_owner"] or "").startswith(f"{asker.owner[:32]}.")
    return named and own and row["fence"] == asker.fence


def left_by_the_dead(row: Row, named: bool, asker: Asker) -> bool:
    """All others of that process, the started ones excepted."""
    own = (row["lease_owner"] or "").startswith(f"{asker.owner[:32]}.")
    judged = named and row["fence"] == asker.fence
    return own and row["claimed_at"] is not None and not judged


def crashed(row: Row) -> dict[str, object]:
    changes = dead_if(row["crashes"] + 1 >= MAX_CRASHES, {})
    counts = {"crashes": row["crashes"] + 1, "attempts": row["attempts"] - 1}
    return {**changes, **counts, "fence": row["fence"] + 1, "last_error": "killed"}


def stuck(row: Row) -> dict[str, object]:
    delay = Within(BASE_SECONDS * 2 ** (row["attempts"] - 1))
    changes = dead_if(row["attempts"] >= row["max_attempts"], {"available_at": delay})
    return {**changes, **NO_STREAK, "fence": row["fence"] + 1, "last_error": "timed out"}


def boot(asker: Asker) -> str:
    return asker.owner[:32]


UPKEEP = [
    # the mark 0 is before every claim; the server's age asked for is none
    Verb("expire", lambda asker, job_id: [0.0, 0.0, ROWS], expired, after_expiry, [HOLDER]),
    Verb(
        "sweep",
        lambda asker, job_id: [ROWS],
        lambda row, named, asker: row["state"] == "ready" and row["attempts"] >= MAX_ATTEMPTS,
        lambda row: {"state": "dead", "ended_at": NOW},
        [HOLDER],
    ),
    Verb(
        "date_running",
        lambda asker, job_id: [],
        lambda row, named, asker: row["state"] == "running" and row["claimed_at"] is None,
        lambda row: {"claimed_at": NOW},
        [HOLDER],
    ),
    Verb(
        "obituary_crash",
        lambda asker, job_id: [boot(asker), [job_id], [asker.fence], MAX_CRASHES, "killed"],
        of_the_dead,
        crashed,
    ),
    Verb(
        "obituary_timeout",
        lambda asker, job_id: [
            *[boot(asker), [job_id], [asker.fence], "timed out"],
            *[BASE_SECONDS, MAX_SECONDS, 0.0],
        ],
        of_the_dead,
        stuck,
    ),
    Verb(
        "obituary_refund",
        lambda asker, job_id: [boot(asker), [job_id], [asker.fence], 0.0],
        left_by_the_dead,
        lambda row: given_back(row, fence=row["fence"] + 1),
    ),
]


DAY_SECONDS = 86_400.0


def in_state(*states: str) -> Callable[[Row, bool, Asker], bool]:
    return lambda row, named, asker: named and row["state"] in states


def by_operator(asker: Asker, job_id: int) -> list[object]:
    return [[job_id], "somebody@here", "{}"]


OPERATORS = [
    Verb(
        "job_retry",
        by_operator,
        in_state("dead"),
        lambda row: {
            "state": "ready",
            "attempts": 0,
            "crashes": 0,
            "available_at": NOW,
            "ended_at": None,
            **NO_STREAK,
        },
        [HOLDER],
    ),
    Verb(
        "job_cancel",
        by_operator,
        in_state("ready", "running"),
        lambda row: {
            "state": "cancelled",
            "ended_at": NOW,
            "fence": row["fence"] + (row["state"] == "running"),
            **NO_LEASE,
        },
        [HOLDER],
    ),
    Verb(
        "job_discard",
        by_operator,
        in_state("ready"),
        lambda row: {"state": "dead", "ended_at": NOW, "last_error": "discarded by operator"},
        [HOLDER],
    ),
    Verb(
        "job_reprioritise",
        lambda asker, job_id: [*by_operator(asker, job_id), 2],
        in_state("ready"),
        lambda row: {"priority": 2},
        [HOLDER],
    ),
    Verb(
        "prune",
        # half an hour: the situations' past is an hour ago; the dead are kept for a day
        lambda asker, job_id: [0, ROWS, 1800.0, 1800.0, DAY_SECONDS],
        lambda row, named, asker: (
            row["state"] in ("succeeded", "cancelled")
            and not row["idempotency_key"].startswith("ended just now")
        ),
        lambda row: GONE,
        [HOLDER],
    ),
]

VERBS = {verb.statement: verb for verb in [*HOLDERS, *CLAIMS, *UPKEEP, *OPERATORS]}
