"""Requests to the API server for our Jobs and pods, bypassing any watch."""

import time
from collections.abc import Iterable
from typing import Any

from athanor.backends.base import Handle
from athanor.backends.kubernetes import names
from athanor.backends.kubernetes.client import CALL_SECONDS, KubernetesClient, Refused, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.state import PodState, pod_state

Json = dict[str, Any]
BATCH = "batch/v1"
MAX_EVENTS = 500


class Reading:
    """The requests of one call, which share its deadline. They raise Refused and BackendUnavailable."""

    def __init__(self, config: KubernetesConfig, client: KubernetesClient) -> None:
        self.deadline = time.monotonic() + CALL_SECONDS
        self._config = config
        self._client = client

    def all(self, group: str, plural: str, namespace: str = "", selector: str = "") -> Iterable[Json]:
        """Yield all our objects of a kind; with `selector`, those that it selects."""
        chosen = selector or names.ours(self._config)
        for page in self._client.list(path(group, plural, namespace), deadline=self.deadline, labelSelector=chosen):
            yield from page.get("items") or []

    def job(self, handle: Handle) -> Json | None:
        """Return the Job of a handle in any namespace; None if the server denies it."""
        namespace, _, name = handle.backend_id.partition("/")
        if name == handle.backend_name:
            try:
                return self._client.json("GET", path(BATCH, "jobs", namespace, name), deadline=self.deadline)
            except Refused as error:
                if error.code == 404:
                    return None
                raise
        pages = self._client.list(
            path(BATCH, "jobs"), deadline=self.deadline, labelSelector=names.ours(self._config),
            fieldSelector=f"metadata.name={handle.backend_name}",
        )  # fmt: skip
        return next((item for page in pages for item in page.get("items") or []), None)

    def pods(self, namespace: str, name: str) -> list[PodState]:
        """Return the pods of an attempt."""
        chosen = names.selector({**names.owner_labels(self._config), names.ATTEMPT: name})
        return [pod_state(item) for item in self.all("v1", "pods", namespace, chosen)]

    def is_namespace_deleted(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted, or does not exist."""
        found = self._client.json(
            "GET", path("v1", "namespaces"), deadline=self.deadline, fieldSelector=f"metadata.name={namespace}"
        )
        return all("deletionTimestamp" in item["metadata"] for item in found.get("items") or [])

    def lost(self, nodes: set[str]) -> set[str]:
        """Return those of the nodes that no longer exist or are not ready."""
        lost = set()
        for node in sorted(nodes):
            try:
                item = self._client.json("GET", path("v1", "nodes", "", node), deadline=self.deadline)
            except Refused as error:
                if error.code != 404:
                    raise
                lost.add(node)
                continue
            conditions = item["status"].get("conditions") or []
            if not any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
                lost.add(node)
        return lost

    def events(self, namespace: str, kind: str) -> list[Json]:
        """Return a namespace's events about objects of this kind, the latest last.

        Servers store them for an hour by default.
        """
        found = self._client.json(
            "GET", path("v1", "events", namespace), deadline=self.deadline, limit=MAX_EVENTS,
            fieldSelector=f"involvedObject.kind={kind}",
        )  # fmt: skip
        items: list[Json] = found.get("items") or []
        return sorted(items, key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
