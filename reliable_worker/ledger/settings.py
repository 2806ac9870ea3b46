"""The ledger's settings: from the environment, typed, their order checked once at start.

Floor 6; imports settings. `LEDGER_<SETTING>` in capitals; the database is `LEDGER_DATABASE_URL`,
else `DATABASE_URL`. What does not parse or does not fit is a `SettingsError`: one line, exit code
2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal

from reliable_worker.settings import LOG_LEVELS, SettingsError, split_address
from reliable_worker.settings import Settings as DatabaseSettings

PREFIX = "LEDGER_"
# systemd's TimeoutStopSec in ledger.service: whatever is left then is killed.
STOP_LIMIT_SECONDS = 15.0
_SWITCH = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}

Source = Literal["environment", "default"]


def _seconds(default: float, text: str, most: float = 3600) -> Any:
    return field(default=float(default), metadata={"text": text, "least": 0.001, "most": most})


def _count(default: int, text: str, least: int, most: int) -> Any:
    return field(default=default, metadata={"text": text, "least": least, "most": most})


def _text(default: object, text: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"text": text, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """All settings; names end in their unit. Made by `load`."""

    database_url: str = _text("", "libpq URL or key=value string", secret=True)
    password_file: str | None = _text(None, "file that holds the password, read at every connect")
    address: str = _text("127.0.0.1:8080", "HOST:PORT to serve on")

    header_seconds: float = _seconds(2, "for the head of a request")
    read_seconds: float = _seconds(5, "for a whole request, head and body")
    request_seconds: float = _seconds(2, "from the whole request to its answer")
    statement_timeout_seconds: float = _seconds(1.5, "statement_timeout of a session")
    lock_timeout_seconds: float = _seconds(0.5, "lock_timeout of a transfer")
    connect_timeout_seconds: float = _seconds(3, "budget of one connect")
    write_seconds: float = _seconds(5, "for the client to take its answer")
    idle_seconds: float = _seconds(60, "how long a connection may be kept without a request")
    shutdown_seconds: float = _seconds(8, "from SIGTERM until running requests are cut")
    health_seconds: float = _seconds(0.5, "budget of the ping of /healthz and /readyz")

    pool_min: int = _count(2, "connections kept", 0, 1000)
    pool_max: int = _count(20, "most connections, and threads that use them", 1, 1000)
    pool_wait_seconds: float = _seconds(1, "how long a request may wait for a connection")
    pool_lifetime_seconds: float = _seconds(1800, "age that retires a connection", 86_400)
    pool_idle_seconds: float = _seconds(300, "idle time that closes a connection", 86_400)
    pool_health_seconds: float = _seconds(60, "idle time after which one is checked", 86_400)
    max_waiting: int = _count(100, "requests that may wait for a connection", 0, 10_000)
    max_connections: int = _count(512, "open HTTP connections", 8, 50_000)
    reserve_connections: int = _count(
        10, "connections of the server left for migrations, admin, replicas", 0, 10_000
    )

    outbox: bool = _text(True, "enqueue a job transfer.completed with every transfer; on or off")
    webhook_url: str | None = _text(None, "where transfer.completed is delivered", secret=True)
    webhook_secret: str | None = _text(None, "whsec_… that signs deliveries", secret=True)
    webhook_timeout_seconds: float = _seconds(10, "budget of one delivery", 60)
    webhook_private: bool = _text(False, "deliver to private addresses as well; on or off")
    log_level: str = _text("info", "debug, info, warning or error")

    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)

    @property
    def database(self) -> DatabaseSettings:
        """The same budgets in the words of `postgres.database`."""
        return DatabaseSettings(
            database_url=self.database_url,
            password_file=self.password_file,
            connect_timeout_seconds=self.connect_timeout_seconds,
            statement_timeout_seconds=self.statement_timeout_seconds,
            lock_timeout_seconds=self.lock_timeout_seconds,
            query_timeout_seconds=self.statement_timeout_seconds,
            idle_in_transaction_timeout_seconds=self.request_seconds,
        )

    @property
    def health(self) -> DatabaseSettings:
        """For the connection of /healthz, whose every step ends within its budget."""
        return replace(
            self.database,
            connect_timeout_seconds=self.health_seconds,
            statement_timeout_seconds=self.health_seconds,
            query_timeout_seconds=self.health_seconds,
        )


@dataclass(frozen=True, slots=True)
class Item:
    """One line of `config`: a setting's name, its value without secrets, where it came from."""

    name: str
    value: object
    source: Source


FIELDS: dict[str, Field[Any]] = {f.name: f for f in fields(LedgerSettings) if f.name != "sources"}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def load(environ: Mapping[str, str], *, need_database: bool = True) -> LedgerSettings:
    """Read, check and freeze all settings. Raises SettingsError."""
    known = {variable(name) for name in FIELDS}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{name[:60]} is no setting: remove it; `config` lists them")
    values: dict[str, Any] = {}
    for name, spec in FIELDS.items():
        raw = environ.get(variable(name))
        if name == "database_url":
            raw = raw or environ.get("DATABASE_URL")
        if raw:  # an empty variable is an unset one
            values[name] = _parse(name, raw, spec)
    sources: dict[str, Source] = {
        name: "environment" if name in values else "default" for name in FIELDS
    }
    settings = LedgerSettings(**values, sources=sources)
    if need_database and not settings.database_url:
        raise SettingsError(
            "LEDGER_DATABASE_URL is not set: set it to the database's URL, for example"
            " postgresql:///ledger"
        )
    _check_order(settings)
    return settings


def explain(settings: LedgerSettings) -> list[Item]:
    """Each setting with its source; secrets are redacted."""
    return [
        Item(
            name,
            "<redacted>"
            if spec.metadata.get("secret") and getattr(settings, name)
            else getattr(settings, name),
            settings.sources.get(name, "default"),
        )
        for name, spec in FIELDS.items()
    ]


def _check_order(s: LedgerSettings) -> None:
    """Each budget is under the one it is spent within (the specification's "Budgets")."""
    _under(s, "header_seconds", "read_seconds")
    _under(s, "lock_timeout_seconds", "statement_timeout_seconds")
    _under(s, "statement_timeout_seconds", "request_seconds")
    _under(s, "pool_wait_seconds", "request_seconds")
    if s.shutdown_seconds >= STOP_LIMIT_SECONDS:
        raise SettingsError(
            f"{variable('shutdown_seconds')} {s.shutdown_seconds:g} must be under"
            f" {STOP_LIMIT_SECONDS:g}, the unit's TimeoutStopSec: lower it"
        )
    if s.pool_min > s.pool_max:
        raise SettingsError(
            f"LEDGER_POOL_MIN {s.pool_min} must not exceed LEDGER_POOL_MAX {s.pool_max}:"
            " lower the first or raise the last"
        )
    if s.webhook_url and not s.webhook_secret:
        raise SettingsError(
            "LEDGER_WEBHOOK_SECRET is not set, and a delivery without a signature proves nothing:"
            " set it to whsec_ and 24 to 64 bytes in base64"
        )


def _under(s: LedgerSettings, less: str, more: str) -> None:
    if getattr(s, less) >= getattr(s, more):
        raise SettingsError(
            f"{variable(less)} {getattr(s, less):g} must be under {variable(more)}"
            f" {getattr(s, more):g}: lower the first or raise the last"
        )


def _parse(name: str, raw: str, spec: Field[Any]) -> Any:
    where = variable(name)
    if "least" in spec.metadata:
        return _parse_number(raw, where, spec)
    if isinstance(spec.default, bool):
        if raw.lower() not in _SWITCH:
            raise SettingsError(f"{where} is {raw[:40]!a}: set it to on or off")
        return _SWITCH[raw.lower()]
    if "\0" in raw or not raw.isprintable():
        raise SettingsError(f"{where} must be one line of text")
    if name == "log_level" and raw not in LOG_LEVELS:
        raise SettingsError(f"{where} is {raw[:40]!a}: set it to one of {', '.join(LOG_LEVELS)}")
    if name == "address":
        try:
            split_address(raw)
        except ValueError:
            raise SettingsError(
                f"{where} is {raw[:60]!a}: set it to HOST:PORT, like 127.0.0.1:8080"
            ) from None
    return raw


def _parse_number(raw: str, where: str, spec: Field[Any]) -> int | float:
    whole = isinstance(spec.default, int)
    least, most = spec.metadata["least"], spec.metadata["most"]
    # A pattern, because float() takes "nan", "inf" and "1_0"; 32 characters are enough for any.
    pattern = r"[0-9]+" if whole else r"[0-9]+\.?[0-9]*|\.[0-9]+"
    value = math.nan
    if len(raw) <= 32 and re.fullmatch(pattern, raw.strip()):
        value = float(raw)
    if not least <= value <= most:  # NaN is not
        kind = "a whole number" if whole else "a number"
        raise SettingsError(f"{where} is {raw[:40]!a}: set it to {kind} from {least:g} to {most:g}")
    return int(value) if whole else value
