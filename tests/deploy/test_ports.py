"""The web's socket, which is handed to uvicorn listening."""

import socket

from deploy.local import ports


def test_answers_on_connections_it_accepts_are_sent_at_once() -> None:
    listening = ports.hold(0)
    assert listening is not None
    with listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
