"""What has lost its other half: objects of a cluster without a live attempt, live attempts without an object.

Neither should be there for long: an agent whose attempt is over is refused by the platform and ends, a sweep gives up
an attempt that is truly absent. What stays is shown to an operator with an action that is safe whatever they overlook:
an object is cancelled only if no live attempt has its name, an attempt is looked at again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.backends.base import BackendUnavailable, Handle, ListsOurs, Presence
from athanor.clusters.models import Cluster
from athanor.core.errors import Conflict, NotFound, Unavailable
from athanor.dispatch import node_preflights, observe
from athanor.dispatch.services import backend_of
from athanor.jobs.models import Attempt
from athanor.jobs.states import AttemptStatus

MAX_NAMES_PER_QUERY = 1000
MAX_ORPHANS = 500


@dataclass(frozen=True)
class LostObject:
    """`attempt_id` and `job_id` are empty when we have no such attempt at all."""

    cluster: Cluster
    backend_name: str
    attempt_id: str
    job_id: str
    why: str


@dataclass(frozen=True)
class Unlisted:
    """A cluster whose objects are not known, and why."""

    cluster: Cluster
    why: str


@dataclass(frozen=True)
class Orphans:
    """Objects without a live attempt, attempts without an object, and clusters that could not be listed."""

    objects: list[LostObject]
    attempts: list[Attempt]
    unlisted: list[Unlisted]


def find() -> Orphans:
    """List the objects of every cluster and compare them with the live attempts. Call outside any transaction."""
    objects: list[LostObject] = []
    unlisted: list[Unlisted] = []
    for cluster in Cluster.objects.order_by("name"):
        try:
            objects += _lost_objects(cluster, _list_ours(cluster))
        except (BackendUnavailable, Unavailable) as error:
            unlisted.append(Unlisted(cluster, str(error)))
    absent = observe.observable().filter(absent_count__gt=0).select_related("job__pool__cluster")
    return Orphans(objects[:MAX_ORPHANS], list(absent.order_by("absent_since")[:MAX_ORPHANS]), unlisted)


def cancel_object(cluster_id: str, backend_name: str, actor: User) -> None:
    """Ask the cluster to end what no live attempt owns. Raises NotFound, Conflict, Unavailable."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is None:
        raise NotFound("cluster", cluster_id)
    try:
        if backend_name not in _list_ours(cluster):
            raise NotFound("running object", backend_name)
        if node_preflights.live().filter(backend_name=backend_name).exists():
            raise Conflict("not_an_orphan", f"{backend_name} is a preflight of a node", remedy="wait for its end")
        if Attempt.objects.filter(backend_name=backend_name).exclude(status=AttemptStatus.ENDED.value).exists():
            raise Conflict("not_an_orphan", f"{backend_name} has a live attempt", remedy="cancel its job instead")
        backend_of(cluster).cancel(Handle(backend_name, backend_name), force=False)
    except BackendUnavailable as error:
        raise _away(cluster, error) from error
    facts = {"cluster": cluster.name}
    audit.record_alone("orphan.cancel", actor=actor, target=("backend_object", backend_name), after=facts)


def observe_attempt(attempt_id: str, actor: User) -> Presence:
    """Look at a live attempt now. Its absence counts as one more; it ends as a sweep would end it."""
    attempt = Attempt.objects.select_related("job__pool__cluster").filter(pk=attempt_id).first()
    if attempt is None:
        raise NotFound("attempt", attempt_id)
    cluster = attempt.job.pool.cluster
    if attempt.status == AttemptStatus.ENDED.value:
        raise Conflict("attempt_over", f"{attempt_id} has ended", remedy="nothing is left to do")
    try:
        seen = observe.observe_one(attempt)
    except BackendUnavailable as error:
        raise _away(cluster, error) from error
    if seen is None:
        raise Conflict(
            "sweep_under_way",
            f"{cluster} is being observed just now",
            remedy="look again in a moment",
            retry_after_seconds=5,
        )
    facts = {"cluster": cluster.name, "presence": seen.value}
    audit.record_alone(
        "attempt.observe", actor=actor, target=("attempt", attempt_id), team_id=attempt.job.team_id, after=facts
    )
    return seen


def _list_ours(cluster: Cluster) -> frozenset[str]:
    backend = backend_of(cluster)
    if not isinstance(backend, ListsOurs):
        raise Unavailable(
            "not_listable",
            f"a cluster of kind {cluster.kind!r} cannot say what it runs",
            remedy="list its jobs with its own tools",
        )
    return backend.list_ours()


def _lost_objects(cluster: Cluster, names: Iterable[str]) -> list[LostObject]:
    lost: list[LostObject] = []
    measuring = node_preflights.live().filter(node__cluster=cluster).values_list("backend_name", flat=True)
    ordered = sorted(set(names) - set(measuring))
    for start in range(0, len(ordered), MAX_NAMES_PER_QUERY):
        asked = ordered[start : start + MAX_NAMES_PER_QUERY]
        known = {
            name: (attempt_id, job_id, status)
            for name, attempt_id, job_id, status in Attempt.objects.filter(backend_name__in=asked).values_list(
                "backend_name", "id", "job_id", "status"
            )
        }
        for name in asked:
            attempt_id, job_id, status = known.get(name, ("", "", ""))
            if not attempt_id:
                lost.append(LostObject(cluster, name, "", "", "There is no attempt of this name."))
            elif status == AttemptStatus.ENDED.value:
                lost.append(LostObject(cluster, name, attempt_id, job_id, "Its attempt has ended."))
    return lost


def _away(cluster: Cluster, error: Exception) -> Unavailable:
    return Unavailable("cluster_unavailable", f"{cluster} does not answer: {error}", remedy="try again later")
