"""A scripted world (athanor/backends/fake) behind an address of this machine, for platforms in processes of their own.

The other side of athanor/backends/fake/remote.py.
"""

import json
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from athanor.backends.base import BackendRejected, BackendUnavailable, Submission
from athanor.backends.fake.backend import World


class ServedWorld:
    """`world` may be scripted while it is served."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    with outer._lock:
                        status, answer = 200, json.dumps(outer._perform(self.path.strip("/"), body))
                except BackendRejected as error:
                    status, answer = 409, str(error)
                except BackendUnavailable as error:
                    status, answer = 503, str(error)
                content = answer.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """A listing every other second is no news."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _perform(self, act: str, body: dict[str, Any]) -> Any:
        world = self.world
        if act == "submit":
            world.submit(Submission(body["name"], "", body["environment"], {}, body["asked"]))
        elif act == "observe":
            return {name: asdict(answer) for name, answer in world.observe(body["names"]).items()}
        elif act == "cancel":
            world.cancel(body["name"], force=body["force"])
        elif act == "list":
            return {"names": sorted(world.list_ours())}
        elif act == "logs":
            return asdict(world.logs(body["name"], body["cursor"]))
        elif act == "probe":
            return asdict(world.check_health())
        elif act == "nodes":
            return {"nodes": [asdict(facts) for facts in world.list_nodes()]}
        elif act == "drain":
            world.set_drained(body["node"], body["reason"], drained=body["drained"])
        return {}
