"""An HTTP server with responses from a table, and the command line as a program that talks to it."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forked_program import ForkedProgram


@dataclass
class Answer:
    """A response. `status` 0: the connection is closed without one."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


ID_LOOKUP = re.compile(r"q=(job_[0-9a-z]{1,9})&fields=")


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """A server with a list of responses for each `METHOD /path`; the last one is repeated.

    It finds each job by an id such as `job_1`, which is no complete one; these requests are not in `seen`.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.seen: list[Seen] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, _, query = self.path.partition("?")
                if sought := ID_LOOKUP.match(query):
                    self._reply(Answer({"items": [{"id": sought[1], "name": "x"}], "next_cursor": None}))
                    return
                outer.seen.append(Seen(self.command, self.path, dict(self.headers), body))
                answers = outer.answers.get(f"{self.command} {path}", [Answer({"code": "not_found"}, 404)])
                self._reply(answers.pop(0) if len(answers) > 1 else answers[0])

            def _reply(self, answer: Answer) -> None:
                if not answer.status:  # the connection breaks before the answer
                    self.close_connection = True
                    return
                raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(raw)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, request: str, *answers: Answer) -> None:
        self.answers[request] = list(answers)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    running = ScriptedServer()
    yield running
    running.close()


@pytest.fixture(scope="session")
def forked_program() -> Iterator[ForkedProgram]:
    running = ForkedProgram()
    yield running
    running.close()


class Program:
    """Run `athanor` as a process of its own with a separate home directory."""

    def __init__(self, home: Path, url: str, forked_program: ForkedProgram) -> None:
        self.home = home
        self._forked_program = forked_program
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ATHANOR_")},
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "ATHANOR_URL": url,
            "ATHANOR_TOKEN": "ath_test",
            "TZ": "UTC",
        }

    def __call__(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return self._forked_program.run(arguments, self.environment, self.home, given)


@pytest.fixture
def athanor(server: ScriptedServer, tmp_path: Path, forked_program: ForkedProgram) -> Program:
    return Program(tmp_path, server.url, forked_program)


@pytest.fixture
def answer() -> type[Answer]:
    """One row of the server's table."""
    return Answer
