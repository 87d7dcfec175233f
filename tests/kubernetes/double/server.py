"""The API over HTTP: paths, verbs, faults. The objects and their rules are in `store` and `validation`."""

import base64
import json
import threading
import time
import uuid
from collections import Counter
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kubernetes.double import apply, selectors, validation
from tests.kubernetes.double.admission import warning_of
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.logs import SECOND
from tests.kubernetes.double.pods import delete_pod
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.store import KINDS, Change, Kind, Stored, not_found
from tests.kubernetes.double.times import seconds_of

if TYPE_CHECKING:
    from tests.kubernetes.double.cluster import Cluster

NO_ANSWER_SECONDS = 20.0
BOOKMARK_SECONDS = 0.5
ACCOUNT = "system:serviceaccount:athanor-system:athanor"  # by deploy/kubernetes/rbac.yaml
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cluster = cluster
        self.requests: Counter[str] = Counter()
        self.fault = ""
        self.slow_seconds = 0.3
        self.is_over = threading.Event()
        self.pages: dict[str, list[Stored]] = {}
        self.stale: dict[str, list[Stored]] = {}
        self.stale_version = 0
        self.owned: dict[str, dict[str, set[apply.Path]]] = {}
        self.cut_watches_before = 0.0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.server.cluster.store.seconds() if timestamp is None else timestamp, usegmt=True)

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        fault, warning = self.server.fault, ""
        self.server.requests[self.command] += 1
        try:
            if fault == "timeout":
                self.server.is_over.wait(NO_ANSWER_SECONDS)
                self.close_connection = True
                return
            if fault == "slow":
                time.sleep(self.server.slow_seconds)
            request = Request(self.server, self.command, parts.path, query, body, dict(self.headers))
            if request.is_watch:
                self._watch(request)
                return
            code, answer = request.answer()
            warning = request.warning
            if fault == "doubled":
                Request(self.server, self.command, parts.path, query, body, dict(self.headers)).answer_again()
            if fault == "lost_answer":
                self.close_connection = True
                return
        except ApiError as error:
            code, answer = error.code, json.dumps(error.status()).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if parts.path.endswith("/log") else "application/json")
        if warning:
            self.send_header("Warning", f'299 - "{warning}"')
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _watch(self, request: "Request") -> None:
        begin = request.watch_from()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in request.watch(begin):
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


class Request:
    def __init__(
        self, server: Server, method: str, path: str, query: dict[str, str], body: bytes, headers: dict[str, str]
    ) -> None:
        self.server = server
        self.cluster = server.cluster
        self.store = server.cluster.store
        self.method = method
        self.path = path
        self.query = query
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.warning = ""
        self.body: Any = None
        if body:
            try:
                self.body = json.loads(body)
            except ValueError as error:
                raise ApiError(400, f"the body is no JSON: {error}") from error
        self.kind: Kind | None = None
        self.namespace = self.name = self.sub = ""
        if server.fault == "error":
            raise ApiError(500, "etcdserver: leader changed")
        self._route()
        self._authenticate()

    @property
    def is_watch(self) -> bool:
        return self.method == "GET" and self.query.get("watch") in ("1", "true") and self.kind is not None

    @property
    def plural(self) -> str:
        assert self.kind is not None
        return self.kind.plural

    def _route(self) -> None:
        parts = [unquote(part) for part in self.path.strip("/").split("/")]
        if parts[0] == "api" and len(parts) > 2:
            group, rest = "", parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, rest = parts[1], parts[3:]
        else:
            return
        if group == "authorization.k8s.io":
            return
        if rest[0] == "namespaces" and len(rest) > 2:
            self.namespace, rest = rest[1], rest[2:]
        kind = KINDS.get(rest[0])
        if kind is None or kind.group != group or (group and group not in self.cluster.groups):
            raise ApiError(404, "the server could not find the requested resource")
        self.kind = kind
        self.name = rest[1] if len(rest) > 1 else ""
        self.sub = rest[2] if len(rest) > 2 else ""

    def _authenticate(self) -> None:
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.cluster.tokens:
            raise ApiError(401, "Unauthorized")
        if self.kind is not None:
            verb = VERBS[self.method]
            if not self.name:
                verb = {"get": "watch" if self.is_watch else "list", "delete": "deletecollection"}.get(verb, verb)
            resource = f"{self.plural}/{self.sub}" if self.sub else self.plural
            if (verb, resource) in self.cluster.forbidden:
                raise ApiError(
                    403, f'{resource} is forbidden: User "athanor" cannot {verb} resource "{resource}" in API group '
                    f'"{self.kind.group}"',
                )  # fmt: skip

    def answer(self) -> tuple[int, bytes]:
        if self.kind is None:
            return self._discover()
        if self.sub == "log":
            return 200, self._log()
        match self.method, bool(self.name):
            case "GET", True:
                return 200, json.dumps(self.store.get(self.plural, self.namespace, self.name)).encode()
            case "GET", False:
                return 200, self._list()
            case "POST", True if self.sub == "eviction":
                pod = self.store.get("pods", self.namespace, self.name)
                self.cluster.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
                return 201, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode()
            case "POST", False:
                return 201, json.dumps(self._create()).encode()
            case "PATCH", True:
                return self._patch()
            case "DELETE", True:
                item = self.store.get(self.plural, self.namespace, self.name)
                self._admit("DELETE", None, item)
                return 200, json.dumps(self._delete(item)).encode()
            case "DELETE", False:
                self._admit("DELETE", None, None)
                for item in [one.item for one in self._selected()]:
                    self._delete(item)
                return 200, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode()
        raise ApiError(405, "the server does not allow this method on the requested resource")

    def answer_again(self) -> None:
        """The same request a second time, as a proxy may send it; nobody sees this answer."""
        try:
            self.answer()
        except ApiError:
            return

    def _discover(self) -> tuple[int, bytes]:
        if self.path == "/version":
            major, minor = self.cluster.version.lstrip("v").split(".")[:2]
            return 200, json.dumps({"major": major, "minor": minor, "gitVersion": self.cluster.version}).encode()
        if self.path == "/api":
            return 200, json.dumps({"kind": "APIVersions", "versions": ["v1"]}).encode()
        if self.path == "/apis":
            groups = [{"name": name, "versions": [{"version": "v1"}]} for name in sorted(self.cluster.groups)]
            return 200, json.dumps({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}).encode()
        if self.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" and self.method == "POST":
            wanted = self.body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (wanted["resource"], wanted.get("subresource"))))
            allowed = (wanted["verb"], resource) not in self.cluster.forbidden
            return 201, json.dumps({**self.body, "status": {"allowed": allowed}}).encode()
        raise ApiError(404, "the server could not find the requested resource")

    def _selected(self, stored: list[Stored] | None = None) -> list[Stored]:
        chosen = self.store.stored(self.plural, self.namespace) if stored is None else stored
        if selector := self.query.get("labelSelector"):
            by_label = selectors.labels(selector)
            chosen = [one for one in chosen if by_label(one.item)]
        if selector := self.query.get("fieldSelector"):
            by_field = selectors.fields(self.plural, selector)
            chosen = [one for one in chosen if by_field(one.item)]
        return chosen

    def _list(self) -> bytes:
        limit = int(self.query.get("limit") or 0)
        version = self.store.version
        if token := self.query.get("continue"):
            decoded = json.loads(base64.b64decode(token))
            version = decoded["version"]
            pages = self.server.pages.pop(token, None)
            if pages is None or version < self.store.compacted:
                raise ApiError(410, "The provided continue parameter is too old to display a consistent list result.")
            chosen = pages
        else:
            with self.store.changed:
                version = self.server.stale_version if self.server.fault == "stale_list" else self.store.version
                chosen = self._selected(self._as_the_fault_says())
        metadata: Object = {"resourceVersion": str(version)}
        if limit and len(chosen) > limit:
            following = base64.b64encode(json.dumps({"version": version, "id": uuid.uuid4().hex}).encode()).decode()
            self.server.pages[following] = chosen[limit:]
            metadata.update({"continue": following, "remainingItemCount": len(chosen) - limit})
            chosen = chosen[:limit]
        assert self.kind is not None
        head = {"kind": f"{self.kind.kind}List", "apiVersion": self.kind.api_version, "metadata": metadata}
        return json.dumps(head).encode()[:-1] + b', "items": [' + b",".join(one.text for one in chosen) + b"]}"

    def _as_the_fault_says(self) -> list[Stored] | None:
        if self.server.fault == "empty_list":
            return []
        if self.server.fault == "stale_list":
            return [one for one in self.server.stale.get(self.plural, []) if self._is_here(one)]
        return None

    def _is_here(self, one: Stored) -> bool:
        return not self.namespace or one.item["metadata"].get("namespace") == self.namespace

    def _create(self) -> Object:
        item = self._checked(self.body)
        metadata = item.setdefault("metadata", {})
        assert self.kind is not None
        if self.kind.namespaced:
            metadata["namespace"] = self.namespace
            self._check_namespace()
        metadata.setdefault("name", metadata.get("generateName", "") + uuid.uuid4().hex[:5])
        validation.check(self.plural, item)
        self.cluster.default(self.plural, item)
        if self.plural == "jobs":
            self.warning = warning_of(self.store, item)
        self._admit("CREATE", item, None)
        if self.query.get("dryRun") == "All":
            return item
        with self.store.changed:
            created = self.store.create(self.plural, item)
            manager = self.query.get("fieldManager", "unknown")
            self.server.owned[created["metadata"]["uid"]] = {manager: apply.leaves(self.body)}
        return created

    def _checked(self, item: Any) -> Object:
        """Against the published schemas, where there are some: unknown fields are refused."""
        if not isinstance(item, dict):
            raise ApiError(400, "an object is needed")
        if self.cluster.schemas is not None and self.query.get("fieldValidation") == "Strict":
            assert self.kind is not None
            wrong = self.cluster.schemas.problems(self.kind, item)
            if wrong:
                raise ApiError(400, f"strict decoding error: {', '.join(wrong)}")
        return item

    def _admit(self, operation: str, item: Object | None, before: Object | None) -> None:
        """As the admission policies have it."""
        if not self.cluster.policies or self.sub:
            return
        assert self.kind is not None
        request = {
            "resource": {"group": self.kind.group, "version": self.kind.version, "resource": self.plural},
            "operation": operation, "name": self.name, "namespace": self.namespace,
            "userInfo": {"username": ACCOUNT},
        }  # fmt: skip
        namespace = self.store.find("namespaces", "", self.namespace) if self.kind.namespaced else None
        for policy in self.cluster.policies:
            policy.check(request, item, before, namespace)

    def _check_namespace(self) -> None:
        namespace = self.store.get("namespaces", "", self.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            raise ApiError(
                403, f"unable to create new content in namespace {self.namespace} because it is being terminated"
            )

    def _patch(self) -> tuple[int, bytes]:
        kind = self.headers.get("content-type", "")
        with self.store.changed:
            before = self.store.find(self.plural, self.namespace, self.name)
            if kind == "application/apply-patch+yaml":
                return self._apply(before)
            if before is None:
                raise not_found(self.plural, self.name)
            if kind not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
                raise ApiError(415, f"the body of the request was in an unknown format: {kind}")
            draft = apply.merge(before, self.body)
            validation.check(self.plural, draft, before)
            self._admit("UPDATE", draft, before)
            after = self.store.update(self.plural, draft)
            manager = self.query.get("fieldManager", "unknown")
            self.server.owned.setdefault(after["metadata"]["uid"], {}).setdefault(manager, set()).update(
                apply.leaves(self.body)
            )
            return 200, json.dumps(after).encode()

    def _apply(self, before: Object | None) -> tuple[int, bytes]:
        manager = self.query.get("fieldManager")
        if not manager:
            raise ApiError(400, "fieldManager is required for apply patch")
        wanted = self._checked(self.body)
        assert self.kind is not None
        if self.kind.namespaced:
            if before is None:
                self._check_namespace()
            wanted.setdefault("metadata", {})["namespace"] = self.namespace
        uid = before["metadata"]["uid"] if before else ""
        owned = {name: set(fields) for name, fields in self.server.owned.get(uid, {}).items()}
        result = apply.apply(before, wanted, manager, self.query.get("force") == "true", owned)
        validation.check(self.plural, result, before)
        self._admit("UPDATE" if before else "CREATE", result, before)
        if before is None:
            self.cluster.default(self.plural, result)
            after = self.store.create(self.plural, result)
        else:
            after = self.store.update(self.plural, result)
        self.server.owned[after["metadata"]["uid"]] = owned
        return 200 if before else 201, json.dumps(after).encode()

    def _delete(self, item: Object) -> Object:
        options = self.body if isinstance(self.body, dict) else {}
        grace = options.get("gracePeriodSeconds", self.query.get("gracePeriodSeconds"))
        expected = (options.get("preconditions") or {}).get("uid")
        if expected and expected != item["metadata"]["uid"]:
            raise ApiError(409, "the UID in the precondition does not match the UID in record")
        if self.plural == "pods":
            delete_pod(self.store, self.cluster.loop, item, None if grace is None else int(grace))
        else:
            policy = options.get("propagationPolicy", self.query.get("propagationPolicy", "Background"))
            self.cluster.remove(self.plural, item, policy)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _log(self) -> bytes:
        pod = self.store.get("pods", self.namespace, self.name)
        if not pod["spec"].get("nodeName") or not pod["status"].get("containerStatuses"):
            raise ApiError(400, f'container "agent" in pod "{self.name}" is waiting to start: ContainerCreating')
        lines = self.cluster.logs.lines(self.cluster.kubelet.log_of(pod))
        if since := self.query.get("sinceTime"):
            begin = seconds_of(since) - self.store.clock_offset
            lines = [line for line in lines if line[0] >= int(begin) * SECOND]
        if tail := self.query.get("tailLines"):
            lines = lines[-int(tail) :]
        stamped = self.query.get("timestamps") == "true"
        offset = int(self.store.clock_offset * SECOND)
        content = b"".join((self.cluster.logs.stamp(at + offset) if stamped else b"") + line for at, line in lines)
        return content[: int(self.query["limitBytes"])] if "limitBytes" in self.query else content

    def watch_from(self) -> int:
        version = int(self.query.get("resourceVersion") or 0)
        if version and version < self.store.compacted:
            raise ApiError(410, f"too old resource version: {version} ({self.store.compacted})")
        return version or self.store.version

    def watch(self, version: int) -> Any:
        """Lines of events, until the client goes, the time is over, or what it saw last is forgotten."""
        until = time.monotonic() + float(self.query.get("timeoutSeconds") or 300)
        by_label = selectors.labels(self.query.get("labelSelector", ""))
        marked = time.monotonic()
        while time.monotonic() < until and not self.server.is_over.is_set():
            with self.store.changed:
                if version < self.store.compacted:
                    error = ApiError(410, f"too old resource version: {version} ({self.store.compacted})")
                    yield json.dumps({"type": "ERROR", "object": error.status()}).encode() + b"\n"
                    return
                changes = []
                for change in reversed(self.store.history):
                    if change.version <= version:
                        break
                    changes.append(change)
                if not changes:
                    self.store.changed.wait(BOOKMARK_SECONDS)
            if self.server.cut_watches_before > marked:
                return
            for change in reversed(changes):
                version = change.version
                if line := self._line(change, by_label):
                    yield line
            if self.query.get("allowWatchBookmarks") == "true" and time.monotonic() - marked > BOOKMARK_SECONDS:
                marked = time.monotonic()
                assert self.kind is not None
                bookmark = {
                    "kind": self.kind.kind, "apiVersion": self.kind.api_version,
                    "metadata": {"resourceVersion": str(version)},
                }  # fmt: skip
                yield json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n"

    def _line(self, change: Change, by_label: Any) -> bytes | None:
        if change.plural != self.plural:
            return None
        if self.namespace and change.item["metadata"].get("namespace") != self.namespace:
            return None
        is_in = by_label(change.item)
        was_in = change.before is not None and by_label(change.before)
        if not is_in and not was_in:
            return None
        type_ = change.type
        if type_ == "MODIFIED" and is_in != was_in:
            type_ = "ADDED" if is_in else "DELETED"
        return json.dumps({"type": type_, "object": change.item}).encode() + b"\n"
