"""The Kubernetes backend: the five calls, and its capabilities."""

import time
from collections.abc import Sequence
from typing import Any

from athanor.backends.base import (
    Backend,
    BackendRejected,
    BackendUnavailable,
    ChecksHealth,
    DrainsNodes,
    Handle,
    ListsNodes,
    ListsOurs,
    LogPart,
    Observation,
    Submission,
    SyncsTeams,
)
from athanor.backends.facts import HealthCheck, NodeFacts
from athanor.backends.kubernetes import health_check, inventory, logs, names, namespaces, objects, observing
from athanor.backends.kubernetes.client import CALL_SECONDS, KubernetesClient, Refused, client_of, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.reading import BATCH, Reading
from athanor.backends.kubernetes.state import job_state
from athanor.backends.kubernetes.watch import watch_of
from athanor.backends.plan import LaunchPlan

Json = dict[str, Any]
# Refusals that somebody may lift: rights, a quota, a namespace that is just being removed.
PASSING = ("exceeded quota", " cannot ", "being terminated", "failed quota")
SETTINGS: dict[str, namespaces.Namespaces] = {}


class KubernetesBackend(Backend, ListsOurs, ChecksHealth, ListsNodes, DrainsNodes, SyncsTeams):
    """Runs each attempt as an Indexed Job. Keyword arguments: the fields of KubernetesConfig."""

    configuration = KubernetesConfig

    def __init__(self, **config: Any) -> None:
        self._config = KubernetesConfig(**config)
        self._key = self._config.model_dump_json()
        self._namespaces = SETTINGS.setdefault(self._key, namespaces.Namespaces())

    @property
    def _client(self) -> KubernetesClient:
        return client_of(self._key, self._config)

    def render(self, plan: LaunchPlan) -> Submission:
        """Return the objects of the attempt, without its Secret."""
        made = objects.objects_of(self._config, plan)
        return Submission(
            plan.backend_name,
            objects.shown(made, list(plan.secrets)),
            objects.environment(self._config, plan),
            plan.secrets,
            {"team": plan.team, "objects": made},
        )

    def submit(self, submission: Submission) -> Handle:
        """Create the Job, or adopt the one that exists, and the objects that it owns."""
        payload: Any = submission.payload
        job, *others = payload["objects"]
        if self._config.watch:
            watch_of(self._key, self._config)  # it is to see all that becomes of the Job
        namespace = job["metadata"]["namespace"]
        deadline = time.monotonic() + CALL_SECONDS
        try:
            self._namespaces.ensure(self._client, self._config, payload["team"], deadline=deadline)
            found = self._create(job, payload["team"], deadline)
            if not job_state(found).is_over:
                values = dict(submission.secrets)
                others = [objects.secret(self._config, submission.backend_name, namespace, values), *others]
                for manifest in others:
                    self._apply(objects.owned_by(manifest, found), deadline)
        except Refused as error:
            raise _judged(error) from error
        return Handle(submission.backend_name, f"{namespace}/{submission.backend_name}")

    def _create(self, job: Json, team: str, deadline: float) -> Json:
        """Create the Job, or return the existing one."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        where = path(BATCH, "jobs", namespace)
        try:
            return self._client.create(where, job, deadline=deadline)
        except Refused as error:
            if error.code == 409 and error.reason == "AlreadyExists":
                return self._client.json("GET", path(BATCH, "jobs", namespace, name), deadline=deadline)
            if error.code != 404:
                raise
        self._namespaces.forget(namespace)  # somebody has removed it
        self._namespaces.ensure(self._client, self._config, team, deadline=deadline)
        return self._client.create(where, job, deadline=deadline)

    def _apply(self, manifest: Json, deadline: float) -> None:
        plural = {"Secret": "secrets", "Service": "services", "NetworkPolicy": "networkpolicies"}[manifest["kind"]]
        metadata = manifest["metadata"]
        where = path(manifest["apiVersion"], plural, metadata["namespace"], metadata["name"])
        self._client.apply(where, manifest, deadline=deadline)

    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """Observe all attempts from the watch, with requests for what it does not know."""
        try:
            return observing.Sweep(self._config, self._key, self._client).answers(handles) if handles else {}
        except Refused as error:
            raise unavailable(error) from error

    def _find(self, handle: Handle) -> Json | None:
        try:
            return self._reading().job(handle)
        except Refused as error:
            raise unavailable(error) from error

    def _reading(self) -> Reading:
        return Reading(self._config, self._client)

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Bring the Job's own deadline forward; with `force`, also delete its pods without grace.

        The cluster then ends its pods by SIGTERM, whether they run, wait or do not exist yet, creates no more of them,
        and keeps the Job as ended.
        """
        item = self._find(handle)
        if item is None or job_state(item).is_over:
            return
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        where = path(BATCH, "jobs", namespace, name)
        patch = {"metadata": {"annotations": {names.CANCELLED: "true"}}, "spec": {"activeDeadlineSeconds": 1}}
        try:
            if names.CANCELLED not in (item["metadata"].get("annotations") or {}):
                item = self._client.merge(where, patch)
            if item["spec"].get("suspend"):
                # It has no pods and its deadline does not run; nothing but its removal keeps it from being let go.
                self._client.request("DELETE", where, body=objects.deletion(propagationPolicy="Background"))
            elif force:
                chosen = names.selector({**names.owner_labels(self._config), names.ATTEMPT: name})
                now = objects.deletion(gracePeriodSeconds=0)
                self._client.request("DELETE", path("v1", "pods", namespace), body=now, labelSelector=chosen)
        except Refused as error:
            if error.code not in (404, 409):
                raise unavailable(error) from error

    def logs(self, handle: Handle, cursor: str | None = None) -> LogPart:
        """Read the pods' output from a cursor."""
        item = self._find(handle)
        if item is None:
            return LogPart("", cursor or "")
        try:
            pods = self._reading().pods(item["metadata"]["namespace"], handle.backend_name)
        except Refused as error:
            raise unavailable(error) from error
        return logs.read(self._client, pods, cursor)

    def list_ours(self) -> frozenset[str]:
        """Return the names of our live Jobs."""
        try:
            found = self._reading().all(BATCH, "jobs")
            return frozenset(item["metadata"]["name"] for item in found if not job_state(item).is_over)
        except Refused as error:
            raise unavailable(error) from error

    def sync_teams(self, teams: Sequence[str]) -> list[str]:
        """Create the namespace of each team and what belongs to it."""
        changes = []
        try:
            for team in teams:
                if self._namespaces.ensure(self._client, self._config, team):
                    changes.append(f"namespace {names.namespace_of(self._config, team)} agrees with team {team}")
        except Refused as error:
            raise unavailable(error) from error
        return changes

    def check_health(self) -> HealthCheck:
        """Check the cluster and our rights in it."""
        return health_check.check_health(self._config, lambda: self._client)

    def nodes(self) -> list[NodeFacts]:
        """Return the cluster's nodes with their used slots."""
        try:
            return inventory.nodes(self._config, self._client, self._reading())
        except Refused as error:
            raise unavailable(error) from error

    def drain(self, node: str, reason: str) -> None:
        """Cordon a node."""
        try:
            inventory.cordon(self._client, node, reason)
        except Refused as error:
            raise unavailable(error) from error

    def undrain(self, node: str) -> None:
        """Uncordon a node."""
        try:
            inventory.uncordon(self._client, node)
        except Refused as error:
            raise unavailable(error) from error


def unavailable(error: Refused) -> BackendUnavailable:
    """Return the error for a refusal that may be temporary."""
    return BackendUnavailable(f"the API server refuses it: {error}")


def _judged(error: Refused) -> Exception:
    """Return the error for a refused submission: permanent, or until somebody removes the cause."""
    if error.code == 403 and any(words in str(error) for words in PASSING):
        return unavailable(error)
    if error.code in (404, 409):
        return unavailable(error)
    return BackendRejected(f"Kubernetes refuses the Job: {error}")
