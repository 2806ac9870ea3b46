"""Options that verbs share: the settings as flags, --config and --json.

Floor 7; imports settings only, so that `run` may use it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from reliable_worker.settings import FIELDS, Settings, load, option, variable

# The URL holds a password, and everybody on the machine can read a command line.
_NO_FLAGS = frozenset({"database_url", "queues"})
_DEST = "setting_"


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json: the answer as one JSON value on stdout."""
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def add_settings(
    parser: argparse.ArgumentParser,
    *,
    queues: bool = False,
    app: bool = False,
    listed: bool = False,
) -> None:
    """--config and a flag for every setting; --help names them all only where `listed`.

    `queues` adds --queue as the setting of that name, one or several.
    """
    group = parser.add_argument_group(
        "settings", "A flag wins over the environment, that over the file, that over the default."
    )
    group.add_argument(
        "--config", metavar="FILE", help="settings file in TOML (or RELIABLE_WORKER_CONFIG)"
    )
    if queues:
        group.add_argument(
            "--queue",
            dest=_DEST + "queues",
            metavar="NAME",
            nargs="+",
            action="extend",
            help="serve only these queues; without it every queue",
        )
    for name, spec in FIELDS.items():
        if name not in _NO_FLAGS:
            text = f"{spec.metadata['text']} ({variable(name)})"
            shown = listed or name == "password_file" or (app and name == "app")
            group.add_argument(
                option(name),
                dest=_DEST + name,
                metavar=_metavar(name),
                help=text if shown else argparse.SUPPRESS,
            )


def flags(args: argparse.Namespace) -> dict[str, object]:
    """The settings given as flags, by setting name."""
    return {
        name.removeprefix(_DEST): value
        for name, value in vars(args).items()
        if name.startswith(_DEST) and value is not None
    }


def config_path(args: argparse.Namespace) -> Path | None:
    """The file that --config names."""
    return Path(args.config) if args.config else None


def load_settings(
    args: argparse.Namespace,
    *,
    environ: Mapping[str, str] | None = None,
    need_database: bool = True,
) -> Settings:
    """The settings of this command. Raises SettingsError."""
    return load(
        flags(args),
        environ=os.environ if environ is None else environ,
        config=config_path(args),
        need_database=need_database,
    )


def _metavar(name: str) -> str:
    if name.endswith("_seconds"):
        return "SECONDS"
    if name.endswith("_days"):
        return "DAYS"
    return {
        "app": "MODULE:ATTRIBUTE",
        "password_file": "FILE",
        "metrics_address": "HOST:PORT",
        "log_level": "LEVEL",
        "log_format": "FORMAT",
        "max_payload_bytes": "BYTES",
    }.get(name, "N")
