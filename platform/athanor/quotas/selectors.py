"""Queries of the quota tree and its current usage. api/v1/quotas.py decides which part a user sees.

Sums cover the jobs of all teams without naming any.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db import connection
from django.db.models import Count, F, QuerySet, Sum
from django.db.models.functions import Least

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal, teams_of
from athanor.core import tenancy
from athanor.core.rows import columns_of, select
from athanor.jobs.models import Job
from athanor.jobs.states import HOLDING, JobStatus
from athanor.quotas.models import QuotaNode
from athanor.quotas.tree import LIMITS, Grant, Node, Tree, ancestors_of

COUNTED = Least("slots", F("pool__nodes") * F("pool__slots_per_node"))  # a job larger than its pool holds the pool
_HOLDING = [status.value for status in HOLDING]
PATH_OF_TEAM = f"""
    WITH RECURSIVE above AS (
        SELECT id, parent_id, 0 AS height FROM quotas_quotanode WHERE team_id = %s
        UNION ALL
        SELECT parent.id, parent.parent_id, above.height + 1
        FROM quotas_quotanode parent JOIN above ON parent.id = above.parent_id
    )
    SELECT {columns_of(QuotaNode, "node")} FROM quotas_quotanode node JOIN above ON above.id = node.id ORDER BY height
"""  # noqa: S608 - names of our own columns
TEAMS_BELOW = """
    WITH RECURSIVE below AS (
        SELECT id, team_id FROM quotas_quotanode WHERE id = %s
        UNION ALL
        SELECT child.id, child.team_id FROM quotas_quotanode child JOIN below ON child.parent_id = below.id
    )
    SELECT team_id FROM below WHERE team_id IS NOT NULL
"""


def rows() -> list[QuotaNode]:
    """Return every node with its grants and team, parents before children, by name."""
    below: dict[str | None, list[QuotaNode]] = {}
    for row in QuotaNode.objects.select_related("team").prefetch_related("grants").order_by("name", "id"):
        below.setdefault(row.parent_id, []).append(row)
    found = below.get(None, [])
    for row in found:  # grows during the iteration
        found.extend(below.get(row.id, ()))
    return found


def tree() -> Tree:
    """Return the quota tree as it is now."""
    return {row.id: node_of(row) for row in rows()}


def node_of(row: QuotaNode) -> Node:
    """Return a row of the tree, with its grants, as a value."""
    grants = sorted(row.grants.all(), key=lambda grant: grant.accelerator)
    return Node(
        id=row.id,
        name=row.name,
        parent=row.parent_id,
        team=row.team.name if row.team else "",
        team_id=row.team_id or "",
        weight=row.weight,
        limits={name: value for name in LIMITS if (value := getattr(row, name)) is not None},
        grants={
            grant.accelerator: Grant(
                nominal=grant.nominal, borrow_limit=grant.borrow_limit, lend_limit=grant.lend_limit
            )
            for grant in grants
        },
    )


def version() -> int:
    """Return the version of the tree, which increases with each change."""
    return QuotaNode.objects.filter(parent=None).values_list("version", flat=True).first() or 0


def path_of_team(team: Team) -> list[QuotaNode]:
    """Return the path from the team's leaf to the organisation; empty for a team without a leaf."""
    return select(QuotaNode, PATH_OF_TEAM, [team.id])


@dataclass(frozen=True)
class IdleLimits:
    """After how many seconds without progress a running job is warned about and paused. None: never."""

    warning: int | None
    pause: int | None


def idle_limits() -> dict[str, IdleLimits]:
    """Return the shortest idle limits on the path of each team, by its id. Teams without any are omitted."""
    nodes = {node.id: node for node in QuotaNode.objects.all()}
    found = {}
    for leaf in nodes.values():
        path, at = [], leaf.id if leaf.team_id else None
        while at is not None:
            path.append(nodes[at])
            at = nodes[at].parent_id
        limits = IdleLimits(
            min((node.idle_warning_seconds for node in path if node.idle_warning_seconds is not None), default=None),
            min((node.idle_pause_seconds for node in path if node.idle_pause_seconds is not None), default=None),
        )
        if leaf.team_id and limits != IdleLimits(None, None):
            found[leaf.team_id] = limits
    return found


@dataclass
class Used:
    """Current usage of a subtree. `slots`: slots held by accelerator; `teams`: number of teams that hold them."""

    slots: dict[str, int] = field(default_factory=dict)
    teams: dict[str, int] = field(default_factory=dict)
    running_jobs: int = 0
    queued_jobs: int = 0

    @property
    def slots_total(self) -> int:
        """Return the slots held, over all accelerators."""
        return sum(self.slots.values())


def used_of_teams() -> dict[str, Used]:
    """Return the usage by team id; teams without jobs are omitted."""
    found: dict[str, Used] = {}
    with tenancy.unrestricted():
        held = Job.objects.filter(status__in=_HOLDING).values("team_id", "pool__accelerator").order_by()
        sums = list(held.annotate(held=Sum(COUNTED), jobs=Count("id")))
        queued = Job.objects.filter(status=JobStatus.QUEUED.value).values("team_id").order_by()
        waiting = list(queued.annotate(jobs=Count("id")).values_list("team_id", "jobs"))
    for row in sums:
        used = found.setdefault(row["team_id"], Used())
        used.slots[row["pool__accelerator"]] = used.slots.get(row["pool__accelerator"], 0) + row["held"]
        used.teams[row["pool__accelerator"]] = 1
        used.running_jobs += row["jobs"]
    for team_id, jobs in waiting:
        found.setdefault(team_id, Used()).queued_jobs = jobs
    return found


def used_of_nodes(nodes: Tree) -> dict[str, Used]:
    """Return the usage by node id, summed over the node's subtree."""
    teams, found = used_of_teams(), {node_id: Used() for node_id in nodes}
    for node in nodes.values():
        own = teams.get(node.team_id)
        if own is None or not node.team_id:
            continue
        for above in ancestors_of(nodes, node.id):
            total = found[above.id]
            for accelerator, slots in own.slots.items():
                total.slots[accelerator] = total.slots.get(accelerator, 0) + slots
                total.teams[accelerator] = total.teams.get(accelerator, 0) + 1
            total.running_jobs += own.running_jobs
            total.queued_jobs += own.queued_jobs
    return found


def queued_below(nodes: Iterable[str]) -> dict[str, int]:
    """Return the number of queued jobs in the subtree of each node."""
    found = {}
    with tenancy.unrestricted():
        for node in nodes:
            waiting = Job.objects.filter(status=JobStatus.QUEUED.value, team_id__in=teams_below(node))
            found[node] = waiting.count()
    return found


def teams_below(node_id: str) -> list[str]:
    """Return the ids of the teams in the subtree."""
    with connection.cursor() as cursor:
        cursor.execute(TEAMS_BELOW, [node_id])
        return [team_id for (team_id,) in cursor.fetchall()]


def teams_with_leaves(principal: Principal) -> QuerySet[Team]:
    """Return the teams that the caller may see, each with its node of the quota tree."""
    return teams_of(principal).select_related("quota_node")
