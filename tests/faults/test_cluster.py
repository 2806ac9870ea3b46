"""The breakable server breaks as told, keeps its port and loses nothing."""

import threading

import psycopg
import pytest

from tests.faults.cluster import BreakableServer

# A silent server is shown by nothing having come for this long.
SILENCE_SECONDS = 0.4


def test_a_crash_and_a_stop_keep_port_and_data(own_server: BreakableServer, own_dsn: str) -> None:
    for number, end in enumerate((own_server.crash, own_server.stop)):
        with psycopg.connect(own_dsn) as conn:
            conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES (%s, '{}')", (number,))
        end()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(own_dsn)
        own_server.start()
        with psycopg.connect(own_dsn) as conn:
            assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (number + 1,)


def test_a_frozen_postmaster_takes_no_connection_and_keeps_its_sessions(
    own_server: BreakableServer, own_dsn: str
) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as conn:
        own_server.freeze_postmaster()
        conn.execute("SELECT 1")
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(own_dsn, connect_timeout=2)
        own_server.thaw()
        psycopg.connect(own_dsn).close()


def test_one_backend_freezes_alone(own_server: BreakableServer, own_dsn: str) -> None:
    with (
        psycopg.connect(own_dsn, autocommit=True) as frozen,
        psycopg.connect(own_dsn, autocommit=True) as awake,
    ):
        own_server.freeze(frozen.info.backend_pid)
        awake.execute("SELECT 1")
        answer = threading.Thread(target=frozen.execute, args=("SELECT 1",), daemon=True)
        answer.start()
        answer.join(SILENCE_SECONDS)
        assert answer.is_alive()
        own_server.thaw()
        answer.join(10)
        assert not answer.is_alive()
