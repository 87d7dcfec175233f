"""The web server: its listening socket, from which several processes accept, and its stop."""

import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from athanor.config import server
from athanor.config.server import MAX_STEP_BACK_SECONDS, STEP_BACK_SECONDS, SharedSocket
from deploy.local.handle import wait_until


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


@pytest.fixture
def shared(listening: socket.socket) -> Iterator[SharedSocket]:
    with SharedSocket(listening.dup().detach()) as found:
        yield found


def test_a_process_with_connections_lets_another_accept_first(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket, shared: SharedSocket
) -> None:
    steps_back = []

    def other_accepts(seconds: float) -> None:
        steps_back.append(seconds)
        listening.accept()[0].close()

    monkeypatch.setattr(server.time, "sleep", other_accepts)
    shared.connections = range(8)
    with socket.create_connection(listening.getsockname()), pytest.raises(BlockingIOError):
        shared.accept()
    shared.connections = range(1000)
    with socket.create_connection(listening.getsockname()), pytest.raises(BlockingIOError):
        shared.accept()
    assert steps_back == [8 * STEP_BACK_SECONDS, MAX_STEP_BACK_SECONDS]


def test_the_event_loop_gets_one_connection_each_time_it_asks(listening: socket.socket, shared: SharedSocket) -> None:
    address = listening.getsockname()
    with socket.create_connection(address), socket.create_connection(address):
        for _ in range(2):
            shared.accept()[0].close()
            with pytest.raises(BlockingIOError):  # asyncio asks until nothing is left
                shared.accept()
    with pytest.raises(BlockingIOError):
        shared.accept()


def test_a_signal_to_stop_does_not_wait_for_the_next_tick(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket
) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks")

    monkeypatch.setattr(server, "TICK_SECONDS", 3600.0)
    serving = server.Server(uvicorn.Config(application, lifespan="off", log_config=None))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_until(lambda: serving.started, "the server serves")
    serving.handle_exit(signal.SIGTERM, None)
    thread.join(60)
    assert not thread.is_alive()
