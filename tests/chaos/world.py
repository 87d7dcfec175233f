"""The world behind the fake backend, in this process: no kill of the platform's processes touches it.

The other side of athanor/backends/fake/remote.py. What it answers is spoilt as the script says; what it does never
is: a name starts one agent, whoever asks how often, unless a test plants that very fault.
"""

import json
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.chaos import script
from tests.chaos.agent import Agent
from tests.chaos.ledger import Ledger, Life
from tests.chaos.script import Fault, JobScript

CALLER_GIVES_UP_SECONDS = 5.0


@dataclass(frozen=True)
class Plants:
    """Faults that a world must not have, to see whether the checker says so."""

    starts_twice: bool = False
    says_finished_too_early: bool = False


@dataclass
class Entry:
    """A submitted attempt as the backend knows it. `forgotten`: it no longer does, but never starts it again."""

    agent: Agent
    exit_status: int | None = None
    forgotten: bool = False


class World:
    """`seed` None: no call goes wrong."""

    def __init__(
        self,
        ledger: Ledger,
        scripts: dict[int, JobScript],
        *,
        seed: int | None,
        tick_seconds: float,
        plants: Plants = Plants(),
    ) -> None:
        self.ledger, self.scripts, self.tick_seconds = ledger, scripts, tick_seconds
        self.closing = threading.Event()
        self.injected: Counter[str] = Counter()
        self._seed, self._plants = seed, plants
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._calls: Counter[str] = Counter()
        self._last_listing: dict[str, Any] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="world", daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def calm_down(self) -> None:
        """From now on no call goes wrong."""
        self._seed = None

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def draw(self, act: str) -> tuple[Fault, float]:
        with self._lock:
            self._calls[act] += 1
            number = self._calls[act]
        if self._seed is None:
            return Fault.NONE, 0.0
        drawn, seconds = script.fault(self._seed, act, number)
        if drawn is not Fault.NONE:
            self.injected[drawn.value] += 1
        return drawn, seconds

    def perform(self, act: str, body: dict[str, Any], drawn: Fault) -> Any:
        if act == "observe":
            return self._observe(body["names"], drawn)
        if act == "list":
            with self._lock:
                return {"names": [name for name, entry in self._entries.items() if entry.exit_status is None]}
        if act == "logs":
            return {"text": "", "cursor": "0"}  # its agents write nothing
        for _ in range(2 if drawn is Fault.DOUBLED else 1):
            if act == "submit":
                self._submit(body["name"], body["environment"])
            else:
                self._cancel(body["name"], force=body["force"])
        return {}

    def agent_ended(self, life: Life, end: str, exit_status: int, *, forget: bool) -> None:
        """The last thing that an agent does. The backend may know of the end before the ledger's reader does."""
        with self._lock:
            entry = self._entries[life.name]
            entry.exit_status, entry.forgotten = exit_status, forget
        self.ledger.died(life, end)

    def _submit(self, name: str, environment: dict[str, str]) -> None:
        with self._lock:
            if name in self._entries:
                return
            agents = [
                Agent(self, self.ledger.born(name), environment) for _ in range(2 if self._plants.starts_twice else 1)
            ]
            self._entries[name] = Entry(agents[0])
        for agent in agents:
            agent.start()

    def _cancel(self, name: str, *, force: bool) -> None:
        with self._lock:
            entry = self._entries.get(name)
        if entry is not None:
            (entry.agent.killed if force else entry.agent.asked).set()

    def _observe(self, names: list[str], drawn: Fault) -> dict[str, Any]:
        absent = {"presence": "absent"}
        if drawn is Fault.EMPTY:
            return {name: absent for name in names}
        if drawn is Fault.DOUBLED:
            return {name: self._last_listing.get(name, absent) for name in names}
        with self._lock:
            listing = {name: self._look(name) for name in names}
            self._last_listing = listing
        return listing

    def _look(self, name: str) -> dict[str, Any]:
        entry = self._entries.get(name)
        if entry is None or entry.forgotten:
            return {"presence": "absent"}
        if self._plants.says_finished_too_early:
            return {"presence": "finished", "native_state": "exited", "exit_status": -9}
        if entry.exit_status is None:
            return {"presence": "present", "native_state": "running"}
        return {"presence": "finished", "native_state": "exited", "exit_status": entry.exit_status}


def _handler_of(world: World) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            act = self.path.strip("/")
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            drawn, seconds = world.draw(act)
            if drawn is Fault.AWAY:
                self.send_error(503)
                return
            if drawn is Fault.SLOW:
                world.closing.wait(seconds)
            elif drawn is Fault.TOO_SLOW:
                world.closing.wait(CALLER_GIVES_UP_SECONDS + seconds)
            answer = json.dumps(world.perform(act, body, drawn)).encode()
            if drawn in (Fault.LOST, Fault.TOO_SLOW):
                self.close_connection = True
                return
            with suppress(BrokenPipeError, ConnectionResetError):  # the caller was killed, or has given up
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """A listing every other second is no news."""

    return Handler
