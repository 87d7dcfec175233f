"""A server that answers as a provider of prices, carbon data or a machine's metadata does, once it is told what."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Provider:
    """`headers`: what it refuses to answer without."""

    def __init__(self, body: bytes = b"", *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.status, self.body, outer = status, body, self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = all(self.headers[name] == value for name, value in headers)
                self.send_response(outer.status if known else 403)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> "Provider":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v3/history?zone=DE"
