"""A scenario file: a quota tree, pools, settings, and real or generated jobs to replay on them. Pure.

Nodes, pools and teams are referenced by name; `docs/operations/simulator.md` shows one.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy import snapshot
from athanor.scheduling.simulator.engine import PastJob, Plan
from athanor.scheduling.simulator.workload import Submitter, generate

Name = Annotated[str, Field(min_length=1, max_length=100)]
Slots = Annotated[int, Field(ge=0, le=1_000_000)]
Limit = Slots | None
ROOT = "organisation"


class Strict(BaseModel):
    """A part of a scenario. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Grant(Strict):
    """Slots granted to a node, with Kueue's meaning."""

    nominal: Slots = 0
    borrow_limit: Limit = None
    lend_limit: Limit = None


class Node(Strict):
    """A node of the quota tree; `parent` defaults to the organisation."""

    name: Name
    parent: Name = ROOT
    weight: float = Field(default=1.0, gt=0)
    grants: dict[Name, Grant] = Field(default_factory=dict)
    max_running_jobs: Limit = None
    max_slots: Limit = None


class Pool(Strict):
    """A pool of slots."""

    name: Name
    accelerator: Name
    slots: int = Field(ge=1, le=1_000_000)


class Settings(Strict):
    """Admission settings."""

    fair_share: bool = True
    half_life_seconds: int = Field(default=7 * 86_400, ge=1)
    age_step_seconds: int = Field(default=86_400, ge=0)
    backfill: bool = True
    preempt: bool = True
    protected_seconds: int = Field(default=600, ge=0)


class Team(Strict):
    """A team that submits generated jobs: its weight among all, and the median run time."""

    team: Name
    pools: list[Name] = Field(min_length=1)
    weight: float = Field(default=1.0, gt=0)
    median_minutes: float = Field(default=60, gt=0, le=7 * 1440)


class Generated(Strict):
    """Generated jobs."""

    days: int = Field(default=30, ge=1, le=366)
    jobs_per_day: int = Field(default=100, ge=1, le=5000)
    largest: int = Field(default=64, ge=1, le=100_000)
    seed: int = 0
    teams: list[Team] = Field(min_length=1)


class Job(Strict):
    """A job to replay, submitted `at_minutes` after the beginning."""

    at_minutes: float = Field(ge=0)
    team: Name
    pool: Name
    slots: int = Field(ge=1)
    minutes: float = Field(gt=0)
    limit_minutes: float | None = Field(default=None, gt=0)
    priority: Literal["low", "normal", "high"] = "normal"


class Proposal(Strict):
    """A proposed quota tree and admission settings."""

    nodes: list[Node] = Field(default_factory=list)
    settings: Settings = Field(default_factory=Settings)

    @model_validator(mode="after")
    def _is_a_tree(self) -> "Proposal":
        names = [node.name for node in self.nodes]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"nodes: {', '.join(doubled)} occurs twice; give each node a unique name")
        known = {ROOT, *names}
        for node in self.nodes:
            if node.parent not in known:
                raise ValueError(f"nodes: {node.name} has the parent {node.parent!r}, which is no node; add it")
        parents = {node.name: node.parent for node in self.nodes}
        for name in names:
            above, steps = name, 0
            while above != ROOT and steps <= len(names):
                above, steps = parents.get(above, ROOT), steps + 1
            if above != ROOT:
                raise ValueError(f"nodes: {name} is above itself; give it another parent")
        return self

    def tree(self) -> list[CapacityNode]:
        """Return the tree as input of the simulator, with a root if none is given."""
        nodes = self.nodes if any(node.name == ROOT for node in self.nodes) else [Node(name=ROOT), *self.nodes]
        return [
            CapacityNode(
                node.name,
                node.name,
                None if node.name == ROOT else node.parent,
                node.weight,
                {
                    accelerator: CapacityGrant(grant.nominal, grant.borrow_limit, grant.lend_limit)
                    for accelerator, grant in node.grants.items()
                },
                node.max_running_jobs,
                node.max_slots,
            )
            for node in nodes
        ]


class Scenario(Proposal):
    """A complete simulation: tree, settings, pools and jobs."""

    pools: list[Pool] = Field(min_length=1)
    checkpoint_minutes: float = Field(default=30, gt=0)
    generate: Generated | None = None
    jobs: list[Job] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_complete(self) -> "Scenario":
        if (self.generate is None) == (not self.jobs):
            raise ValueError("give either `generate` or `jobs`, and not both")
        parents = {node.parent for node in self.nodes}
        leaves = {node.name for node in self.nodes if node.name not in parents} or {ROOT}
        pools = {pool.name for pool in self.pools}
        teams: list[tuple[str, set[str]]] = [(job.team, {job.pool}) for job in self.jobs]
        if self.generate is not None:
            teams += [(team.team, set(team.pools)) for team in self.generate.teams]
        for team, of in teams:
            if team not in leaves:
                raise ValueError(f"{team!r} is no team of the tree; jobs belong to {', '.join(sorted(leaves))}")
            if of - pools:
                missing = ", ".join(sorted(of - pools))
                raise ValueError(f"{team}: there is no pool {missing}; there are {', '.join(sorted(pools))}")
        return self

    def plan(self) -> Plan:
        """Return the plan to simulate."""
        pools = [snapshot.Pool(of.name, of.name, of.accelerator, of.slots, of.slots) for of in self.pools]
        settings = snapshot.Settings(**self.settings.model_dump())
        return Plan(self.tree(), pools, settings, max(1, int(self.checkpoint_minutes * 60)))

    def past(self) -> list[PastJob]:
        """Return the jobs to replay, or generated ones."""
        if self.generate is None:
            return [_past(number, job) for number, job in enumerate(self.jobs)]
        made = self.generate
        submitters = [
            Submitter(of.team, tuple(of.pools), of.weight, max(1, int(of.median_minutes * 60))) for of in made.teams
        ]
        return generate(
            submitters, days=made.days, jobs_per_day=made.jobs_per_day, largest=made.largest, seed=made.seed
        )


def _past(number: int, job: Job) -> PastJob:
    limit = None if job.limit_minutes is None else int(job.limit_minutes * 60)
    priority = {"low": -10, "normal": 0, "high": 10}[job.priority]
    lasts = max(1, int(job.minutes * 60))
    return PastJob(f"job-{number:07}", int(job.at_minutes * 60), job.team, job.pool, job.slots, lasts, limit, priority)
