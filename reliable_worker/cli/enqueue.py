"""`reliable-worker enqueue`: put one job in, from a shell. Floor 7."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import datetime, timedelta

from reliable_worker.cli import options, output, words
from reliable_worker.cli.session import session
from reliable_worker.enqueue import enqueue
from reliable_worker.enqueue.app import load_app
from reliable_worker.enqueue.enqueue import NewJob, insert, prepare
from reliable_worker.jobs.errors import InvalidJob
from reliable_worker.settings import Settings

DESCRIPTION = """Put one job in. Prints its id, its state, and whether it is new or existed.

A key names a job for ever: the same kind and payload under the same key is found, not stored
twice; another kind or payload under it is refused. Without --key the job gets a fresh one.
Any kind may be enqueued, since any language may run it; with --app an unknown kind or a payload
its handler would refuse is refused here.
"""
EXAMPLES = """examples:
  reliable-worker enqueue message --key welcome-1 --payload '{"message": "hello"}'
  reliable-worker enqueue invoice.send --payload - < invoice.json
  reliable-worker enqueue report --queue slow --priority 7 --in 90m
  reliable-worker enqueue report --at 2030-01-31T06:00+01:00 --max-attempts 3 --app shop.jobs:app
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "enqueue",
        usage="reliable-worker enqueue KIND [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("kind", metavar="KIND", help="what to run, like invoice.send")
    parser.add_argument("--key", help="idempotency key, 1 to 512 bytes")
    parser.add_argument(
        "--payload",
        metavar="JSON|-",
        default="{}",
        help="the payload in JSON; - reads it from stdin, out of sight of `ps`; default {}",
    )
    parser.add_argument("--queue", default="default", help="default: default")
    parser.add_argument("--priority", type=_whole, default=5, help="0 to 9, lower first; default 5")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--in", dest="delay", type=_delay, help="run after 30s, 5m, 2h or 1d")
    when.add_argument(
        "--at", metavar="TIME", type=_instant, help="run at 2030-01-31T06:00+01:00, or with Z"
    )
    parser.add_argument("--max-attempts", metavar="N", type=_whole, help="default 5")
    options.add_json(parser)
    options.add_settings(parser, app=True)


def run(args: argparse.Namespace) -> int:
    """Check everything, then connect and store. Raises what `failures` explains."""
    settings = options.load_settings(args)
    text = _payload(args.payload, settings)
    max_attempts = args.max_attempts
    app = load_app(settings.app) if settings.app else None
    if max_attempts is None:
        max_attempts = app.max_attempts(args.kind) if app else enqueue.DEFAULT_MAX_ATTEMPTS
    job = NewJob(
        kind=args.kind,
        payload=None,
        key=args.key,
        queue=args.queue,
        priority=args.priority,
        run_at=args.at or args.delay,
        max_attempts=max_attempts,
    )
    row = prepare(job, text=text, max_payload_bytes=settings.max_payload_bytes)
    if app:
        app.check(row.kind, row.payload)
    with session(settings) as conn:
        made = insert(conn, row, settings.max_payload_bytes)
    if args.json:
        output.print_json({"id": made.id, "state": made.state, "status": made.status,
                           "key": row.key})  # fmt: skip
    else:
        print(f"job {made.id} {made.state} ({made.status}), key {output.text(row.key)}")
    return 0


def _payload(given: str, settings: Settings) -> str:
    if given != "-":
        return given
    # One byte more than may be shows that there is too much, however much there is.
    data = sys.stdin.buffer.read(settings.max_payload_bytes + 1)
    if len(data) > settings.max_payload_bytes:
        raise InvalidJob(
            f"payload has more than {settings.max_payload_bytes} bytes:"
            " store the data elsewhere and enqueue its name"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidJob(f"payload is not UTF-8 at byte {error.start}") from None


def _whole(word: str) -> int:
    # Fewer digits than int() refuses with a traceback, more than any column here holds.
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", word):
        raise argparse.ArgumentTypeError("not a whole number in range")
    return int(word)


def _delay(word: str) -> timedelta:
    return timedelta(seconds=words.duration_seconds(word))


def _instant(word: str) -> datetime:
    try:
        instant = datetime.fromisoformat(word)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "not a time in the years 1 to 9999 like 2030-01-31T06:00+01:00"
        ) from None
    if instant.tzinfo is None:
        raise argparse.ArgumentTypeError("without a zone: add Z or an offset like +01:00")
    return instant
