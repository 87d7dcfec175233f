"""Where an agent learns that its machine is taken back: a file, or an address that answers."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainer.agent.notice import MOST, interruption_notice


class Metadata:
    """Answers as a provider's metadata does, to who asks with Google's header."""

    def __init__(self) -> None:
        self.status, self.body, outer = 404, b"", self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers["Metadata-Flavor"] == "Google"
                self.send_response(outer.status if known else 403)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/instance/preempted"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    made = Metadata()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    assert interruption_notice("") == interruption_notice(str(path)) == ""
    path.write_text("")
    assert interruption_notice(str(path)) == "the notice appeared"
    path.write_text("terminate at 12:00\n")
    assert interruption_notice(str(path)) == "terminate at 12:00"
    path.write_text("FALSE\n")
    assert interruption_notice(str(path)) == ""
    path.write_text("x" * 10_000)
    assert len(interruption_notice(str(path))) == MOST


@pytest.mark.parametrize(
    ("status", "body", "notice"),
    [(404, b"", ""), (200, b"FALSE", ""), (200, b"NONE", ""), (200, b"TRUE", "TRUE"), (500, b"broken", "")],
)
def test_an_address_that_answers_is_a_notice(metadata: Metadata, status: int, body: bytes, notice: str) -> None:
    metadata.status, metadata.body = status, body
    assert interruption_notice(metadata.url) == notice


def test_an_address_where_nobody_is_is_none() -> None:
    assert interruption_notice("http://127.0.0.1:9/preempted") == ""
