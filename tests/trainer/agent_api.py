"""A small real server of the agent API and of presigned objects, on a free loopback port, for the agent's tests."""

import json
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainer.contract.node_rendezvous import JoinReply, JoinRequest, arrange, choose_num_nodes, count_missing
from trainer.contract.run import DataKeys, RunConfig

TOKEN = "attempt-token"


@dataclass
class AgentApi:
    """What the platform would keep, in memory. The switches make it fail in the ways a platform fails."""

    run: RunConfig
    keys: DataKeys
    objects: dict[str, bytes] = field(default_factory=dict)
    not_found: bytes = b"<Error><Code>NoSuchKey</Code></Error>"
    """What the store answers for an object that it has not."""
    received: dict[tuple[str, str], list[dict]] = field(default_factory=dict)
    doubled: int = 0
    checkpoints: list[dict] = field(default_factory=list)
    damaged: list[dict] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    """The nodes that have left for good, and the round that each has begun by that."""
    models: list[dict] = field(default_factory=list)
    datasets: list[dict] = field(default_factory=list)
    released: list[dict] = field(default_factory=list)
    profiles: list[dict] = field(default_factory=list)
    evaluations: list[dict] = field(default_factory=list)
    replays: list[dict] = field(default_factory=list)
    ends: list[dict] = field(default_factory=list)
    heartbeats: list[dict] = field(default_factory=list)
    joins: dict[int, JoinRequest] = field(default_factory=dict)
    placed: dict[int, list[JoinRequest]] = field(default_factory=dict)
    resumed: dict[int, Any] = field(default_factory=dict)
    spares: dict[int, int] = field(default_factory=dict)
    enough_at: dict[int, float] = field(default_factory=dict)
    """When each round had as many nodes as `min_nodes` of the run, by the monotonic clock."""
    grows_from: dict[int, int] = field(default_factory=dict)
    """The rounds that a node has begun by its return to a run on fewer nodes, and how many those were."""
    checkpoints_read: int = 0
    stop: str | None = None
    profile: dict | None = None
    api_away: bool = False
    store_away: bool = False
    store_full: bool = False
    refusals: dict[str, int] = field(default_factory=dict)
    """How many of the next requests fail as if it was away: of the "store", and of the "api"."""
    over: bool = False
    host: str = "127.0.0.1"
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> "AgentApi":
        self._server = _Server((self.host, 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://{self.host}:{self._server.server_address[1]}/agent"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, condition: Any, seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, seconds), "the awaited report did not come"

    def records(self, kind: str, field_name: str) -> list[dict]:
        """All records of a kind in the order of delivery."""
        with self.changed:
            return [
                record for (of, _), batches in self.received.items() if of == kind for batch in batches
                for record in batch[field_name]
            ]  # fmt: skip

    def refuses(self, service: str) -> bool:
        """Whether a request to this service fails, as one of those in `refusals`."""
        with self.changed:
            left = self.refusals.get(service, 0)
            self.refusals[service] = max(0, left - 1)
            return left > 0

    def points(self) -> list[dict]:
        return self.records("metrics", "points")

    def events(self, kind: str) -> list[dict]:
        return [event["data"] for event in self.records("progress", "events") if event["type"] == kind]

    def losses(self) -> dict[int, float]:
        return {p["step"]: p["values"]["train/loss"] for p in self.points() if "train/loss" in p["values"]}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/run":
            if self.damaged and self.run.resume is None:
                return 409, {"code": "no_intact_checkpoint", "detail": "no checkpoint can be read"}
            return 200, self.run.model_dump(mode="json")
        if path == "/keys":
            return 200, self.keys.model_dump(mode="json")
        content = json.loads(body)
        if path == "/heartbeat":
            self.heartbeats.append(content)
            return 200, {"stop": self.stop, "profile": self.profile, **self._newest_round()}
        if path == "/rendezvous":
            return 200, self._place(JoinRequest.model_validate(content)).model_dump(mode="json")
        if path in ("/metrics", "/logs", "/progress", "/system"):
            return self._take_batch(path[1:], content)
        if path == "/storage:presign":
            expires = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
            base = self.url.removesuffix("/agent")
            urls = [{"key": key, "url": f"{base}/objects/{key}", "expires_at": expires} for key in content["keys"]]
            return 200, {"urls": urls}
        if path == "/checkpoints:read":
            self.checkpoints_read += 1
            return 200, next(known for known in self.checkpoints if _is_same(known, content))
        if path == "/checkpoints:damaged":
            self.damaged.append(content)
            intact = [known for known in self.checkpoints if not any(_is_same(known, each) for each in self.damaged)]
            resume = intact[-1] if intact else None
            self.run = RunConfig.model_validate({**self.run.model_dump(), "resume": resume})
            return 200, {}
        if path == "/preparations:claim":
            return 200, self._claim(content)
        if path == "/preparations:release":
            self.released.append(content)
            return 200, {}
        if path == "/preparations:register":
            return self._register("/datasets", content["manifest"])
        if path == "/evaluations":
            self.evaluations.append(content)
            return 201, {}
        if path == "/replays":
            self.replays.append(content)
            return 201, {}
        if path == "/end":
            self.ends.append(content)
            return 201, {}
        return self._register(path, content)

    def _claim(self, asked: dict) -> dict:
        """As the platform does for a single attempt."""
        prepared = [manifest for manifest in self.datasets if manifest["recipe"] == asked["recipe"]]
        if prepared:
            return {"state": "prepared", "prepared": prepared[-1]}
        return {"state": "prepare", "token": asked["token"] or str(uuid.uuid4())}

    def _newest_round(self) -> dict[str, Any]:
        """The newest round that a node has requested, from which the others learn that theirs is over."""
        requested = [known.round for known in self.joins.values()]
        newest = max([*self.placed, *requested, *self.left.values()], default=0)
        return {"round": newest, "grows": newest in self.grows_from}

    def _place(self, join: JoinRequest) -> JoinReply:
        """As the platform does, for nodes that come from one address each."""
        if self.ends:
            return JoinReply(state="over", round=join.round)
        rounds = [*(known.round for known in self.joins.values()), *self.left.values()]
        if join.leaves:
            if join.node_index not in self.left and len(self.left) == self.run.spare_nodes:
                return JoinReply(state="over", round=join.round)
            self.left.setdefault(join.node_index, max([join.round, *rounds]))
            return JoinReply(state="spare", round=max([*rounds, *self.left.values()]))
        round_ = max([join.round, *rounds])
        before = self.joins.get(join.node_index)
        if (before is None or before.round < round_) and 0 < len(self.placed.get(round_, [])) < self.run.layout.nodes:
            self.grows_from[round_ + 1] = len(self.placed[round_])
            round_ += 1
        self.joins[join.node_index] = join.model_copy(update={"round": round_})
        here = [known for known in self.joins.values() if known.round == round_]
        if round_ not in self.placed and self.run.min_nodes is not None:
            missing = self._missing_of_shrinkable(round_, len(here))
            if missing:
                return JoinReply(state="gathering", round=round_, missing=missing)
            num_nodes = choose_num_nodes(len(here), self.run.layout.nodes, self.run.min_nodes, lambda count: True)
            self._close(round_, here, num_nodes)
        if round_ not in self.placed:
            total = self.run.layout.nodes + (self.run.spare_nodes if round_ == 1 else 0)
            if len(here) < total:
                return JoinReply(state="gathering", round=round_, missing=total - len(here))
            self._close(round_, here, self.run.layout.nodes)
        nodes = self.placed[round_]
        ranks = [node.node_index for node in nodes]
        if join.node_index not in ranks:
            return JoinReply(state="spare", round=round_)
        rank = ranks.index(join.node_index)
        resumed = self.resumed[round_]
        return JoinReply(
            state="placed", round=round_, node_rank=rank, store_host=nodes[0].address, store_port=nodes[0].store_port,
            nodes=nodes if rank == 0 else [], resume_from=resumed.id if resumed else None,
            spares=self.spares[round_], num_nodes=len(nodes),
            grows_from=self.grows_from.get(round_, 0),
        )  # fmt: skip

    def _missing_of_shrinkable(self, round_: int, joined: int) -> int:
        """As the platform does, in a round of a run that may shrink."""
        layout, fewest = self.run.layout, self.run.min_nodes or self.run.layout.nodes
        if joined in (fewest, layout.nodes):
            self.enough_at.setdefault(round_, time.monotonic())
        since = self.enough_at.get(round_)
        waited = None if since is None else timedelta(seconds=time.monotonic() - since)
        expected = layout.nodes + self.run.spare_nodes - len(self.left)
        return count_missing(round_, joined, expected, layout.nodes, fewest, waited)

    def _close(self, round_: int, here: list[JoinRequest], num_nodes: int) -> None:
        self.placed[round_] = arrange(here, num_nodes)
        self.spares[round_] = len(here) - num_nodes
        self.resumed[round_] = self.run.resume

    def _take_batch(self, kind: str, batch: dict) -> tuple[int, Any]:
        batches = self.received.setdefault((kind, batch["writer"]), [])
        if batch["sequence"] > len(batches):
            return 409, {"code": "sequence_gap", "next_sequence": len(batches)}
        if batch["sequence"] < len(batches):
            self.doubled += 1
        else:
            batches.append(batch)
        return 200, {"next_sequence": len(batches)}

    def _register(self, path: str, manifest: dict) -> tuple[int, Any]:
        for file in manifest["files"]:
            for part in file["parts"]:
                if len(self.objects.get(part["key"], b"")) != part["size"]:
                    return 422, {"code": "part_missing", "detail": part["key"]}
        if path == "/checkpoints":
            self.checkpoints.append(manifest)
            self.run = RunConfig.model_validate({**self.run.model_dump(), "resume": manifest})
        elif path == "/artifacts":
            self.models.append(manifest)
        elif path == "/profiles":
            self.profiles.append(manifest)
            self.profile = None
        else:
            self.datasets.append(manifest)
            sources = [source.model_dump() for source in self.run.datasets]
            for source in sources:
                if manifest["dataset_id"] == source["dataset_id"]:
                    source["prepared"] = manifest
            changed = {"dataset": sources[0], "more_datasets": sources[1:]}
            self.run = RunConfig.model_validate({**self.run.model_dump(), **changed})
        return 201, {}


def _is_same(one: dict, other: dict) -> bool:
    """Whether both name the same checkpoint."""
    return all(one[name] == other[name] for name in ("attempt_id", "generation", "step"))


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Clients that are killed on purpose hang up in the middle; that is no news either."""


def _handler(api: AgentApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.startswith("/objects/"):
                self._object(self.path.removeprefix("/objects/"), body)
            elif api.api_away or api.refuses("api"):
                self.close_connection = True  # hangs up without an answer
            elif api.over or self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._send(410 if api.over else 401, b"{}")
            else:
                with api.changed:
                    status, content = api.answer(self.command, self.path.removeprefix("/agent"), body)
                    api.changed.notify_all()
                self._send(status, json.dumps(content).encode())

        do_GET = do_POST = do_PUT = _serve

        def _object(self, key: str, body: bytes) -> None:
            if api.store_away or api.refuses("store"):
                self._send(503, b"store is away")
            elif self.command == "PUT" and api.store_full:
                self._send(507, b"store is full")
            elif self.command == "PUT":
                with api.changed:
                    api.objects[key] = body
                    api.changed.notify_all()
                self._send(200, b"")
            elif key in api.objects:
                self._send(200, api.objects[key])
            else:
                self._send(404, api.not_found)

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Requests are no news in a test's output."""

    return Handler
