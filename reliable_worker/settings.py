"""Every setting of the package: typed, checked once at start, frozen afterwards.

Floor 0. Imports the standard library only: the parent process reads its settings from here and
must never load libpq, so the syntax of the database URL is checked by `postgres/database.py`.

A value comes from a flag, else the environment, else the TOML file, else its default; each keeps
its source. What does not parse, does not fit its range or does not fit its neighbours is refused
by a `SettingsError`: one line that names the setting and the mend.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Source = Literal["flag", "environment", "file", "default"]

PREFIX = "RELIABLE_WORKER_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
# These four names are the ones every deployment sets, so they go without the prefix.
PLAIN_VARIABLES = {
    "database_url": "DATABASE_URL",
    "workers": "WORKERS",
    "processes": "PROCESSES",
    "metrics_address": "METRICS_ADDRESS",
}
# RELIABLE_WORKER_ names that are no settings: the file's place, and the tests' failpoints.
_OTHER_VARIABLES = re.compile(PREFIX + r"(CONFIG|TEST|FAILPOINT)")

LEASE_SECONDS = 30.0  # the lease all other default budgets were chosen for
STOP_LIMIT_SECONDS = 15.0  # the unit's TimeoutStopSec: systemd kills whatever is left then
STOP_RESERVE_SECONDS = 2.0  # of the stop budget, for killing, reaping and obituaries
# 11 days: PostgreSQL counts its timeouts in milliseconds in an int4, which ends at 24 days.
SECONDS_LIMIT = 1_000_000.0
# A budget under a lease shorter than LEASE_SECONDS shrinks with it, but not below a half second:
# less than that cuts healthy statements on a busy server. Waiting for a lock may be shorter.
_FLOOR_SECONDS = 0.5
_SHRINKING = {
    "claim_timeout_seconds": _FLOOR_SECONDS,
    "query_timeout_seconds": _FLOOR_SECONDS,
    "connect_timeout_seconds": _FLOOR_SECONDS,
    "statement_timeout_seconds": _FLOOR_SECONDS,
    "lock_timeout_seconds": 0.2,
    "idle_in_transaction_timeout_seconds": _FLOOR_SECONDS,
    "finish_timeout_seconds": _FLOOR_SECONDS,
}
LOG_LEVELS = ("debug", "info", "warning", "error")
_CHOICES = {"log_level": LOG_LEVELS, "log_format": ("json", "text")}
SECRET = frozenset({"database_url"})
NAME_BYTES = 128  # the table's limit for a queue and a kind


class SettingsError(ValueError):
    """A setting is missing, malformed or does not fit: one line that names it and the mend."""


def _seconds(default: float, text: str, least: float = 0.001) -> Any:
    """A duration. A millisecond is the least that PostgreSQL's timeouts can express."""
    return _number(float(default), text, least, SECONDS_LIMIT)


def _days(default: float, text: str) -> Any:
    """How long rows are kept. A hundred years are as good as for ever, which is 0."""
    return _number(float(default), f"how long to keep {text}; 0: for ever", 0, 36_525)


def _number(default: float, text: str, least: float, most: float) -> Any:
    return field(default=default, metadata={"text": text, "least": least, "most": most})


def _text(default: object, text: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"text": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings; names end in their unit. Made by `load`, which also checks how they fit."""

    database_url: str = _text("", "libpq URL or key=value string", secret=True)
    password_file: str | None = _text(None, "file that holds the password, read at every connect")
    app: str | None = _text(None, "the application, as module:attribute")
    queues: tuple[str, ...] = _text((), "queues to serve; none named: every queue")
    workers: int = _number(4, "thread workers in all", 1, 1024)
    processes: int = _number(1, "worker processes; default min(workers, cores)", 1, 1024)
    metrics_address: str = _text("127.0.0.1:9464", "HOST:PORT of /metrics /livez /readyz")

    lease_seconds: float = _seconds(LEASE_SECONDS, "how long a claim holds without renewal")
    renew_seconds: float = _seconds(10, "time between renewals; default lease/3")
    margin_seconds: float = _seconds(3, "safety before the lease's end; default lease/10")
    claim_timeout_seconds: float = _seconds(2, "budget of one claim")
    query_timeout_seconds: float = _seconds(3, "budget of one query")
    job_timeout_seconds: float = _seconds(20, "budget of one job, unless its handler says")
    finish_timeout_seconds: float = _seconds(5, "budget of the finishing transaction")
    connect_timeout_seconds: float = _seconds(3, "budget of one connect")
    statement_timeout_seconds: float = _seconds(3, "statement_timeout of a session")
    lock_timeout_seconds: float = _seconds(1, "lock_timeout of a session")
    idle_in_transaction_timeout_seconds: float = _seconds(5, "the session timeout of that name")
    poll_seconds: float = _seconds(0.5, "longest pause between claims of an idle process")
    claim_pause_seconds: float = _seconds(1, "pause after a failed claim")
    reap_seconds: float = _seconds(1, "time between looks for expired leases")
    sweep_seconds: float = _seconds(10, "time between sweeps of exhausted rows")
    stop_seconds: float = _seconds(10, "whole stop budget; children are killed 2 s before")
    drain_grace_seconds: float = _seconds(0, "how long a drain lets handlers run on", 0)
    release_timeout_seconds: float = _seconds(3, "budget of a drain's releases")
    stuck_grace_seconds: float = _seconds(5, "how long a cancelled thread may run on")
    stall_seconds: float = _seconds(15, "silence of a child that ends it; default lease/2")
    retry_base_seconds: float = _seconds(1, "backoff after the first failure, doubling")
    retry_max_seconds: float = _seconds(64, "longest backoff")
    retry_jitter: float = _number(0.1, "share of the backoff added at random", 0, 1)
    quarantine_idle_seconds: float = _seconds(30, "idle time that ends a quarantine child")
    census_seconds: float = _seconds(5, "time between counts of the queues")
    prune_seconds: float = _seconds(60, "time between looks for jobs to delete")
    pool_lifetime_seconds: float = _seconds(1800, "age that retires a connection")
    pool_idle_seconds: float = _seconds(300, "idle time that closes a connection")
    pool_health_seconds: float = _seconds(30, "idle time after which a connection is checked")

    keep_succeeded_days: float = _days(7, "jobs that succeeded, after their end")
    keep_cancelled_days: float = _days(7, "jobs that were cancelled, after their end")
    keep_dead_days: float = _days(90, "dead jobs, after their end")
    keep_attempts_days: float = _days(30, "the history of attempts")
    keep_actions_days: float = _days(365, "operators' actions")

    max_snoozes: int = _number(1000, "snoozes in a row before one counts as a failure", 0, 10**6)
    max_refunds: int = _number(3, "refunds in a row before a fault counts as a failure", 0, 10**6)
    max_crashes: int = _number(3, "crashes that bury a job", 1, 10**6)
    max_payload_bytes: int = _number(1048576, "largest payload; may only be lowered", 2, 1048576)
    prefetch: int = _number(0, "jobs a process may claim beyond its free slots", 0, 10_000)
    log_level: str = _text("info", "debug, info, warning or error")
    log_format: str = _text("json", "json, or text: coloured on a terminal")

    # Where each value came from, for `config`; two equal configurations may differ in it.
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Item:
    """One line of `config`: a setting's name, its redacted value and the value's source."""

    name: str
    value: object
    source: Source


FIELDS: dict[str, Field[Any]] = {f.name: f for f in fields(Settings) if f.name != "sources"}


def load(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str],
    config: Path | None = None,
    need_database: bool = True,
) -> Settings:
    """Read, check and freeze all settings.

    `flags` maps field names to strings, numbers or (queues) lists; None means not given.
    `config` is the TOML file; without it the one `RELIABLE_WORKER_CONFIG` names, if any.
    Raises SettingsError.
    """
    _refuse_unknown_variables(environ)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    path = config or (Path(named) if (named := environ.get(CONFIG_VARIABLE)) else None)
    for name, raw in (_read_file(path) if path else {}).items():
        values[name], sources[name] = _parse(name, raw, f"{name} in {path}"), "file"
    for name in FIELDS:
        if raw := environ.get(variable(name)):  # an empty variable is an unset one
            values[name], sources[name] = _parse(name, raw, variable(name)), "environment"
    for name, flag in (flags or {}).items():
        if flag is not None:
            values[name], sources[name] = _parse(name, flag, option(name)), "flag"
    values = {name: spec.default for name, spec in FIELDS.items()} | _derived(values) | values
    settings = Settings(**values, sources={name: sources.get(name, "default") for name in FIELDS})
    if need_database and not settings.database_url:
        raise SettingsError(
            "DATABASE_URL is not set: set it to the database's URL, for example postgresql:///jobs"
        )
    _check_fit(settings)
    return settings


def explain(settings: Settings) -> list[Item]:
    """Each setting with its source, in the order of the class; secrets are redacted."""
    return [
        Item(
            name,
            "<redacted>" if name in SECRET and getattr(settings, name) else getattr(settings, name),
            settings.sources.get(name, "default"),
        )
        for name in FIELDS
    ]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PLAIN_VARIABLES.get(name, PREFIX + name.upper())


def option(name: str) -> str:
    """The command line flag of a setting."""
    return "--queue" if name == "queues" else "--" + name.replace("_", "-")


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT or [IPv6]:PORT. Raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", address)
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return match[1] or match[2], int(match[3])


def _derived(given: Mapping[str, Any]) -> dict[str, float]:
    """Defaults that follow from other values."""
    workers = given.get("workers", FIELDS["workers"].default)
    lease = given.get("lease_seconds", LEASE_SECONDS)
    derived = {
        "processes": min(workers, _cores()),
        "renew_seconds": lease / 3,
        "margin_seconds": lease / 10,
        "stall_seconds": lease / 2,
    }
    if lease < LEASE_SECONDS:
        for name, floor in _SHRINKING.items():
            default = FIELDS[name].default
            derived[name] = max(floor, default * lease / LEASE_SECONDS)
    return derived


def _cores() -> int:
    """The cores this process may use; fewer than the machine's inside a container's cpuset."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_fit(s: Settings) -> None:
    """Refuse budgets that cannot hold together (the spec's "Fits")."""
    if s.processes > s.workers:
        raise SettingsError(
            f"processes {s.processes} is more than workers {s.workers}, and a process without a"
            " worker does nothing: lower PROCESSES or raise WORKERS"
        )
    _under("lock_timeout_seconds", s, "statement_timeout_seconds")
    if s.statement_timeout_seconds > s.query_timeout_seconds:
        raise SettingsError(
            f"statement_timeout_seconds {s.statement_timeout_seconds:g} must not exceed"
            f" query_timeout_seconds {s.query_timeout_seconds:g}: lower the first or raise the last"
        )
    renewal = ("renew_seconds", "connect_timeout_seconds", "query_timeout_seconds")
    _under((*renewal, "margin_seconds"), s, "lease_seconds")
    _under("claim_timeout_seconds", s, "lease_seconds")
    _under(("finish_timeout_seconds", "margin_seconds"), s, "lease_seconds")
    drain = ("claim_timeout_seconds", "drain_grace_seconds", "release_timeout_seconds")
    if sum(getattr(s, name) for name in drain) > s.stop_seconds - STOP_RESERVE_SECONDS:
        raise SettingsError(
            f"{_sum(drain, s)} must leave {STOP_RESERVE_SECONDS:g} s of stop_seconds"
            f" {s.stop_seconds:g} for reaping: raise stop_seconds or lower the others"
        )
    if s.stop_seconds >= STOP_LIMIT_SECONDS:
        raise SettingsError(
            f"stop_seconds {s.stop_seconds:g} must be under {STOP_LIMIT_SECONDS:g}, the unit's"
            " TimeoutStopSec: lower stop_seconds"
        )
    # A lease shortened by itself, as in tests and demos, keeps the default stop budget.
    if s.sources["stop_seconds"] != "default" or s.lease_seconds >= LEASE_SECONDS:
        _under("stop_seconds", s, "lease_seconds")
    if s.retry_base_seconds > s.retry_max_seconds:
        raise SettingsError(
            f"retry_base_seconds {s.retry_base_seconds:g} must not exceed retry_max_seconds"
            f" {s.retry_max_seconds:g}: lower the first or raise the last"
        )


def _under(names: str | Sequence[str], s: Settings, limit: str) -> None:
    names = (names,) if isinstance(names, str) else names
    # Summed without rounding error: 10 + 3 + 3 + 14 is not under 30.
    if math.fsum(getattr(s, name) for name in names) >= getattr(s, limit):
        raise SettingsError(
            f"{_sum(names, s)} must be under {limit} {getattr(s, limit):g}:"
            f" raise {limit} or lower {'the others' if len(names) > 1 else names[0]}"
        )


def _sum(names: Sequence[str], s: Settings) -> str:
    return " + ".join(f"{name} {getattr(s, name):g}" for name in names)


def _parse(name: str, raw: object, where: str) -> Any:
    """`raw` as the type of the setting `name`; `where` is what an error calls it."""
    if name not in FIELDS:
        raise SettingsError(f"{where} is no setting{_hint(name, FIELDS)}")
    spec = FIELDS[name]
    if "least" in spec.metadata:
        return _parse_number(raw, where, spec)
    if name == "queues":
        return _parse_queues(raw, where)
    if not isinstance(raw, str) or not raw or not _clean(raw):
        raise SettingsError(f"{where} must be a text without NUL in UTF-8: quote it, or unset it")
    if raw not in _CHOICES.get(name, (raw,)):
        raise SettingsError(f"{where} is {_show(raw)}: use one of {', '.join(_CHOICES[name])}")
    if name == "app" and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.\w+)*", raw):
        raise SettingsError(f"{where} is {_show(raw)}: set it to module:attribute, like shop:app")
    if name == "metrics_address":
        try:
            split_address(raw)
        except ValueError:
            mend = "set it to HOST:PORT, like 127.0.0.1:9464"
            raise SettingsError(f"{where} is {_show(raw)}: {mend}") from None
    return raw


def _parse_number(raw: object, where: str, spec: Field[Any]) -> int | float:
    whole = spec.type == "int"
    least, most = spec.metadata["least"], spec.metadata["most"]
    # A pattern, because float() takes "nan", "inf" and "1_0", and int() digits of any script.
    # 32 characters are more than any number in range needs, and int() refuses 5,000 digits.
    pattern = r"[+-]?[0-9]+" if whole else r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    value: float = math.nan
    if isinstance(raw, str) and len(raw) <= 32 and re.fullmatch(pattern, raw.strip()):
        value = int(raw) if whole else float(raw)
    elif type(raw) is int or (type(raw) is float and not whole):  # type: a bool is an int too
        value = raw
    if not least <= value <= most:  # NaN is not
        kind = "a whole number" if whole else "a number"
        raise SettingsError(
            f"{where} is {_show(raw)}: set it to {kind} from {least:g} to {most:.0f}"
        )
    return int(value) if whole else float(value)


def _parse_queues(raw: object, where: str) -> tuple[str, ...]:
    names = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(names, list | tuple) or not names:
        raise SettingsError(f'{where} must be a list of queue names: set it to ["a", "b"] or a,b')
    for name in names:
        if not (isinstance(name, str) and _clean(name) and 1 <= len(name.encode()) <= NAME_BYTES):
            raise SettingsError(
                f"{where} names the queue {_show(name)}: a name has 1 to {NAME_BYTES} bytes of"
                " UTF-8 without NUL, so mend or remove it"
            )
    return tuple(dict.fromkeys(names))


def _clean(text: str) -> bool:
    """Whether PostgreSQL can store it: no NUL, no lone surrogate (bytes that were not UTF-8)."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _show(raw: object) -> str:
    """A refused value, short enough for one line."""
    try:
        text = ascii(raw)
    except ValueError:  # an int of more digits than Python converts
        return "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _read_file(path: Path) -> dict[str, object]:
    import tomllib

    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}; mend --config"
            f" or {CONFIG_VARIABLE}"
        ) from None
    except (ValueError, RecursionError) as error:
        # The parser's message may quote the line, and the line may hold the URL: say only where.
        place = re.search(r"at line \d+, column \d+|at end of document", str(error))
        where = f" ({place[0]})" if place else ""
        raise SettingsError(f"the settings file {path} is not TOML{where}: mend it") from None
    for name in values:
        if name not in FIELDS:
            raise SettingsError(f"{_show(name)} in {path} is no setting{_hint(name, FIELDS)}")
    return values


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {variable(name): name for name in FIELDS}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known or _OTHER_VARIABLES.fullmatch(name):
            continue
        bare = name.removeprefix(PREFIX)
        hint = f": did you mean {bare}?" if bare in known else _hint(name, known)
        raise SettingsError(f"{_show(name)[1:-1]} is no setting{hint}")


def _hint(name: str, known: Mapping[str, object]) -> str:
    import difflib

    # Half alike is near enough for a name with a missing or an older part.
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ": remove it; `config` lists the settings"
