"""The application the service's tests install: handlers that wait, grow and log."""

import logging
from pathlib import Path
from typing import Any

import reliable_worker as rw

app = rw.App()

# Past any MemoryMax of the tests, in pieces, so that the kernel sees it grow.
PIECE = 16 * 1024 * 1024
PIECES = 64

log = logging.getLogger("shop")


@app.handler("wait", timeout_seconds=60)
def wait(job: rw.Job[dict[str, Any]]) -> None:
    """Until the file is there that the payload names."""
    while not Path(job.payload["until"]).exists():
        job.sleep(0.1)


@app.handler("grow", timeout_seconds=60)
def grow(job: rw.Job[dict[str, Any]]) -> None:
    """Take memory until somebody objects."""
    pieces = []
    for _ in range(PIECES):
        pieces.append(b"x" * PIECE)
        job.sleep(0.01)


@app.handler("talk")
def talk(job: rw.Job[dict[str, Any]]) -> None:
    """Say something through the standard library."""
    log.warning("the shop is %s", "open")
