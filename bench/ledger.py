"""`python -m bench.ledger`: transfers per second over HTTP, as a ratio to pgbench calling the
function.

On many accounts and on two: the ledger's own cost shows in the first, the wait for locks in the
second. The runs take turns, so that a busy machine slows both; the medians make the ratio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from bench.fleet import ROOT
from reliable_worker.dev.embedded import Cluster

SCHEMAS = (ROOT / "schema.sql", ROOT / "reliable_worker" / "ledger" / "schema.sql")
SERVE = "from reliable_worker.cli.ledger import main; raise SystemExit(main())"
SECONDS = 60.0

# a: the sender; b: another account
SCRIPT = """\\set a random(1, {accounts})
\\set d random(1, {accounts} - 1)
\\set b 1 + (:a - 1 + :d) % {accounts}
\\set k random(1, 9000000000000000)
SELECT * FROM ledger_transfer('bench-' || :k, :a, :b, 1, {outbox}, 500)
"""


@contextmanager
def database(cluster: Cluster, accounts: int) -> Iterator[str]:
    """A fresh database with both schemas and rich accounts."""
    place = sql.Identifier("ledger")
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(place))
        conn.execute(sql.SQL("CREATE DATABASE {}").format(place))
    with psycopg.connect(cluster.dsn("ledger"), autocommit=True) as conn:
        for schema in SCHEMAS:
            conn.execute(schema.read_bytes())
        conn.execute(
            "INSERT INTO accounts (id, balance)"
            " SELECT n, 1000000000000 FROM generate_series(1, %s) AS n",
            (accounts,),
        )
    yield cluster.dsn("ledger")


def by_pgbench(cluster: Cluster, accounts: int, args: argparse.Namespace, folder: Path) -> float:
    """Transfers per second of pgbench, one statement each, as the service sends it."""
    path = folder / "transfer.pgbench"
    path.write_text(SCRIPT.format(accounts=accounts, outbox="true" if args.outbox else "false"))
    with database(cluster, accounts) as dsn:
        words = ["--no-vacuum", "--protocol=prepared", f"--client={args.clients}", "--jobs=1"]
        done = subprocess.run(
            [str(cluster.bin / "pgbench"), *words, f"--time={args.seconds}", f"--file={path}", dsn],
            check=True,
            capture_output=True,
            text=True,
            timeout=args.seconds + SECONDS,
        )
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def by_http(cluster: Cluster, accounts: int, args: argparse.Namespace, folder: Path) -> float:
    """Transfers per second of the service, each answered with 200."""
    with database(cluster, accounts) as dsn:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LEDGER_")}
        environment |= {
            "LEDGER_DATABASE_URL": dsn,
            "LEDGER_ADDRESS": "127.0.0.1:0",
            "LEDGER_OUTBOX": "on" if args.outbox else "off",
        }
        with subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as service:
            assert service.stdout is not None
            address = json.loads(service.stdout.readline())["address"]
            drain = multiprocessing.Process(target=_read, args=(service.stdout.fileno(),))
            drain.start()
            moved = crowd(address, accounts, args)
            service.terminate()
            service.wait(SECONDS)
            drain.terminate()
    return moved / float(args.seconds)


def crowd(address: str, accounts: int, args: argparse.Namespace) -> int:
    """How many transfers `clients` clients get answered."""
    with multiprocessing.Pool(args.clients) as pool:
        work = [(address, accounts, number, args.seconds) for number in range(args.clients)]
        moved: list[int] = pool.starmap_async(_client, work).get(args.seconds + SECONDS)
    return sum(moved)


def _client(address: str, accounts: int, number: int, seconds: float) -> int:
    """One client as cheap as can be: the machine's cores are shared with the service."""
    host, _, port = address.rpartition(":")
    moved = 0
    with socket.create_connection((host, int(port)), timeout=SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            chosen = int.from_bytes(os.urandom(8))
            sender = chosen % accounts
            receiver = (sender + 1 + chosen // accounts % (accounts - 1)) % accounts
            body = b'{"from_id":%d,"to_id":%d,"amount":1}' % (sender + 1, receiver + 1)
            sock.sendall(
                b"POST /transfers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Idempotency-Key: bench-%d-%d-%d\r\nContent-Length: %d\r\n\r\n%b"
                % (number, moved, chosen, len(body), body)
            )
            answer = sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            moved += 1
    return moved


def _read(descriptor: int) -> None:
    """Somebody reads the log, as journald does."""
    while os.read(descriptor, 65536):
        continue


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--outbox", action="store_true", help="a job with every transfer")
    parser.add_argument("--place", default="/var/tmp", help="directory for the server's data")
    parser.add_argument(
        "--durable", action=argparse.BooleanOptionalAction, default=True, help="flush commits"
    )
    args = parser.parse_args()
    ways: dict[str, Callable[..., float]] = {"pgbench": by_pgbench, "http": by_http}
    # As a real server keeps its promises: on a disk, with every commit flushed.
    with tempfile.TemporaryDirectory(dir=args.place) as place:
        with Cluster(Path(place) / "data", durable=args.durable) as cluster:
            for accounts in (1_000, 2):
                found: dict[str, list[float]] = {name: [] for name in ways}
                for _ in range(args.rounds):
                    for name, measure in ways.items():
                        found[name].append(measure(cluster, accounts, args, Path(place)))
                middle = {name: statistics.median(rates) for name, rates in found.items()}
                print(
                    f"{accounts:>5} accounts: pgbench {middle['pgbench']:>6.0f}/s,"
                    f" http {middle['http']:>6.0f}/s,"
                    f" ratio {middle['http'] / middle['pgbench']:.2f}   {found}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
