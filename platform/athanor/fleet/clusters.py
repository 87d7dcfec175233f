"""Registration and operation of clusters, pools and nodes by administrators, with an audit record of each action.

Calls of a backend happen outside transactions. A quarantine is stored by the platform and takes effect at commit; the
backend is then asked to drain the node. inventory_sync.py repeats a drain that failed, but no undrain.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from pydantic import ValidationError

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.backends import registry
from athanor.backends.base import (
    Backend,
    BackendRejected,
    BackendUnavailable,
    ChecksHealth,
    DrainsNodes,
    ListsNodes,
    SyncsTeams,
)
from athanor.backends.facts import HealthCheck, NodeState
from athanor.clusters import server_config, services
from athanor.clusters.models import Cluster, ClusterHealthCheck, InventorySync, Node, NodePreflight, Pool
from athanor.clusters.node_score import NodeScore, Standing
from athanor.clusters.selectors import scores_of
from athanor.core import task_triggers, tenancy
from athanor.core.errors import Conflict, FieldProblem, Invalid, NotFound, Unavailable
from athanor.dispatch import node_preflights
from athanor.dispatch.services import backend_of
from athanor.fleet import inventory_sync
from athanor.jobs.models import Attempt
from athanor.jobs.states import AttemptStatus

Precondition = Callable[[Cluster], None]
CHANGEABLE = frozenset({"enabled", "preflight_after_incidents", "preflight_every_hours"})
SLUG = re.compile(r"[A-Za-z0-9_-]{1,63}")


def build_backend(kind: str, config: dict[str, Any], name: str = "") -> Backend:
    """Return the backend that this configuration makes, with the server's own part for a cluster of that name.

    Raises Invalid naming each field that does not fit, or that only the server may set.
    """
    if kind not in registry.BACKENDS:
        detail = f"kind {kind!r} is none of {', '.join(registry.KINDS)}"
        raise Invalid(
            "unknown_kind",
            detail,
            remedy="choose one of these kinds",
            problems=(FieldProblem("/kind", "choice", detail),),
        )
    try:
        return backend_of(Cluster(name=name, kind=kind, config=config))
    except server_config.ConfigRefused as error:
        problems = error.problems
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        problems = tuple(FieldProblem(_pointer(each["loc"], config), each["type"], _detail(each)) for each in found)
    except (TypeError, ValueError) as error:
        problems = (FieldProblem("/config", "invalid", str(error)),)
    first = f"{problems[0].pointer}: {problems[0].detail}"
    remedy = "fix the fields listed in errors"
    raise Invalid("invalid_config", f"the configuration does not fit: {first}", remedy=remedy, problems=problems)


def check(kind: str, config: dict[str, Any], actor: User, name: str = "") -> HealthCheck | None:
    """Return the health check of a cluster with this configuration, None if its backend has no health check.

    Nothing is stored but a record in the audit trail, because the server connects to addresses of the configuration.
    """
    build_backend(kind, config, name)
    row = Cluster(name=name, kind=kind, config=config)
    audit.record_alone("cluster.check", actor=actor, target=("cluster", name or "unregistered"), after=_facts(row))
    return inventory_sync.check_health(row)


def capabilities(cluster: Cluster) -> list[str]:
    """Return the backend's capabilities; none if its configuration is invalid."""
    try:
        backend = backend_of(cluster)
    except (TypeError, ValueError):
        return []
    names = {ChecksHealth: "probe", ListsNodes: "nodes", DrainsNodes: "drain", SyncsTeams: "sync_teams"}
    return [name for kind, name in names.items() if isinstance(backend, kind)]


def config_problems(cluster: Cluster) -> tuple[FieldProblem, ...]:
    """Return the problems of a stored configuration that is no longer valid, as after an upgrade."""
    try:
        build_backend(cluster.kind, cluster.config, cluster.name)
    except Invalid as error:
        return error.problems
    return ()


def find(cluster_id: str) -> Cluster:
    """Return a cluster with its pools. Raises NotFound."""
    row = Cluster.objects.filter(pk=cluster_id).prefetch_related("pools").first()
    if row is None:
        raise NotFound("cluster", cluster_id)
    return row


def register(name: str, kind: str, config: dict[str, Any], *, enabled: bool, actor: User) -> Cluster:
    """Create a cluster and schedule its first inventory. Raises Invalid (kind, config) and Conflict (name)."""
    build_backend(kind, config, name)
    try:
        with transaction.atomic():
            row = Cluster.objects.create(name=name, kind=kind, config=config, enabled=enabled)
            InventorySync.objects.create(cluster=row)
            audit.record("cluster.register", actor=actor, target=("cluster", row.id), after=_facts(row))
            task_triggers.trigger_after_commit(task_triggers.SYNC_INVENTORY)
    except IntegrityError as error:
        detail = f"there is a cluster {name!r}"
        raise Conflict("cluster_exists", detail, remedy="choose another name, or change that one") from error
    return row


def change(
    cluster_id: str,
    actor: User,
    precondition: Precondition,
    *,
    config: dict[str, Any] | None = None,
    **settings: bool | int | None,
) -> Cluster:
    """Change a cluster; fields that are absent stay. `settings`: values of CHANGEABLE. A disabled cluster admits
    nothing new; running jobs continue."""
    known = find(cluster_id)
    if config is not None:
        build_backend(known.kind, config, known.name)
    with transaction.atomic():
        row = Cluster.objects.select_for_update(no_key=True).get(pk=cluster_id)
        precondition(row)
        before = _facts(row)
        if config is not None:
            row.config = config
        for name in CHANGEABLE & settings.keys():
            setattr(row, name, settings[name])
        if _facts(row) != before:
            row.save(update_fields=["config", *CHANGEABLE])
            InventorySync.objects.filter(cluster=row).update(probed_at=None, nodes_at=None)
            target = ("cluster", row.id)
            audit.record("cluster.change", actor=actor, target=target, before=before, after=_facts(row))
            task_triggers.trigger_after_commit(task_triggers.SYNC_INVENTORY)
            task_triggers.trigger_after_commit(task_triggers.ADMIT)
    return row


def remove(cluster_id: str, actor: User) -> None:
    """Delete a cluster. Raises Conflict if a job refers to it; such a cluster can be disabled instead."""
    row = find(cluster_id)
    try:
        with tenancy.unrestricted(), transaction.atomic():  # else the jobs of other teams protect nothing
            services.locked(row)
            row.delete()
            audit.record("cluster.remove", actor=actor, target=("cluster", cluster_id), before=_facts(row))
    except ProtectedError as error:
        detail = f"jobs refer to {row}"
        raise Conflict("cluster_in_use", detail, remedy="disable it instead: nothing new is admitted then") from error


def check_health(cluster_id: str, actor: User) -> ClusterHealthCheck:
    """Check the health of a cluster and sync its nodes now. Return the stored health check.

    Each call of the backend takes at most 15 seconds. Raise Conflict if the backend has no health check.
    """
    row = find(cluster_id)
    build_backend(row.kind, row.config, row.name)
    found = inventory_sync.check_health(row)
    if found is None:
        detail = f"a cluster of kind {row.kind!r} has no health check"
        raise Conflict("cannot_probe", detail, remedy="see its queue and its jobs instead")
    made = services.store_health_check(row, found)
    problem = ""
    try:
        inventory_sync.refresh_nodes(row)
    except BackendUnavailable as error:
        problem = str(error)[:1000]
    InventorySync.objects.update_or_create(
        cluster=row, defaults={"probed_at": Now(), "nodes_at": Now(), "problem": problem}
    )
    audit.record_alone(
        "cluster.probe", actor=actor, target=("cluster", row.id), after={"usable": made.usable, "probe": made.id}
    )
    return made


def sync_teams(cluster_id: str, actor: User) -> list[str]:
    """Create the missing account or namespace of every team. Return one line per change."""
    row = find(cluster_id)
    backend = build_backend(row.kind, row.config, row.name)
    if not isinstance(backend, SyncsTeams):
        raise Conflict(
            "cannot_sync_teams", f"a cluster of kind {row.kind!r} has no accounts of teams", remedy="nothing to do"
        )
    try:
        teams = Team.objects.filter(deleted_at=None).order_by("name")
        done = backend.sync_teams(list(teams.values_list("name", flat=True)))
    except BackendRejected as error:
        raise Conflict("sync_refused", f"{row} refused: {error}", remedy="resolve the reported error") from error
    except BackendUnavailable as error:
        raise unavailable_error(row, error) from error
    audit.record_alone("cluster.sync_teams", actor=actor, target=("cluster", row.id), after={"changes": len(done)})
    return done


def live_attempts(cluster: Cluster) -> QuerySet[Attempt]:
    """Return the attempts on a cluster that have not ended, oldest first."""
    live = Attempt.objects.filter(job__pool__cluster=cluster).exclude(status=AttemptStatus.ENDED.value)
    return live.order_by("id")


def put_pool(cluster_id: str, name: str, actor: User, facts: dict[str, Any]) -> tuple[Pool, bool]:
    """Create or change a pool; fields absent from `facts` stay. The second value is whether it was created."""
    row = find(cluster_id)
    if not SLUG.fullmatch(name):
        detail = f"pool name {name!r} may contain only letters, digits, - and _, at most 63"
        raise Invalid(
            "invalid", detail, remedy="choose another name", problems=(FieldProblem("/name", "invalid", detail),)
        )
    with transaction.atomic():
        pool = Pool.objects.select_for_update(no_key=True).filter(cluster=row, name=name).first()
        before = _pool_facts(pool) if pool else None
        made = pool is None
        if pool is None:
            missing = [field for field in ("slots_per_node", "memory_bytes") if field not in facts]
            if missing:
                problems = tuple(FieldProblem(f"/{field}", "required", "a new pool needs it") for field in missing)
                detail = f"a new pool needs {' and '.join(missing)}"
                raise Invalid("invalid", detail, remedy="provide these fields", problems=problems)
            pool = Pool(cluster=row, name=name)
        for field, value in facts.items():
            setattr(pool, field, value)
        _check_spare_nodes(pool, facts)
        pool.save()
        audit.record(
            "pool.create" if made else "pool.change", actor=actor, target=("pool", pool.id), before=before,
            after=_pool_facts(pool),
        )  # fmt: skip
        task_triggers.trigger_after_commit(task_triggers.ADMIT)
    return pool, made


def _check_spare_nodes(pool: Pool, facts: dict[str, Any]) -> None:
    """Refuse spare nodes that leave no node for jobs. The error points to the field of `facts` that is to change."""
    if not pool.spare_nodes or pool.spare_nodes < pool.nodes:
        return
    detail = f"spare_nodes {pool.spare_nodes} of {pool.nodes} nodes of pool {pool.name!r} leaves no node for jobs"
    remedy = f"set spare_nodes to at most {max(pool.nodes - 1, 0)}, or nodes to at least {pool.spare_nodes + 1}"
    pointer = "/spare_nodes" if "spare_nodes" in facts else "/nodes"
    problems = (FieldProblem(pointer, "too_many_spare_nodes", f"{detail}; {remedy}"),)
    raise Invalid("invalid", detail, remedy=remedy, problems=problems)


def remove_pool(cluster_id: str, name: str, actor: User) -> None:
    """Delete a pool that no job refers to. Raises NotFound, or Conflict if jobs refer to it."""
    pool = Pool.objects.filter(cluster=find(cluster_id), name=name).first()
    if pool is None:
        raise NotFound("pool", name)
    try:
        with tenancy.unrestricted(), transaction.atomic():
            identifier, before = pool.id, _pool_facts(pool)
            pool.delete()
            audit.record("pool.remove", actor=actor, target=("pool", identifier), before=before)
    except ProtectedError as error:
        detail = f"jobs refer to pool {name!r}"
        raise Conflict("pool_in_use", detail, remedy="set its nodes to 0 instead") from error


def quarantine(cluster_id: str, name: str, reason: str, actor: User) -> tuple[Node, str]:
    """Exclude a node from new attempts. The second value: the backend's error if it could not drain it, or ""."""
    cluster = find(cluster_id)
    with transaction.atomic():
        node = _lock_node(cluster, name)
        if node.quarantined_at is None:
            _refuse_last_node(cluster, node)
            node.quarantined_at = timezone.now()
        node.quarantined_by, node.quarantine_reason = actor.username, reason
        node.save(update_fields=["quarantined_at", "quarantined_by", "quarantine_reason"])
        services.note(node, "quarantined", actor=actor.username, detail=reason)
        _record("node.quarantine", actor, node, {"reason": reason})
    return _apply_drain(cluster, node, reason, drained=True)


def release(cluster_id: str, name: str, actor: User) -> tuple[Node, str]:
    """End a quarantine, and ask the backend to undrain the node. Incidents before no longer count: a node with a bad
    score that is not in quarantine can be released, too."""
    cluster = find(cluster_id)
    with transaction.atomic():
        node = _lock_node(cluster, name)
        was_quarantined = node.quarantined_at is not None
        if not was_quarantined and scores_of(cluster).get(name, NodeScore()).standing is Standing.GOOD:
            remedy = "undrain it, if its cluster drained it"
            raise Conflict("not_quarantined", f"node {name} is neither in quarantine nor avoided", remedy=remedy)
        node.quarantined_at, node.quarantined_by, node.quarantine_reason = None, "", ""
        node.released_at = timezone.now()
        node.save(update_fields=["quarantined_at", "quarantined_by", "quarantine_reason", "released_at"])
        services.note(node, "released", actor=actor.username)
        _record("node.release", actor, node, None)
    return _apply_drain(cluster, node, "", drained=False) if was_quarantined else (node, "")


def start_preflight(cluster_id: str, name: str, actor: User) -> NodePreflight:
    """Start a preflight of a node that is free. Raises NotFound, Unavailable, or Conflict with why it cannot run there
    now."""
    cluster = find(cluster_id)
    _find_node(cluster, name)
    build_backend(cluster.kind, cluster.config, cluster.name)
    try:
        inventory_sync.refresh_nodes(cluster)
    except BackendUnavailable as error:
        raise unavailable_error(cluster, error) from error
    with transaction.atomic():
        node = _find_node(cluster, name)
        made = node_preflights.request(node, NodePreflight.Cause.MANUAL, actor.username)
        _record("node.preflight", actor, node, {"preflight": made.id})
    return made


def set_drained(cluster_id: str, name: str, reason: str, actor: User, *, drained: bool) -> Node:
    """Drain or undrain a node by its backend, without a quarantine. Raises Conflict, Unavailable."""
    cluster = find(cluster_id)
    node = _find_node(cluster, name)
    if not drained and node.quarantined_at is not None:
        raise Conflict("quarantined", f"node {name} is in quarantine", remedy="release it instead")
    backend = build_backend(cluster.kind, cluster.config, cluster.name)
    if not isinstance(backend, DrainsNodes):
        detail = f"a cluster of kind {cluster.kind!r} cannot drain a node"
        raise Conflict("cannot_drain", detail, remedy="quarantine it: new attempts then avoid it")
    try:
        _call_drain(backend, name, reason, drained=drained)
    except BackendRejected as error:
        raise Conflict("drain_refused", f"{cluster} refused: {error}", remedy="resolve the reported error") from error
    except BackendUnavailable as error:
        raise unavailable_error(cluster, error) from error
    with transaction.atomic():
        node = _lock_node(cluster, name)
        _set_node_state(node, reason, drained=drained)
        services.note(node, "drained" if drained else "undrained", actor=actor.username, detail=reason)
        _record("node.drain" if drained else "node.undrain", actor, node, {"reason": reason})
    return node


def unavailable_error(cluster: Cluster, error: Exception) -> Unavailable:
    """Return the error for a cluster that cannot be reached."""
    return Unavailable("cluster_unavailable", f"{cluster} does not answer: {error}", remedy="try again later")


def _apply_drain(cluster: Cluster, node: Node, reason: str, *, drained: bool) -> tuple[Node, str]:
    """Drain or undrain the node by its backend, if that can. Return the node, and the backend's error or ""."""
    try:
        backend = build_backend(cluster.kind, cluster.config, cluster.name)
        if not isinstance(backend, DrainsNodes) or not node.listed:
            return node, ""
        _call_drain(backend, node.name, reason, drained=drained)
    except (BackendRejected, BackendUnavailable, Invalid) as error:
        return node, f"{cluster} did not {'drain' if drained else 'take back'} it: {error}"
    with transaction.atomic():
        node = _lock_node(cluster, node.name)
        _set_node_state(node, reason, drained=drained)
    return node, ""


def _call_drain(backend: DrainsNodes, name: str, reason: str, *, drained: bool) -> None:
    if drained:
        backend.drain(name, reason)
    else:
        backend.undrain(name)


def _set_node_state(node: Node, reason: str, *, drained: bool) -> None:
    """Store the expected state of the node; the next inventory sync replaces it."""
    if drained and node.state != NodeState.DOWN.value:
        node.state, node.reason = NodeState.DRAINED.value, reason
    elif not drained and node.state == NodeState.DRAINED.value:
        node.state, node.reason = NodeState.READY.value, ""
    node.save(update_fields=["state", "reason"])


def _find_node(cluster: Cluster, name: str) -> Node:
    node = Node.objects.filter(cluster=cluster, name=name).first()
    if node is None:
        raise NotFound("node", name)
    return node


def _lock_node(cluster: Cluster, name: str) -> Node:
    node = Node.objects.select_for_update(no_key=True).filter(cluster=cluster, name=name).first()
    if node is None:
        raise NotFound("node", name)
    return node


def _refuse_last_node(cluster: Cluster, node: Node) -> None:
    """Refuse to quarantine the last listed node that is not in quarantine."""
    others = Node.objects.filter(cluster=cluster, listed=True, quarantined_at__isnull=True).exclude(pk=node.pk)
    if node.listed and not others.exists():
        detail = f"{node.name} is the last node of {cluster} that is not in quarantine"
        raise Conflict("last_node", detail, remedy="disable the cluster instead: nothing new is admitted then")


def _record(action: str, actor: User, node: Node, after: dict[str, Any] | None) -> None:
    audit.record(action, actor=actor, target=("node", f"{node.cluster_id}/{node.name}"), after=after)


def _facts(row: Cluster) -> dict[str, Any]:
    """Return the audited facts, with the configuration as text: audit records accept no floats."""
    return {
        "name": row.name, "kind": row.kind, "config": json.dumps(row.config),
        **{name: getattr(row, name) for name in sorted(CHANGEABLE)},
    }  # fmt: skip


def _pool_facts(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name, "accelerator": pool.accelerator, "nodes": pool.nodes,
        "spare_nodes": pool.spare_nodes, "slots_per_node": pool.slots_per_node, "memory_bytes": pool.memory_bytes,
        "accelerator_memory_bytes": pool.accelerator_memory_bytes,
        "price_per_slot_hour": str(pool.price_per_slot_hour), "currency": pool.currency,
    }  # fmt: skip


def _detail(error: Any) -> str:
    """Return what is wrong, with the value if it is a single one."""
    value = error["input"]
    return f"{error['msg']}; got {value!r}" if isinstance(value, str | int | float | bool | None) else error["msg"]


def _pointer(place: tuple[int | str, ...], config: Any) -> str:
    """Return the RFC 6901 pointer of a location in `config`, without the names of union members that pydantic adds."""
    pieces, value = [], config
    for number, piece in enumerate(place):
        inside = isinstance(value, dict) and piece in value
        inside = inside or (isinstance(value, list) and isinstance(piece, int) and piece < len(value))
        if not inside and number < len(place) - 1:
            continue
        pieces.append(piece)
        value = value[piece] if inside else None
    return "/config" + "".join(f"/{str(piece).replace('~', '~0').replace('/', '~1')}" for piece in pieces)
