"""The command `reliable-ledger`: the ledger's verbs, one function each, no logic.

Floor 7. What a verb raises ends as one line on stderr and an exit code, those of `reliable-worker`:
0 done, 1 failed, 2 usage or bad setting, 3 database unreachable, 4 schema not fit, 75 lock held.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from reliable_worker.cli import failures, migrate, output
from reliable_worker.cli.main import INTERRUPTED, Parser, end
from reliable_worker.ledger import accounts, server, settings, verify
from reliable_worker.ledger.pool import connect_once
from reliable_worker.ledger.schema import LEDGER
from reliable_worker.ledger.settings import LedgerSettings
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.marks import check_range

PROGRAM = "reliable-ledger"
LANE = "ledger-cli"
# An operator's statements may take longer than a client's.
STATEMENT_SECONDS = 60.0

DESCRIPTION = "Moves money between accounts, once per idempotency key, over HTTP."
EPILOG = """verbs:
  serve     answer HTTP until told to stop
  migrate   install or upgrade the schema: up, status, verify, force
  verify    check that every entry, balance and sequence fits together
  account   open an account: account create ID [--balance N]
  config    show every setting and where its value comes from

examples:
  LEDGER_DATABASE_URL=postgresql:///ledger reliable-ledger migrate up
  reliable-ledger account create 1 --balance 10000
  reliable-ledger serve
  reliable-ledger VERB --help

Settings are environment variables, LEDGER_<SETTING>; `reliable-ledger config` lists them.
"""
_SERVE = """Answer HTTP on LEDGER_ADDRESS until SIGTERM; running requests are then awaited for
LEDGER_SHUTDOWN_SECONDS. Exit code 1 if one had to be cut.
"""
_VERIFY = """Check that each transfer's entries sum to 0 and are what was asked for, that each
balance is the last entry's, each entry follows from the one before, and no sequence has a gap. Goes
on where the last run ended, unless --full. Exit code 1 if there is a problem.
"""

Verb = Callable[[LedgerSettings, argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, or raises SystemExit with it."""
    args = _parser().parse_args(argv)
    verb: Verb = args.run
    try:
        code = verb(settings.load(os.environ, need_database=verb is not _config), args)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        code, line = failures.explain(error)
        end(code, line.replace("DATABASE_URL", "LEDGER_DATABASE_URL"), PROGRAM)
    return code


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM, usage=f"{PROGRAM} VERB [OPTIONS]", description=DESCRIPTION, epilog=EPILOG
    )
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="VERB", parser_class=Parser, prog=PROGRAM
    )
    one = verbs.add_parser("serve", description=_SERVE, epilog="example:\n  reliable-ledger serve")
    one.set_defaults(run=_serve)
    one = verbs.add_parser(
        "migrate",
        usage=f"{PROGRAM} migrate up|status|verify|force VERSION [OPTIONS]",
        description=migrate.DESCRIPTION,
    )
    migrate.add_actions(one, PROGRAM)
    one.set_defaults(run=_migrate)
    one = verbs.add_parser(
        "verify", description=_VERIFY, epilog="example:\n  reliable-ledger verify"
    )
    one.add_argument("--full", action="store_true", help="look at every entry again")
    one.set_defaults(run=_verify)
    one = verbs.add_parser("account", description="Open accounts.")
    actions = one.add_subparsers(
        dest="action", required=True, metavar="create", parser_class=Parser
    )
    one = actions.add_parser(
        "create",
        usage=f"{PROGRAM} account create ID [--balance N] [--json]",
        description="Open an account. Exit code 1 if there is one of that id.",
        epilog="example:\n  reliable-ledger account create 1 --balance 10000",
    )
    one.add_argument("id", metavar="ID", type=int, help="a whole number over 0")
    one.add_argument(
        "--balance", metavar="N", type=int, default=0, help="opening balance in minor units"
    )
    one.set_defaults(run=_account)
    _add_json(one)
    one = verbs.add_parser("config", description="Show every setting, without secrets.")
    one.set_defaults(run=_config)
    for name in ("verify", "config"):
        _add_json(verbs.choices[name])
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def _serve(given: LedgerSettings, args: argparse.Namespace) -> int:
    server.leave(server.serve(given))
    return 0


def _migrate(given: LedgerSettings, args: argparse.Namespace) -> int:
    with _session(given) as conn:
        return migrate.act(conn, args, LEDGER)


def _verify(given: LedgerSettings, args: argparse.Namespace) -> int:
    def say(text: str) -> None:
        if not args.json:
            print(text, file=sys.stderr, flush=True)

    with _session(given) as conn:
        check_range(conn, LEDGER)
        report = verify.verify(conn, full=args.full, say=say)
    if args.json:
        output.print_json(report)
    else:
        for line in report.problems:
            print(line)
        hidden = report.count - len(report.problems)
        more = f", {hidden} of them not shown" if hidden else ""
        print(
            f"{report.accounts} accounts, {report.entries} entries looked at:"
            f" {report.count} problems{more}"
        )
    return failures.FAILED if report.count else 0


def _account(given: LedgerSettings, args: argparse.Namespace) -> int:
    with _session(given) as conn:
        check_range(conn, LEDGER)
        accounts.create(conn, args.id, args.balance)
    if args.json:
        output.print_json({"id": args.id, "balance": args.balance})
    else:
        print(f"account {args.id} opened with a balance of {args.balance}")
    return 0


def _config(given: LedgerSettings, args: argparse.Namespace) -> int:
    items = settings.explain(given)
    if args.json:
        output.print_json(
            {item.name: {"value": item.value, "source": item.source} for item in items}
        )
        return 0
    rows = [(item.name, _show(item.value), item.source) for item in items]
    output.print_table(("SETTING", "VALUE", "SOURCE"), rows)
    return 0


def _show(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else value or (None if value == "" else value)


def _session(given: LedgerSettings) -> Connection:
    budgets = replace(
        given.database,
        statement_timeout_seconds=STATEMENT_SECONDS,
        query_timeout_seconds=STATEMENT_SECONDS,
    )
    return connect_once(budgets, LANE)
