"""Fixtures of the fault tests: a breakable server a module, a proxy and evidence a test."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from reliable_worker.dev.embedded import Cluster
from tests.faults import evidence
from tests.faults.cluster import BreakableServer, breakable
from tests.faults.proxy import Proxy
from tests.fixtures.postgres import ROOT


@pytest.fixture(scope="module")
def own_server(cluster_root: Path) -> Iterator[BreakableServer]:
    """A server of the module's own. Crashes are simulated by ending processes, which loses
    nothing that was written, so it needs no fsync either."""
    options = {"max_connections": "200", "log_min_messages": "fatal"}
    name = f"own-{uuid.uuid4().hex[:8]}"
    with breakable(Cluster(cluster_root / name, options=options, durable=False)) as server:
        yield server


@pytest.fixture
def own_dsn(own_server: BreakableServer) -> Iterator[str]:
    """A migrated database on the module's own server, whatever state the last test left it in."""
    own_server.thaw()
    own_server.start()
    name = f"rw_{uuid.uuid4().hex[:12]}"
    own_server.create(name)
    own_server.psql(name, "-f", str(ROOT / "schema.sql"))
    yield own_server.dsn(name)
    own_server.thaw()


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    """A proxy before the shared server; `proxy.url(dsn)` leads through it."""
    parts = conninfo_to_dict(dsn)
    with Proxy(str(parts["host"]), int(parts["port"] or 0)) as one:
        yield one


@pytest.fixture
def truth(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A connection past all faults, to a database with the evidence tables and trigger."""
    evidence.install(conn)
    return conn
