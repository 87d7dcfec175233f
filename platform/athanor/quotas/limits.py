"""Limits that refuse a submission: jobs that a limit on the team's path can never admit, and full queues.

Other limits and quotas let jobs wait (scheduling/policy/cycle.py).
"""

from collections.abc import Iterable, Sequence

from athanor.clusters.models import Pool
from athanor.core.errors import Conflict, FieldProblem, Invalid
from athanor.quotas import selectors
from athanor.quotas.models import QuotaNode
from athanor.specs.v1 import JobSpec


def check(path: Sequence[QuotaNode], spec: JobSpec, pool: Pool) -> None:
    """Check a spec against the limits on its team's path. Raises Invalid with every limit that can never admit it."""
    found = _problems(path, spec, pool)
    if found:
        raise Invalid(
            "over_limit",
            found[0].detail,
            remedy="fix the fields listed in errors, or ask a platform administrator for a higher limit",
            problems=tuple(found),
        )


def check_queue(path: Sequence[QuotaNode], *, exactly: bool = True) -> None:
    """Check the limits on queued jobs. Raises Conflict if a queue is full.

    `exactly`: lock the limited nodes, so that concurrent submissions are counted one after the other. Needs the
    transaction of the submission.
    """
    bound = [node for node in path if node.max_queued_jobs is not None]
    if not bound:
        return
    limited = lock(bound) if exactly else bound
    waiting = selectors.queued_below(node.id for node in limited)
    for node in limited:
        if node.max_queued_jobs is not None and waiting[node.id] >= node.max_queued_jobs:
            detail = f"{counted(waiting[node.id], 'job')} of {owner_name(node)} wait, and {node.max_queued_jobs} may"
            raise Conflict(
                "queue_full",
                f"{detail} (max_queued_jobs)",
                remedy="submit it when one of them has started, cancel one, or ask a platform administrator for more",
                extra={"node": node.name, "limit": node.max_queued_jobs, "waiting": waiting[node.id]},
            )


def lock(nodes: Iterable[QuotaNode]) -> list[QuotaNode]:
    """Lock and return nodes in the global lock order: the organisation, then by id."""
    asked = {node.id: node for node in nodes}
    top = [node.id for node in asked.values() if node.parent_id is None]
    rest = sorted(asked.keys() - {*top})
    rows = QuotaNode.objects.select_for_update(no_key=True)
    return [row for ids in (top, rest) if ids for row in rows.filter(pk__in=ids).order_by("id")]


def _problems(path: Sequence[QuotaNode], spec: JobSpec, pool: Pool) -> list[FieldProblem]:
    found = []
    slots, seconds = min(spec.resources.slots, pool.slots), spec.time_limit_seconds
    for node in path:
        owner = owner_name(node)
        for limit, name in ((node.max_slots_per_job, "max_slots_per_job"), (node.max_slots, "max_slots")):
            if limit is not None and slots > limit:
                of = "one job of" if name == "max_slots_per_job" else "all jobs of"
                detail = f"it requests {counted(slots, 'slot')}; {of} {owner} may hold {limit} ({name})"
                detail += "; request fewer processes"
                found.append(FieldProblem("/resources/processes_per_node", name, detail))
        if node.max_run_seconds is not None and seconds > node.max_run_seconds:
            detail = f"it may run for {seconds} s; a job of {owner} may for {node.max_run_seconds} (max_run_seconds)"
            found.append(FieldProblem("/time_limit_seconds", "max_run_seconds", f"{detail}; lower it"))
    return found


def counted(number: int, what: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def owner_name(node: QuotaNode) -> str:
    """Return what the node is for users: `team x`, `group x` or `the organisation`."""
    if node.team_id:
        return f"team {node.name}"
    return "the organisation" if node.parent_id is None else f"group {node.name}"
