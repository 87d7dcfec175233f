"""Stands between the backend and a real API server, and can fail as networks and servers do."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.credentials import load

PASSED_ON = ("content-type", "accept")
PASSED_BACK = ("content-type", "date", "warning")
NO_ANSWER_SECONDS = 20.0
SLOW_SECONDS = 0.3


class Proxy(ThreadingHTTPServer):
    """On loopback, without credentials of its own: it adds those of `config`."""

    daemon_threads = True

    def __init__(self, config: KubernetesConfig) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.credentials = load(config)
        self.http = httpx.Client(
            base_url=self.credentials.server, verify=self.credentials.context, auth=self.credentials.basic,
            timeout=httpx.Timeout(30, read=None), trust_env=False,
        )  # fmt: skip
        self.requests: Counter[str] = Counter()
        self.fault = ""
        self.is_over = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.is_over.set()
        self.shutdown()
        self.server_close()
        self.http.close()

    def kubeconfig(self, folder: Path) -> Path:
        file = folder / "kubeconfig-of-the-proxy"
        content = {
            "current-context": "p", "users": [{"name": "p", "user": {}}],
            "clusters": [{"name": "p", "cluster": {"server": f"http://127.0.0.1:{self.server_address[1]}"}}],
            "contexts": [{"name": "p", "context": {"cluster": "p", "user": "p"}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(content))
        return file

    @contextmanager
    def faulty(self, fault: str) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault
        self.server.requests[self.command] += 1
        if fault == "timeout":
            self.server.is_over.wait(NO_ANSWER_SECONDS)
            self.close_connection = True
            return
        if fault == "error":
            self._send(500, {"content-type": "application/json"}, b'{"kind": "Status", "message": "planted"}')
            return
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        if token := self.server.credentials.token():
            headers["Authorization"] = f"Bearer {token}"
        headers["Accept-Encoding"] = "identity"
        with self.server.http.stream(self.command, self.path, content=body or None, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
            if "watch=true" in self.path and answer.is_success:
                self._follow(kept, answer)
            else:
                content = answer.read()
                if fault == "lost_answer":
                    self.close_connection = True
                    return
                self._send(answer.status_code, kept, content)

    do_POST = do_PATCH = do_DELETE = do_GET

    def _send(self, code: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _follow(self, headers: dict[str, str], answer: httpx.Response) -> None:
        self.send_response_only(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in answer.iter_raw():
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
