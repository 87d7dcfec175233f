"""The state of the API server: objects with versions, and the changes that watches receive."""

import copy
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.selectors import Object


class Kind(NamedTuple):
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = {
    kind.plural: kind
    for kind in (
        Kind("", "v1", "namespaces", "Namespace", False),
        Kind("", "v1", "nodes", "Node", False),
        Kind("", "v1", "pods", "Pod", True),
        Kind("", "v1", "services", "Service", True),
        Kind("", "v1", "secrets", "Secret", True),
        Kind("", "v1", "serviceaccounts", "ServiceAccount", True),
        Kind("", "v1", "resourcequotas", "ResourceQuota", True),
        Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True),
        Kind("", "v1", "events", "Event", True),
        Kind("batch", "v1", "jobs", "Job", True),
        Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True),
        Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False),
        Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
        Kind("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue", True),
    )
}


class Change(NamedTuple):
    version: int
    plural: str
    type: str
    item: Object
    before: Object | None


class Stored:
    """One version of an object; never changed once it is stored. `text` is made when first asked for."""

    __slots__ = ("_text", "item")

    def __init__(self, item: Object) -> None:
        self.item = item
        self._text: bytes | None = None

    @property
    def text(self) -> bytes:
        if self._text is None:
            self._text = json.dumps(self.item).encode()
        return self._text


class Store:
    """All objects. Every change happens under `changed`, which wakes watches and controllers."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.compacted = 0
        self.clock_offset = 0.0
        self.history: deque[Change] = deque(maxlen=50_000)
        self._items: dict[str, dict[tuple[str, str], Stored]] = {plural: {} for plural in KINDS}
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Called under the lock, for each change."""
        self._listeners.append(listener)

    def seconds(self) -> float:
        """The cluster's clock, since the epoch."""
        return time.time() + self.clock_offset

    def now(self) -> str:
        return datetime.fromtimestamp(self.seconds(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        stored = self._items[plural].get((namespace, name))
        return stored.item if stored else None

    def get(self, plural: str, namespace: str, name: str) -> Object:
        found = self.find(plural, namespace, name)
        if found is None:
            raise not_found(plural, name)
        return found

    def all(self, plural: str, namespace: str = "") -> Iterator[Object]:
        return (stored.item for stored in self.stored(plural, namespace))

    def stored(self, plural: str, namespace: str = "") -> list[Stored]:
        items = self._items[plural]
        keys = sorted(key for key in items if not namespace or key[0] == namespace)
        return [items[key] for key in keys]

    def create(self, plural: str, item: Object, manager: str = "") -> Object:
        with self.changed:
            item = copy.deepcopy(item)
            kind, metadata = KINDS[plural], item.setdefault("metadata", {})
            if "name" not in metadata and metadata.get("generateName"):
                metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
            namespace = metadata.get("namespace", "") if kind.namespaced else ""
            if (namespace, metadata["name"]) in self._items[plural]:
                raise ApiError(409, f'{plural} "{metadata["name"]}" already exists', "AlreadyExists")
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.kind)
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=self.now())
            if "spec" in item:
                metadata["generation"] = 1
            return self._put(plural, item, "ADDED", None)

    def update(self, plural: str, item: Object) -> Object:
        """Put a new version; its resourceVersion, where there is one, must be that of what it replaces."""
        with self.changed:
            metadata = item["metadata"]
            namespace = metadata.get("namespace", "") if KINDS[plural].namespaced else ""
            before = self.get(plural, namespace, metadata["name"])
            expected = metadata.get("resourceVersion")
            if expected and expected != before["metadata"]["resourceVersion"]:
                raise ApiError(
                    409, f'Operation cannot be fulfilled on {plural} "{metadata["name"]}": the object has been modified'
                )
            if item == before:
                return before
            item = copy.deepcopy(item)
            for kept in ("uid", "creationTimestamp", "generation"):
                if kept in before["metadata"]:
                    item["metadata"][kept] = before["metadata"][kept]
            if item.get("spec") != before.get("spec"):
                item["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
            return self._put(plural, item, "MODIFIED", before)

    def change(self, plural: str, item: Object, edit: Callable[[Object], None]) -> Object | None:
        """What a controller does: read again, edit, put. None when it is gone."""
        with self.changed:
            metadata = item["metadata"]
            current = self.find(plural, metadata.get("namespace", ""), metadata["name"])
            if current is None or current["metadata"]["uid"] != metadata["uid"]:
                return None
            draft = copy.deepcopy(current)
            edit(draft)
            return self.update(plural, draft)

    def remove(self, plural: str, item: Object) -> None:
        with self.changed:
            metadata = item["metadata"]
            key = (metadata.get("namespace", "") if KINDS[plural].namespaced else "", metadata["name"])
            before = self._items[plural].get(key)
            if before is None or before.item["metadata"]["uid"] != metadata["uid"]:
                return
            gone = copy.deepcopy(before.item)
            del self._items[plural][key]
            self.version += 1
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._tell(Change(self.version, plural, "DELETED", gone, before.item))

    def insert_quietly(self, plural: str, items: list[Object]) -> None:
        """Add many in one step, as if they had existed before: no controller and no watch is notified."""
        with self.changed:
            for item in items:
                self.version += 1
                item["metadata"].update(
                    uid=str(uuid.uuid4()), creationTimestamp=self.now(), resourceVersion=str(self.version), generation=1
                )
                self._items[plural][(item["metadata"].get("namespace", ""), item["metadata"]["name"])] = Stored(item)

    def compact(self) -> None:
        """Forget the previous changes, and one that was never sent: earlier watches and pages get 410."""
        with self.changed:
            self.version += 1
            self.compacted = self.version
            self.history.clear()
            self.changed.notify_all()

    def _put(self, plural: str, item: Object, type_: str, before: Object | None) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        key = (item["metadata"].get("namespace", "") if KINDS[plural].namespaced else "", item["metadata"]["name"])
        self._items[plural][key] = Stored(item)
        self._tell(Change(self.version, plural, type_, item, before))
        return item

    def _tell(self, change: Change) -> None:
        if len(self.history) == self.history.maxlen:
            self.compacted = self.history[0].version
        self.history.append(change)
        for listener in self._listeners:
            listener(change)
        self.changed.notify_all()


def not_found(plural: str, name: str) -> ApiError:
    kind = KINDS[plural]
    resource = f"{plural}.{kind.group}" if kind.group else plural
    return ApiError(404, f'{resource} "{name}" not found')


def owner_of(item: Object) -> str:
    """The uid of its controller, or of its first owner."""
    owners: list[dict[str, Any]] = item["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners), "")


def condition(item: Object, type_: str) -> Object | None:
    """The condition of this type if it is true."""
    for one in item.get("status", {}).get("conditions") or []:
        if one["type"] == type_ and one["status"] == "True":
            return dict(one)
    return None


def set_condition(item: Object, type_: str, status: str, reason: str, message: str, now: str) -> None:
    conditions = item.setdefault("status", {}).setdefault("conditions", [])
    for one in conditions:
        if one["type"] == type_:
            if one["status"] != status:
                one["lastTransitionTime"] = now
            one.update(status=status, reason=reason, message=message)
            return
    conditions.append(
        {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
    )
