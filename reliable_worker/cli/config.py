"""`reliable-worker config`: every setting, its value and where that came from. Floor 7."""

from __future__ import annotations

import argparse

from reliable_worker.cli import options, output
from reliable_worker.settings import explain

DESCRIPTION = """Show every setting with its value and its source: flag, environment, file, default.

Secrets are redacted. Settings that do not parse or do not fit each other are refused here exactly
as `run` would refuse them: one line, exit 2.
"""
EXAMPLES = """examples:
  reliable-worker config
  RELIABLE_WORKER_LEASE_SECONDS=10 reliable-worker config --workers 8
  reliable-worker config --config /etc/reliable-worker/worker.toml --json
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser("config", description=DESCRIPTION, epilog=EXAMPLES)
    options.add_json(parser)
    options.add_settings(parser, queues=True, listed=True)


def run(args: argparse.Namespace) -> int:
    """Print the settings."""
    items = explain(options.load_settings(args, need_database=False))
    if args.json:
        output.print_json(
            {item.name: {"value": item.value, "source": item.source} for item in items}
        )
        return 0
    rows = [(item.name, _show(item.value), item.source) for item in items]
    output.print_table(("SETTING", "VALUE", "SOURCE"), rows)
    return 0


def _show(value: object) -> object:
    if isinstance(value, tuple):
        return ", ".join(value) or None
    return f"{value:g}" if isinstance(value, float) else value or (None if value == "" else value)
