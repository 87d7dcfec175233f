"""Which addresses a node finds reachable: those that answer HTTP at all."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trainer.agent.reachability import check_addresses


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Refusing) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_a_service_that_refuses_is_reached_and_one_that_does_not_answer_is_not(server: str) -> None:
    addresses = {"platform": server, "object store": "http://127.0.0.1:1", "mirror": "https://name.invalid"}
    store, mirror = check_addresses(json.dumps(addresses))
    assert store.because.startswith("the object store at http://127.0.0.1:1 cannot be reached from the node: ")
    assert "name.invalid" in mirror.because
    assert {(each.severity, tuple(each.nodes)) for each in (store, mirror)} == {("broken", ())}


def test_without_addresses_nothing_is_tried() -> None:
    assert check_addresses("{}") == []


def test_what_does_not_speak_tls_is_named(server: str) -> None:
    (finding,) = check_addresses(json.dumps({"platform": server.replace("http:", "https:")}))
    assert "SSL" in finding.because
