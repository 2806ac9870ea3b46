"""The command `reliable-worker`: finds the verb, loads its module and nothing else.

Floor 7. A verb's module has `add(subparsers)`, which defines its arguments, and `run(args)`, which
returns its exit code. Imports stay few and late: `run` has to see a SIGTERM from its first moment,
and the parent process it becomes must never load libpq.

Whatever a verb raises ends here as one line on stderr and an exit code: 0 done, 1 failed, 2 usage
or bad setting, 3 database unreachable, 4 schema not fit, 75 lock held, try again.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

PROGRAM = "reliable-worker"
VERBS = {
    "demo": "see real jobs run on an embedded PostgreSQL",
    "migrate": "install or upgrade the schema: up, status, verify, force",
    "run": "run jobs until told to stop",
    "enqueue": "put a job in",
    "jobs": "look at jobs, ask why they wait, retry, cancel, discard them",
    "queues": "look at the queues, pause and resume them",
    "doctor": "check database, schema, budgets and connections",
    "top": "watch queues, rates, slots and running jobs",
    "config": "show every setting and where its value comes from",
}
INTERRUPTED = 130  # what shells report for a command ended by Ctrl-C


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and no abbreviations, which a new option could break."""

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.usage = self.usage or f"{self.prog} [OPTIONS]"

    def error(self, message: str) -> NoReturn:
        end(2, f"{_typed(message)}; see {self.prog} --help", self.prog.split(maxsplit=1)[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, or raises SystemExit with it."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is None:
        return _without_verb(parser, words)
    if verb not in VERBS:
        fail(2, f"there is no verb {_show(verb)}{_hint(verb)}; see {PROGRAM} --help")
    module = import_module(f"reliable_worker.cli.{verb}")
    module.add(parser.add_subparsers(dest="verb", parser_class=Parser, prog=PROGRAM))
    args = parser.parse_args(words)
    try:
        code: int = module.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, like `head`; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        from reliable_worker.cli import failures

        code, line = failures.explain(error)
        fail(code, line)
    return code


def fail(code: int, line: str) -> NoReturn:
    """End with one line on stderr."""
    end(code, line, PROGRAM)


def end(code: int, line: str, program: str) -> NoReturn:
    """End a program of ours with one line on stderr."""
    print(f"{program}: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(code)


def _typed(text: str) -> str:
    """What was typed, without the URLs and passwords that may be in it by mistake."""
    text = re.sub(r"\w*://[^\s'\"]*", "[a URL]", text)
    return re.sub(r"(?i)(password\s*=\s*)('[^']*'|\S+)", r"\1[…]", text)


def _parser() -> Parser:
    verbs = "\n".join(f"  {verb:<10}{text}" for verb, text in VERBS.items())
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} VERB [OPTIONS]",
        description="Runs jobs kept in PostgreSQL; a job's committed effect happens once.",
        epilog=f"verbs:\n{verbs}\n\n"
        "examples:\n"
        f"  {PROGRAM} demo\n"
        f"  DATABASE_URL=postgresql:///jobs {PROGRAM} migrate up\n"
        f"  {PROGRAM} run --app shop.jobs:app\n"
        f"  {PROGRAM} VERB --help",
    )
    parser.add_argument("--version", action="store_true", help="show the version and end")
    return parser


def _without_verb(parser: Parser, words: Sequence[str]) -> int:
    args = parser.parse_args(words)  # ends the program for --help and for unknown options
    if args.version:
        from importlib.metadata import version

        print(f"{PROGRAM} {version('reliable-worker')}")
        return 0
    fail(2, f"a verb is missing, one of {', '.join(VERBS)}; see {PROGRAM} --help")


def _hint(verb: str) -> str:
    import difflib

    near = difflib.get_close_matches(verb, VERBS, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _show(word: str) -> str:
    word = _typed(word)
    return ascii(word if len(word) <= 40 else word[:37] + "...")
