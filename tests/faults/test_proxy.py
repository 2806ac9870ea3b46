"""The proxy does to a session exactly what it was told, and nothing to its neighbours."""

import contextlib
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.faults.link import Mode, Then
from tests.faults.proxy import Proxy
from tests.faults.wire import is_commit
from tests.fixtures.waiting import wait_until

# A silent server is shown by nothing having come for this long.
SILENCE_SECONDS = 0.4


@pytest.fixture
def truth(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection past the proxy, with a table `t` to look at."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (n int)")
        yield conn


def connect(proxy: Proxy, dsn: str, app: str = "one", **options: object) -> psycopg.Connection:
    return psycopg.connect(proxy.dsn(dsn), application_name=app, **options)  # type: ignore[arg-type]


def rows(truth: psycopg.Connection) -> list[int]:
    return [n for (n,) in truth.execute("SELECT n FROM t ORDER BY n")]


def test_traffic_passes_simple_extended_pipelined_and_copied(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    with connect(proxy, dsn) as conn:
        conn.execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
        for n in range(3, 13):  # prepared from the sixth on
            conn.execute("INSERT INTO t VALUES (%s)", (n,))
        with conn.pipeline():
            for n in range(13, 23):
                conn.execute("INSERT INTO t VALUES (%s)", (n,))
        with conn.cursor().copy("COPY t FROM STDIN") as copy:
            for n in range(23, 1000):
                copy.write_row((n,))
        conn.commit()
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1/0")
        conn.rollback()
        assert proxy.apps() == ["one"]
    assert rows(truth) == list(range(1, 1000))


def insert_and_commit(conn: psycopg.Connection, pipelined: bool) -> None:
    with conn.pipeline() if pipelined else contextlib.nullcontext():
        conn.execute("INSERT INTO t VALUES (2)")
        conn.commit()


@pytest.mark.parametrize("pipelined", [False, True])
def test_the_reply_of_commit_is_lost_and_the_commit_is_not(
    proxy: Proxy, dsn: str, truth: psycopg.Connection, pipelined: bool
) -> None:
    trap = proxy.drop_reply(is_commit, app="victim")
    with connect(proxy, dsn, "neighbour") as neighbour:
        neighbour.execute("INSERT INTO t VALUES (1)")
        neighbour.commit()
    conn = connect(proxy, dsn, "victim")
    with pytest.raises(psycopg.OperationalError) as lost:
        insert_and_commit(conn, pipelined)
    trap.wait(5)
    assert lost.value.sqlstate is None
    assert trap.outcome == "COMMIT"
    assert rows(truth) == [1, 2]
    with connect(proxy, dsn, "victim") as again:
        again.execute("SELECT 1")  # the trap is spent
        again.commit()


def test_a_lost_request_never_reaches_the_server(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    trap = proxy.drop_request(is_commit, then=Then.RESET)
    conn = connect(proxy, dsn)
    conn.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.OperationalError):
        conn.commit()
    trap.wait(5)
    assert rows(truth) == []


def test_a_held_commit_arrives_after_its_client_has_gone(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    trap = proxy.hold_request(is_commit)
    conn = connect(proxy, dsn)
    conn.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.OperationalError):
        conn.commit()
    trap.wait(5)
    assert rows(truth) == []  # the plain read lies: the transaction is still open
    proxy.let_go(trap)
    wait_until(lambda: rows(truth) == [1], 5, "the held commit")


def test_the_reply_of_one_statement_in_autocommit_by_its_text(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    trap = proxy.drop_reply("/* this */", app="v*", skip=1)
    conn = connect(proxy, dsn, "victim", autocommit=True)
    conn.execute("INSERT INTO t VALUES (%s) /* this */", (1,))
    with pytest.raises(psycopg.OperationalError):
        conn.execute("INSERT INTO t VALUES (%s) /* this */", (2,))
    trap.wait(5)
    assert trap.outcome == "INSERT 0 1"
    assert rows(truth) == [1, 2]


def silent(proxy: Proxy, conn: psycopg.Connection, query: str) -> threading.Thread:
    """Send `query` in a thread and see that no answer comes; the thread, still waiting."""

    def run() -> None:
        try:
            conn.execute(query)
        except psycopg.OperationalError:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SILENCE_SECONDS)
    assert thread.is_alive()
    return thread


def test_a_silent_trap_leaves_the_client_waiting(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    trap = proxy.drop_reply("INSERT", then=Then.SILENT)
    conn = connect(proxy, dsn, autocommit=True)
    thread = silent(proxy, conn, "INSERT INTO t VALUES (1)")
    trap.wait(5)
    assert rows(truth) == [1]
    proxy.reset()
    thread.join(5)
    assert not thread.is_alive()


def test_a_stall_delivers_when_healed_and_spares_other_lanes(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    proxy.set_mode(Mode.STALL, app="*:work")
    with connect(proxy, dsn, "rw:1:control", autocommit=True) as other:
        other.execute("INSERT INTO t VALUES (1)")
    proxy.heal()
    conn = connect(proxy, dsn, "rw:1:work", autocommit=True)
    proxy.set_mode(Mode.STALL, app="*:work")
    thread = silent(proxy, conn, "INSERT INTO t VALUES (2)")
    assert rows(truth) == [1]
    proxy.heal()
    thread.join(5)
    assert rows(truth) == [1, 2]
    conn.close()


def test_half_open_is_for_ever(proxy: Proxy, dsn: str, truth: psycopg.Connection) -> None:
    conn = connect(proxy, dsn, autocommit=True)
    proxy.set_mode(Mode.HALF_OPEN)
    thread = silent(proxy, conn, "INSERT INTO t VALUES (1)")
    proxy.heal()
    thread.join(SILENCE_SECONDS)
    assert thread.is_alive()
    proxy.reset()
    thread.join(5)
    assert rows(truth) == []


def test_one_byte_writes_and_delays_change_nothing_but_time(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    proxy.set_mode(Mode.ONE_BYTE, app="bytes")
    proxy.set_mode(Mode.DELAY, app="slow", seconds=0.05)
    with connect(proxy, dsn, "bytes") as conn:
        conn.execute("INSERT INTO t VALUES (%s)", (1,))
        assert conn.execute("SELECT repeat('x', 9000)").fetchone() == ("x" * 9000,)
    before = time.monotonic()
    with connect(proxy, dsn, "slow") as conn:
        conn.execute("INSERT INTO t VALUES (%s)", (2,))
    assert time.monotonic() - before > 0.2  # each way of the insert and of the commit
    assert rows(truth) == [1, 2]


def test_reset_and_refuse(proxy: Proxy, dsn: str, truth: psycopg.Connection) -> None:
    conn = connect(proxy, dsn, "a")
    with connect(proxy, dsn, "b") as spared:
        assert proxy.reset(app="a") == 1
        spared.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        conn.execute("SELECT 1")
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connect(proxy, dsn)
    proxy.heal()
    connect(proxy, dsn).close()


def test_a_default_client_that_asks_for_encryption_is_led_to_plain_text(
    proxy: Proxy, dsn: str, truth: psycopg.Connection
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    parts.update(host="127.0.0.1", port=proxy.port, application_name="x", sslmode="prefer")
    with psycopg.connect(**parts) as conn:  # type: ignore[arg-type]
        conn.execute("SELECT 1")
        assert proxy.apps() == ["x"]
