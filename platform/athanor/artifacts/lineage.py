"""Lineage: what a stored thing is made of, and what was made from it, derived from the records that there are.

Nodes are data sets, their tokenised forms and data reports, jobs, checkpoints, exported models, registered versions,
aliases and downloads; an edge reads "target RELATION source", as in "art_1 made_by job_1". Nothing is stored for it.
The graph is read breadth first, one level after the other; how many statements a level needs does not depend on its
size. It ends at what other teams share: a version, its aliases and its export, not the job that made it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db.models import BooleanField, Count, ExpressionWrapper, Max, Q, QuerySet

from athanor.accounts.models import AuditEvent
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.artifacts import grants
from athanor.artifacts.manifest_digests import digest_of
from athanor.artifacts.models import (
    Artifact,
    Checkpoint,
    DataReport,
    Dataset,
    Deletion,
    ModelAlias,
    ModelImport,
    ModelVersion,
    PreparedDataset,
    ReplayedSegment,
)
from athanor.core.errors import FieldProblem, Invalid, NotFound
from athanor.jobs.models import Attempt, DatasetUse, Job, JobEvent
from athanor.jobs.selectors import based_on
from athanor.specs.v1 import JobSpec, base_of
from trainer.contract.recipe import dataset_recipes

DEFAULT_LIMIT, MAX_LIMIT = 200, 1000
DEFAULT_DEPTH, MAX_DEPTH = 20, 50
PREPARED_PREFIX = "prep_"
READS_ITS_DATA = Q(resolved_spec__export__isnull=True)
"""Condition of the jobs that read data and a base model for themselves: an export takes those of its checkpoint."""
MAX_ROW_DIGITS = 18  # those of a number of a row that fits the database's integers


class Kind(StrEnum):
    """What a node is."""

    DATASET = "dataset"
    PREPARED = "prepared"
    REPORT = "report"
    JOB = "job"
    CHECKPOINT = "checkpoint"
    MODEL = "model"
    VERSION = "version"
    ALIAS = "alias"
    DOWNLOAD = "download"
    EXTERNAL = "external"


class Relation(StrEnum):
    """What the target of an edge is to its source."""

    PREPARED_FROM = "prepared_from"
    TRAINED_ON = "trained_on"
    PREPARES = "prepares"
    EVALUATED_ON = "evaluated_on"
    REPLAYED_ON = "replayed_on"
    REPORT_ON = "report_on"
    REPORTS_ON = "reports_on"
    BASE = "base"
    EVALUATES = "evaluates"
    FORKED_FROM = "forked_from"
    REPLAYS = "replays"
    EXPORTS = "exports"
    MADE_BY = "made_by"
    VERSION_OF = "version_of"
    ALIAS_OF = "alias_of"
    DOWNLOAD_OF = "download_of"


class Direction(StrEnum):
    """Which way to read: what the root is made of, what was made from it, or both."""

    UP = "up"
    DOWN = "down"
    BOTH = "both"


class Cut(StrEnum):
    """A limit because of which a graph is incomplete."""

    NODES = "nodes"
    DEPTH = "depth"
    TEAM = "team"  # what a model of another team was made of


@dataclass(frozen=True)
class Node:
    """Something in the lineage. `made_by`: the id of the job that made it. `row`: its record, None if it has none."""

    kind: Kind
    id: str
    name: str
    state: str
    time: datetime | None = None
    made_by: str | None = None
    row: Any = field(default=None, repr=False, compare=False)

    @property
    def digest(self) -> str | None:
        """Return the SHA-256 that identifies the content, None if there is none on record."""
        return digest_of(self.row)


@dataclass(frozen=True)
class Edge:
    """`target` is RELATION `source`. `reference`: what the spec names the source by, if that is not its id."""

    source: str
    target: str
    relation: Relation
    reference: str = ""


@dataclass(frozen=True)
class Lineage:
    """The lineage of one object. `nodes` begin with it; `cut`: the limits because of which it may be incomplete."""

    root: str
    nodes: list[Node]
    edges: list[Edge]
    cut: list[Cut]


@dataclass
class _Graph:
    nodes: dict[str, Node]
    edges: dict[Edge, None]
    cut: set[Cut]


Found = Iterator[tuple[Node, Edge]]
Level = dict[Kind, list[Node]]


def lineage_of(principal: Principal, root_id: str, direction: Direction, limit: int, depth: int) -> Lineage:
    """Return the lineage of what has this id. `limit` (of nodes, with the root) and `depth` are for each direction.

    Raise NotFound for what is in none of the caller's teams, and Invalid for what is no id of a node.
    """
    reader = _Reader(principal, limit)
    root = reader.root(root_id)
    graph = _Graph({root.id: root}, {}, set())
    for wanted, expand in ((Direction.UP, reader.sources), (Direction.DOWN, reader.products)):
        if direction in (wanted, Direction.BOTH):
            part = _walk(root, expand, limit, depth)
            graph.nodes |= part.nodes
            graph.edges |= part.edges
            graph.cut |= part.cut
    graph.cut |= reader.cut
    return Lineage(root.id, list(graph.nodes.values()), list(graph.edges), sorted(graph.cut))


def _walk(root: Node, expand: Callable[[Level], Found], limit: int, depth: int) -> _Graph:
    """Expand breadth first. A level below the last one is read only to know whether there is more."""
    graph = _Graph({root.id: root}, {}, set())
    level = [root]
    for number in range(depth + 1):
        by_kind: Level = defaultdict(list)
        for node in level:
            by_kind[node.kind].append(node)
        level = []
        for node, edge in expand(by_kind):
            if node.id not in graph.nodes:
                if number == depth or len(graph.nodes) == limit:
                    graph.cut.add(Cut.DEPTH if number == depth else Cut.NODES)
                    continue
                graph.nodes[node.id] = node
                level.append(node)
            graph.edges[edge] = None
        if not level:
            break
    return graph


class _Reader:
    """Reads the neighbours of a level, in the caller's teams only. Each statement returns at most `limit` rows.

    `cut`: NODES if a statement had more, TEAM if something is of another team.
    """

    def __init__(self, principal: Principal, limit: int) -> None:
        self.cut: set[Cut] = set()
        self._limit = limit
        self._teams = principal.team_ids
        self._audited_teams = [team for team in self._teams if principal.may(Permission.READ_AUDIT, team)]

    def root(self, identifier: str) -> Node:
        """Return the node with this id. Raise NotFound, or Invalid for what is no id of a node."""
        prefix = identifier.partition("_")[0]
        model, at, which = identifier.partition("@")
        if prefix == "mdl" and at:
            return self._registered(identifier, model, which)
        number = identifier.removeprefix(PREPARED_PREFIX)
        finders: dict[str, Callable[[], Iterable[Node]]] = {
            "job": lambda: map(_job, self._jobs(pk=identifier)),
            "art": lambda: map(_artifact, self._artifacts(pk=identifier)),
            "ckp": lambda: map(_checkpoint, self._checkpoints(pk=identifier)),
            "dset": lambda: map(_dataset, self._datasets(pk=identifier)),
            "prep": lambda: map(_prepared, self._prepared(pk=int(number)) if _is_number(number) else []),
            "rep": lambda: map(_report, self._reports(pk=identifier)),
        }
        if prefix not in finders:
            detail = f"{identifier[:100]!r} is no id of a data set, job, checkpoint, model, version or alias"
            remedy = (
                "give an id that begins with dset_, prep_, rep_, job_, ckp_ or art_, or mdl_...@NUMBER or mdl_...@ALIAS"
            )
            problem = FieldProblem("/of", "unknown_kind", detail)
            raise Invalid("invalid_parameter", detail, remedy=remedy, problems=(problem,))
        found = next(iter(finders[prefix]()), None)
        if found is None:
            raise NotFound("object", identifier)
        return found

    def sources(self, level: Level) -> Found:
        """Yield what the nodes of a level are made of."""
        if level[Kind.ALIAS]:
            named = {node.row.version_id: node for node in level[Kind.ALIAS]}
            for version in map(_version, self._versions(pk__in=named)):
                yield version, Edge(version.id, named[version.row.pk].id, Relation.ALIAS_OF)
        if level[Kind.VERSION]:
            versions = {node.row.artifact_id: node for node in level[Kind.VERSION]}
            for artifact in map(_artifact, self._artifacts(pk__in=versions)):
                yield artifact, Edge(artifact.id, versions[artifact.id].id, Relation.VERSION_OF)
        yield from self._makers([*level[Kind.MODEL], *level[Kind.CHECKPOINT], *level[Kind.REPORT]])
        if level[Kind.REPORT]:
            of = {node.row.dataset_id for node in level[Kind.REPORT]}
            reported = {row.id: _dataset(row) for row in self._datasets(pk__in=of)}
            for node in level[Kind.REPORT]:
                if node.row.dataset_id in reported:
                    yield reported[node.row.dataset_id], Edge(node.row.dataset_id, node.id, Relation.REPORT_ON)
        yield from self._sources_of_prepared(level[Kind.PREPARED])
        if level[Kind.JOB]:
            yield from self._sources_of_jobs([node for node in level[Kind.JOB] if node.row is not None])

    def products(self, level: Level) -> Found:
        """Yield what was made from the nodes of a level."""
        if level[Kind.DATASET]:
            yield from self._products_of_datasets({node.id: node for node in level[Kind.DATASET]})
        if level[Kind.PREPARED]:
            datasets = {node.row.dataset_id for node in level[Kind.PREPARED]}
            jobs = self._cut(self._users_of(datasets))
            by_id = {job.id: _job(job) for job in jobs}
            yield from ((by_id[edge.target], edge) for edge in self._readings(jobs, level[Kind.PREPARED]))
        if level[Kind.JOB]:
            yield from self._products_of_jobs([node for node in level[Kind.JOB] if node.row is not None])
        if level[Kind.MODEL]:
            yield from self._products_of_artifacts({node.id: node for node in level[Kind.MODEL]})
        if level[Kind.CHECKPOINT]:
            yield from self._exports({node.id: node.row.job_id for node in level[Kind.CHECKPOINT]})
        if level[Kind.VERSION]:
            numbers = {node.row.pk: node for node in level[Kind.VERSION] if isinstance(node.row, ModelVersion)}
            for alias in self._aliases(version__in=numbers):
                yield _alias(alias), Edge(numbers[alias.version_id].id, _alias(alias).id, Relation.ALIAS_OF)
        yield from self._downloads([node.id for node in [*level[Kind.MODEL], *level[Kind.CHECKPOINT]]])

    def _registered(self, identifier: str, model: str, which: str) -> Node:
        if _is_number(which):
            versions = self._versions(model=model, number=int(which)) if len(which) < 10 else []
            found = next((_version(row) for row in versions), None)
        else:
            found = next((_alias(row) for row in self._aliases(model=model, name=which)), None)
        if found is None:
            raise NotFound("version", identifier)
        return found

    def _makers(self, made: list[Node]) -> Found:
        if not made:
            return
        jobs = {job.id: _job(job) for job in self._jobs(pk__in={node.made_by for node in made})}
        for node in made:
            if node.made_by in jobs:
                yield jobs[node.made_by], Edge(node.made_by, node.id, Relation.MADE_BY)
            elif node.kind is Kind.MODEL and (node.row is None or node.row.job_id):  # not an import
                self.cut.add(Cut.TEAM)

    def _sources_of_prepared(self, forms: list[Node]) -> Found:
        """Yield the data sets of tokenised forms, and the jobs that only prepared them.

        A training job that has prepared its data itself is what was made from the form: `Node.made_by` names it.
        """
        if not forms:
            return
        datasets = {row.id: _dataset(row) for row in self._datasets(pk__in={node.row.dataset_id for node in forms})}
        for node in forms:
            if node.row.dataset_id in datasets:
                yield datasets[node.row.dataset_id], Edge(node.row.dataset_id, node.id, Relation.PREPARED_FROM)
        jobs = {job.id: job for job in self._jobs(pk__in={node.made_by for node in forms})}
        for node in forms:
            job = jobs.get(node.made_by or "")
            if job is not None and job.resolved_spec["training"] is None:
                yield _job(job), Edge(job.id, node.id, Relation.MADE_BY)

    def _sources_of_jobs(self, nodes: list[Node]) -> Found:
        exported = {node.id: export["checkpoint"] for node in nodes if (export := node.row.resolved_spec.get("export"))}
        found = {row.id: _checkpoint(row) for row in self._checkpoints(pk__in=exported.values())} if exported else {}
        for job_id, each in exported.items():
            if each in found:
                yield found[each], Edge(each, job_id, Relation.EXPORTS)
        readers = [node for node in nodes if node.id not in exported]  # of an export, its checkpoint leads to the rest
        ids = {each for node in readers for each in node.row.dataset_ids}
        datasets = {row.id: _dataset(row) for row in self._datasets(pk__in=ids)}
        for node in readers:
            for each in dict.fromkeys(node.row.dataset_ids):
                if each in datasets:
                    yield datasets[each], _use_of(datasets[each], node.row)
        forms = [_prepared(row) for row in self._prepared(dataset__in=ids)]
        by_id = {form.id: form for form in forms}
        yield from ((by_id[edge.source], edge) for edge in self._readings([node.row for node in readers], forms))
        yield from self._bases(readers)
        forks = {node.id: node.row.forked_from_id for node in nodes if node.row.forked_from_id}
        if forks:
            visible = {job.id: _job(job) for job in self._jobs(pk__in=set(forks.values()))}
            for fork, origin in forks.items():
                # Of another team, a job is known by its id alone, as the fork's own record shows it.
                yield (
                    visible.get(origin, Node(Kind.JOB, origin, "", "hidden")),
                    Edge(origin, fork, Relation.FORKED_FROM),
                )
        yield from self._replayed(nodes)

    def _replayed(self, nodes: list[Node]) -> Found:
        """Yield the jobs that jobs replay."""
        replays = {node.id: replay["job"] for node in nodes if (replay := node.row.resolved_spec.get("replay"))}
        found = {job.id: _job(job) for job in self._jobs(pk__in=set(replays.values()))} if replays else {}
        for replay, replayed in replays.items():
            if replayed in found:
                yield found[replayed], Edge(replayed, replay, Relation.REPLAYS)

    def _bases(self, nodes: list[Node]) -> Found:
        bases = {node.id: base for node in nodes if (base := base_of(node.row.resolved_spec))}
        models = [base.removeprefix("model:") for base in bases.values() if base.startswith("model:")]
        found = {f"model:{row.id}": _artifact(row) for row in self._artifacts(pk__in=models)} if models else {}
        for node in nodes:
            base = bases.get(node.id, "")
            if base.startswith("s3://"):
                yield Node(Kind.EXTERNAL, base, base, "external"), Edge(base, node.id, _relation_to_base(node.row))
            elif base:
                identifier = base.removeprefix("model:")
                if base not in found:  # of another team, which does not share it any more: known by its id alone
                    self.cut.add(Cut.TEAM)
                source = found.get(base, Node(Kind.MODEL, identifier, "", "hidden"))
                yield source, Edge(identifier, node.id, _relation_to_base(node.row), _reference(node.row))

    def _products_of_datasets(self, nodes: dict[str, Node]) -> Found:
        for row in self._prepared(dataset__in=nodes):
            yield _prepared(row), Edge(row.dataset_id, _prepared(row).id, Relation.PREPARED_FROM)
        for report in self._reports(dataset__in=nodes):
            yield _report(report), Edge(report.dataset_id, report.id, Relation.REPORT_ON)
        for job in self._cut(self._users_of(nodes)):
            for each in dict.fromkeys(job.dataset_ids):
                if each in nodes:
                    yield _job(job), _use_of(nodes[each], job)

    def _products_of_jobs(self, nodes: list[Node]) -> Found:
        ids = [node.id for node in nodes]
        for artifact in self._artifacts(job__in=ids):
            yield _artifact(artifact), Edge(str(artifact.job_id), artifact.id, Relation.MADE_BY)
        preparing = [node.id for node in nodes if node.row.resolved_spec["training"] is None]
        if preparing:
            for form in self._prepared(job__in=preparing):
                yield _prepared(form), Edge(form.job_id, _prepared(form).id, Relation.MADE_BY)
            for report in self._reports(job__in=preparing):
                yield _report(report), Edge(report.job_id, report.id, Relation.MADE_BY)
        for fork in self._jobs(forked_from__in=ids):
            yield _job(fork), Edge(str(fork.forked_from_id), fork.id, Relation.FORKED_FROM)
        for replay in self._jobs(pk__in=ReplayedSegment.objects.filter(replayed__in=ids).values("job")):
            yield _job(replay), Edge(replay.resolved_spec["replay"]["job"], replay.id, Relation.REPLAYS)
        exported = {job.resolved_spec["export"]["checkpoint"] for job in self._jobs(resolved_spec__export__job__in=ids)}
        stored = Q(retired_at=None) | Q(deletion__isnull=False) | Q(pk__in=exported)
        for checkpoint in self._checkpoints(stored, job__in=ids):
            yield _checkpoint(checkpoint), Edge(checkpoint.job_id, checkpoint.id, Relation.MADE_BY)

    def _exports(self, checkpoints: Mapping[str, str]) -> Found:
        """Yield the jobs that export checkpoints. `checkpoints`: id of each to that of the job that saved it."""
        for job in self._jobs(resolved_spec__export__job__in=set(checkpoints.values())):
            exported = job.resolved_spec["export"]["checkpoint"]
            if exported in checkpoints:
                yield _job(job), Edge(exported, job.id, Relation.EXPORTS)

    def _products_of_artifacts(self, nodes: dict[str, Node]) -> Found:
        known = set()
        for version in self._versions(artifact__in=nodes):
            known.add(_version(version).id)
            yield _version(version), Edge(version.artifact_id, _version(version).id, Relation.VERSION_OF)
        registrations = JobEvent.objects.filter(
            job__in={node.made_by for node in nodes.values()}, type="model.registered", data__artifact__in=list(nodes)
        )
        for event in self._cut(registrations.order_by("-time")):
            node = _deleted_version(event, nodes[event.data["artifact"]].row)
            if node.id not in known:
                yield node, Edge(event.data["artifact"], node.id, Relation.VERSION_OF)
        names = [f"model:{each}" for each in nodes]
        for job in self._jobs(based_on(names) & READS_ITS_DATA):
            base = base_of(job.resolved_spec).removeprefix("model:")
            yield _job(job), Edge(base, job.id, _relation_to_base(job), _reference(job))

    def _downloads(self, ids: list[str]) -> Found:
        """Yield who downloaded what, from the audit trail, for callers who may read it."""
        if not ids or not self._audited_teams:
            return
        rows = AuditEvent.objects.filter(
            team_id__in=self._audited_teams, target_id__in=ids, action__in=["artifact.download", "checkpoint.download"]
        )
        counted = rows.order_by().values("target_id", "actor").annotate(times=Count("seq"), newest=Max("time"))
        for row in self._cut(counted.order_by("-newest")):
            identifier = f"{row['target_id']}:{row['actor']}"
            times = "once" if row["times"] == 1 else f"{row['times']} times"
            node = Node(Kind.DOWNLOAD, identifier, f"{row['actor']}, {times}", "recorded", row["newest"])
            yield node, Edge(row["target_id"], identifier, Relation.DOWNLOAD_OF)

    def _readings(self, jobs: list[Job], forms: list[Node]) -> Iterator[Edge]:
        """Yield which training jobs used which tokenised forms: those by their recipe, usable while they ran."""
        training = [job for job in jobs if _use(job) is Relation.TRAINED_ON]
        if not training or not forms:
            return
        first = dict(Attempt.objects.filter(job__in=training, number=1).values_list("job_id", "created_at"))
        by_recipe: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for form in forms:
            by_recipe[form.row.dataset_id, form.row.recipe].append(form)
        for job in training:
            spec = JobSpec.model_validate(job.resolved_spec)
            recipes = dataset_recipes(spec.data.parts, spec.tokenizer, job.dataset_ids)
            for key in dict.fromkeys(zip(job.dataset_ids, recipes, strict=True)):
                for form in by_recipe.get(key, []):
                    if job.id in first and _was_usable(form.row, first[job.id], job.finished_at):
                        yield Edge(form.id, job.id, Relation.TRAINED_ON)

    def _users_of(self, datasets: Iterable[str]) -> QuerySet[Job]:
        """Return the jobs on data sets. Those on the builtin text are in no index of their own."""
        ids = list(datasets)
        indexed = DatasetUse.objects.filter(dataset_id__in=ids).values("job_id")
        builtin = Dataset.objects.filter(pk__in=ids, origin=Dataset.Origin.BUILTIN)
        chosen = Q(pk__in=indexed)
        for identifier in builtin.values_list("pk", flat=True):
            chosen |= Q(dataset_id=identifier) | Q(more_dataset_ids__contains=[identifier])
        return self._jobs_of_teams().filter(chosen & READS_ITS_DATA)

    def _jobs_of_teams(self) -> QuerySet[Job]:
        return Job.objects.filter(team_id__in=self._teams).order_by("-id")

    def _jobs(self, *conditions: Q, **chosen: Any) -> list[Job]:
        return self._cut(self._jobs_of_teams().filter(*conditions, **chosen))

    def _artifacts(self, **chosen: Any) -> list[Artifact]:
        own = Q(job__in=Job.objects.filter(team_id__in=self._teams).values("pk"))
        own |= Q(pk__in=ModelImport.objects.filter(team_id__in=self._teams).values("pk"))
        shared = Q(pk__in=ModelVersion.objects.filter(self._shared("model__")).values("artifact_id"))
        rows = Artifact.objects.filter(own | shared, kind=Artifact.Kind.MODEL, **chosen)
        rows = rows.annotate(is_own=ExpressionWrapper(own, BooleanField()))  # type: ignore[no-redef] # declared to read
        return self._cut(rows.select_related("deletion").order_by("-id"))

    def _shared(self, prefix: str) -> Q:
        return grants.is_granted_to(self._teams, prefix)

    def _checkpoints(self, *conditions: Q, **chosen: Any) -> list[Checkpoint]:
        rows = Checkpoint.objects.filter(*conditions, job__team_id__in=self._teams, **chosen)
        return self._cut(rows.select_related("deletion").order_by("-id"))

    def _datasets(self, **chosen: Any) -> list[Dataset]:
        rows = Dataset.objects.filter(team_id__in=self._teams, **chosen)
        return self._cut(rows.select_related("deletion").order_by("-id"))

    def _prepared(self, **chosen: Any) -> list[PreparedDataset]:
        rows = PreparedDataset.objects.filter(dataset__team_id__in=self._teams, **chosen)
        return self._cut(rows.select_related("dataset__deletion").order_by("-id"))

    def _reports(self, **chosen: Any) -> list[DataReport]:
        rows = DataReport.objects.filter(dataset__team_id__in=self._teams, **chosen)
        return self._cut(rows.select_related("dataset__deletion").order_by("-id"))

    def _versions(self, **chosen: Any) -> list[ModelVersion]:
        rows = ModelVersion.objects.filter(Q(model__team_id__in=self._teams) | self._shared("model__"), **chosen)
        return self._cut(rows.select_related("model").order_by("-id"))

    def _aliases(self, **chosen: Any) -> list[ModelAlias]:
        rows = ModelAlias.objects.filter(Q(model__team_id__in=self._teams) | self._shared("model__"), **chosen)
        return self._cut(rows.select_related("model").order_by("-id"))

    def _cut(self, rows: Any) -> list[Any]:
        """Return the rows up to the limit, and note whether there are more."""
        found = list(rows[: self._limit + 1])
        if len(found) > self._limit:
            self.cut.add(Cut.NODES)
        return found[: self._limit]


def _job(row: Job) -> Node:
    return Node(Kind.JOB, row.id, row.name, row.status, row.created_at, row=row)


def _artifact(row: Artifact) -> Node:
    maker = row.job_id if row.is_own else None
    stored = "stored" if row.job_id else "imported"
    return Node(Kind.MODEL, row.id, row.name, _state(row.deletion, stored), row.created_at, maker, row)


def _checkpoint(row: Checkpoint) -> Node:
    state = row.state.value if row.retired_at is None else "retired"
    return Node(
        Kind.CHECKPOINT, row.id, f"step {row.step}", _state(row.deletion, state), row.created_at, row.job_id, row
    )


def _dataset(row: Dataset) -> Node:
    stored = {"sealed": "stored", "builtin": "builtin", "plain": "external"}[row.origin]
    return Node(Kind.DATASET, row.id, _dataset_name(row), _state(row.deletion, stored), row.created_at, row=row)


def _dataset_name(row: Dataset) -> str:
    """Return the name of a data set, of an upload with the number of the version; of a deleted one, that it had."""
    name = row.deletion.name if row.deletion else row.name
    return f"{name}@{row.version}" if row.origin == Dataset.Origin.SEALED else name


def _prepared(row: PreparedDataset) -> Node:
    state = _state(row.dataset.deletion, "stored" if row.forgotten_at is None else "discarded")
    name = f"{_dataset_name(row.dataset)}, tokenised"
    return Node(Kind.PREPARED, f"{PREPARED_PREFIX}{row.pk}", name, state, row.created_at, row.job_id, row)


def _report(row: DataReport) -> Node:
    state = _state(row.dataset.deletion, "stored")
    return Node(Kind.REPORT, row.id, _dataset_name(row.dataset), state, row.created_at, row.job_id, row)


def _version(row: ModelVersion) -> Node:
    return Node(Kind.VERSION, f"{row.model_id}@{row.number}", str(row), "registered", row.created_at, row=row)


def _deleted_version(event: JobEvent, artifact: Artifact) -> Node:
    """Return the version that an event has registered: its record is gone, its digest is that of the artifact."""
    facts = event.data
    name = f"{facts['name']}@{facts['version']}"
    return Node(Kind.VERSION, f"{facts['model']}@{facts['version']}", name, "deleted", event.time, row=artifact)


def _alias(row: ModelAlias) -> Node:
    return Node(
        Kind.ALIAS, f"{row.model_id}@{row.name}", f"{row.model.name}@{row.name}", "current", row.moved_at, row=row
    )


def _state(deletion: Deletion | None, stored: str) -> str:
    if deletion is None:
        return stored
    return "deleted" if deletion.state == "pending" else "purged"


def _use(job: Job) -> Relation:
    if job.resolved_spec["training"] is None:
        return Relation.REPORTS_ON if (job.resolved_spec["prepare"] or {}).get("report") else Relation.PREPARES
    if job.resolved_spec.get("replay"):
        return Relation.REPLAYED_ON
    return Relation.EVALUATED_ON if job.resolved_spec.get("evaluation") else Relation.TRAINED_ON


def _use_of(dataset: Node, job: Job) -> Edge:
    """Return that a job uses a data set. `reference`: the alias by which its spec names the version, if it does."""
    task = job.spec.get("training") or job.spec.get("prepare") or {}
    data = task.get("data") or {}
    parts = (job.spec.get("evaluation") or {}).get("tasks") or data.get("mixture") or [data]
    written = dict(zip(job.dataset_ids, (part.get("source") or "" for part in parts), strict=False)).get(dataset.id, "")
    is_alias = "@" in written and written.startswith("dataset:") and written != f"dataset:{dataset.name}"
    return Edge(dataset.id, job.id, _use(job), written if is_alias else "")


def _relation_to_base(job: Job) -> Relation:
    return Relation.EVALUATES if job.resolved_spec.get("evaluation") else Relation.BASE


def _was_usable(form: PreparedDataset, start: datetime, end: datetime | None) -> bool:
    """Return whether attempts between these times could be given a tokenised form."""
    began_in_time = end is None or form.created_at <= end
    return began_in_time and (form.forgotten_at is None or form.forgotten_at >= start)


def _reference(job: Job) -> str:
    """Return by what the job's spec named its base model, such as `model:bot@production`; empty if by its id."""
    evaluation = job.spec.get("evaluation") or {}
    written = str(evaluation.get("model") or base_of(job.spec))
    return "" if written == base_of(job.resolved_spec) else written


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_ROW_DIGITS
