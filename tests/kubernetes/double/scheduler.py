"""Which node a pod goes to: room, selectors, affinities, taints. Without scores: the first that fits is taken."""

from collections import Counter
from typing import Any

from tests.kubernetes.double.admission import requests
from tests.kubernetes.double.loop import Loop
from tests.kubernetes.double.pods import event, is_over
from tests.kubernetes.double.selectors import Object, matches_expression, matches_label_selector
from tests.kubernetes.double.store import Change, Store, set_condition
from tests.kubernetes.double.times import amount


class Scheduler:
    def __init__(self, store: Store, loop: Loop) -> None:
        self._store = store
        self._loop = loop
        self._waiting: set[tuple[str, str]] = set()
        store.listen(self._hear)

    def _hear(self, change: Change) -> None:
        if change.plural == "pods":
            metadata = change.item["metadata"]
            key = (metadata["namespace"], metadata["name"])
            waits = change.type != "DELETED" and not change.item["spec"].get("nodeName") and not is_over(change.item)
            self._waiting.add(key) if waits else self._waiting.discard(key)
            freed = change.type == "DELETED" or is_over(change.item)
            if change.type != "ADDED" and not freed:
                return
        elif change.plural != "nodes":
            return
        if self._waiting:
            self._loop.soon("schedule", self._place_all)

    def _place_all(self) -> None:
        with self._store.changed:
            found = [self._store.find("pods", *key) for key in self._waiting]
            pods = [pod for pod in found if pod is not None and "deletionTimestamp" not in pod["metadata"]]
            for pod in sorted(pods, key=lambda one: (-one["spec"].get("priority", 0), one["metadata"]["name"])):
                self._place(pod)

    def _place(self, pod: Object) -> None:
        nodes, refusals = list(self._store.all("nodes")), Counter[str]()
        for node in nodes:
            if (refusal := self._refusal(node, pod)) is None:
                self._store.change("pods", pod, lambda draft, node=node: self._bind(draft, node))  # type: ignore[misc]
                return
            refusals[refusal] += 1
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refusals.items()))
        message = f"0/{len(nodes)} nodes are available: {reasons}."

        def update(draft: Object) -> None:
            set_condition(draft, "PodScheduled", "False", "Unschedulable", message, self._store.now())

        self._store.change("pods", pod, update)
        event(self._store, pod, "Pod", "FailedScheduling", message)

    def _bind(self, pod: Object, node: Object) -> None:
        pod["spec"]["nodeName"] = node["metadata"]["name"]
        set_condition(pod, "PodScheduled", "True", "", "", self._store.now())

    def _refusal(self, node: Object, pod: Object) -> str | None:
        spec, labels = pod["spec"], node["metadata"].get("labels") or {}
        if node["spec"].get("unschedulable"):
            return "node(s) were unschedulable"
        for taint in node["spec"].get("taints") or []:
            if taint["effect"] != "PreferNoSchedule" and not any(
                tolerates(one, taint) for one in spec.get("tolerations") or []
            ):
                return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        affinity = spec.get("affinity") or {}
        wanted = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        if wanted and not any(_matches_term(term, node) for term in wanted["nodeSelectorTerms"]):
            return "node(s) didn't match Pod's node affinity/selector"
        if not self._has_room(node, pod):
            return "Insufficient resources"
        for kind, is_wanted in (("podAffinity", True), ("podAntiAffinity", False)):
            for term in (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []:
                if self._has_neighbours(term, node, pod, is_wanted) != is_wanted:
                    return "node(s) didn't match pod affinity/anti-affinity rules"
        return None

    def _has_room(self, node: Object, pod: Object) -> bool:
        left = {name: amount(quantity) for name, quantity in node["status"]["allocatable"].items()}
        for other in self._store.all("pods"):
            if other["spec"].get("nodeName") == node["metadata"]["name"] and not is_over(other):
                for name, quantity in requests(other).items():
                    left[name] = left.get(name, 0.0) - quantity
        return all(left.get(name, 0.0) >= quantity for name, quantity in requests(pod).items())

    def _has_neighbours(self, term: Object, node: Object, pod: Object, may_begin: bool) -> bool:
        """Whether pods of the term are in the node's domain; the first of a group begins anywhere."""
        key, selector = term["topologyKey"], term.get("labelSelector") or {}
        domain = (node["metadata"].get("labels") or {}).get(key)
        everywhere = "namespaceSelector" in term
        others = [
            other
            for other in self._store.all("pods", "" if everywhere else pod["metadata"]["namespace"])
            if other["spec"].get("nodeName")
            and not is_over(other)
            and matches_label_selector(selector, other["metadata"].get("labels") or {})
        ]
        if not others:
            return may_begin and bool(domain) and matches_label_selector(selector, pod["metadata"].get("labels") or {})
        places = {
            (self._store.get("nodes", "", one["spec"]["nodeName"])["metadata"]["labels"]).get(key) for one in others
        }
        return domain in places


def tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint["key"]:
        return False
    return bool(toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))


def _matches_term(term: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    by_name: dict[str, Any] = {"metadata.name": node["metadata"]["name"]}
    return all(matches_expression(one, labels) for one in term.get("matchExpressions") or []) and all(
        matches_expression(one, by_name) for one in term.get("matchFields") or []
    )
