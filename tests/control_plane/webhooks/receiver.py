"""A real HTTP receiver, which answers as configured and stores what it received."""

import hashlib
import hmac
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


@dataclass
class Received:
    headers: dict[str, str]
    body: str
    at: float = field(default_factory=time.time)

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Verify a delivery as receivers do: by the Standard Webhooks library, and as our documentation describes."""
        try:
            Webhook(secret).verify(self.body, self.headers)
        except WebhookVerificationError:
            return False
        parts = [part.partition("=") for part in self.headers["Athanor-Signature"].split(",")]
        timestamp = next(value for name, _, value in parts if name == "t")
        expected = hmac.new(secret.encode(), f"{timestamp}.{self.body}".encode(), hashlib.sha256).hexdigest()
        return abs(self.at - int(timestamp)) < 300 and expected in [value for name, _, value in parts if name == "v1"]


class Receiver:
    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: list[int] = []  # the next ones; 200 after them
        self.location = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.received.append(Received(dict(self.headers), body))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", "5")
                self.end_headers()
                self.wfile.write(b"th\x00at")

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
