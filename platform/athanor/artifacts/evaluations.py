"""Results of evaluation jobs: what an attempt registers, and whether a version meets the requirements of a promotion.

A result belongs to the model that the job's resolved spec names: an attempt cannot name another one.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction

from athanor.accounts.models import Team
from athanor.accounts.selectors import everything_of
from athanor.artifacts import grants, paired_results
from athanor.artifacts.lineage import MAX_DEPTH, MAX_LIMIT, Direction, Relation, lineage_of
from athanor.artifacts.models import Artifact, EvaluationResult, ModelVersion, of_teams
from athanor.artifacts.paired_results import PairedInterval
from athanor.core.errors import Conflict, FieldProblem, Invalid
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.specs.v1 import JobSpec
from trainer.contract import item_scores
from trainer.contract.evaluation import (
    AT_MOST_ONE,
    LOWER_IS_BETTER,
    METRICS,
    EvaluationFigure,
    EvaluationResults,
)
from trainer.contract.item_scores import Columns

REQUIREMENT = re.compile(r"(?:([a-z][a-z0-9_-]*)\.)?([a-z][a-z0-9_]*)\s*(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
SIGNIFICANCE = 0.05
MAX_COMPARED_ITEMS = 1_000_000
"""Results of items that a comparison reads, which takes about a second."""
ALL_METRICS = tuple(metric for metrics in METRICS.values() for metric in metrics)


def register(attempt: Attempt, results: EvaluationResults) -> list[EvaluationResult]:
    """Store the results of an evaluation job with the model that its spec names. Idempotent: the first ones count.

    Raise Conflict for a job that does not evaluate, Invalid for figures that are not those of its tasks.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        known = list(EvaluationResult.objects.filter(job=job))
        if known:
            return known
        spec = JobSpec.model_validate(job.resolved_spec)
        if spec.evaluation is None or spec.training is None:
            raise Conflict(
                "not_an_evaluation", f"{job.id} does not evaluate a model", remedy="submit a job with `evaluation`"
            )
        _check(spec, results)
        base = spec.training.model.base or ""
        identifier = base.removeprefix("model:")
        own = Artifact.objects.filter(of_teams([job.team_id]), pk=identifier).first()
        artifact = own or grants.artifact_for([job.team_id], identifier)
        datasets = dict(zip((task.name for task in spec.evaluation.tasks), job.dataset_ids, strict=True))
        sources = {task.name: task.source for task in spec.evaluation.tasks}
        trained_on = trained_on_ids(job, artifact) if artifact is not None else None
        rows = EvaluationResult.objects.bulk_create(
            EvaluationResult(
                team_id=job.team_id,
                job=job,
                attempt=attempt,
                artifact=artifact,
                base=base,
                source=sources[figure.name],
                dataset_id=datasets[figure.name],
                trained_on=None if trained_on is None else trained_on.get(datasets[figure.name], []),
                **figure.model_dump(exclude={"items"}),
                items=None if figure.items is None else item_scores.decode(figure.items),
            )
            for figure in results.figures
        )
        found = sorted(set(trained_on or ()) & set(datasets.values()))
        facts = {"artifact": artifact.id if artifact else None, "results": len(rows), "trained_on": found}
        events.append(job, "evaluation.registered", actor=attempt.id, data=facts)
        job.save(update_fields=["event_seq", "updated_at"])
    return rows


def _check(spec: JobSpec, results: EvaluationResults) -> None:
    assert spec.evaluation is not None, "of an evaluation job"
    metrics = {task.name: task.metrics for task in spec.evaluation.tasks}
    problems = []
    for number, figure in enumerate(results.figures):
        detail = _problem(metrics, figure)
        if detail:
            problems.append(FieldProblem(f"/figures/{number}", "invalid_result", detail))
    keys = [(figure.name, figure.metric) for figure in results.figures]
    missing = sorted(set(metrics) - {name for name, _ in keys})
    if len(set(keys)) < len(keys):
        problems.append(FieldProblem("/figures", "invalid_result", "a metric of an evaluation occurs twice"))
    if missing:
        problems.append(FieldProblem("/figures", "invalid_result", f"no result of {', '.join(missing)}"))
    if problems:
        raise Invalid(
            "invalid_results", problems[0].detail, remedy="register all results of the job's tasks, and no others",
            problems=tuple(problems),
        )  # fmt: skip


def _problem(metrics: Mapping[str, tuple[str, ...]], figure: EvaluationFigure) -> str:
    """Return why a figure is no result of these tasks; empty if it is one."""
    if figure.metric not in metrics.get(figure.name, ()):
        return f"{figure.name}.{figure.metric} is no metric of the job's tasks"
    least, most = 0.0, 1.0 if figure.metric in AT_MOST_ONE else float("inf")
    if not least <= figure.value <= most:
        return f"{figure.name}.{figure.metric} is {figure.value}, which is not between {least:g} and {most:g}"
    if figure.items is not None:
        detail = _items_problem(figure, figure.items)
        if detail:
            return f"the items of {figure.name}.{figure.metric} cannot be stored: {detail}"
    if figure.low is not None and figure.high is not None and not figure.low <= figure.value <= figure.high:
        return f"{figure.name}.{figure.metric} {figure.value} is outside its interval {figure.low} to {figure.high}"
    return ""


def _items_problem(figure: EvaluationFigure, items: str) -> str:
    if figure.n > item_scores.MAX_ITEMS:
        return f"there are {figure.n}, and at most {item_scores.MAX_ITEMS} are stored"
    try:
        columns = item_scores.unpack(figure.metric, figure.n, item_scores.decode(items))
    except ValueError as error:
        return str(error)
    return item_scores.problem(figure.metric, figure.value, columns)


def trained_on_ids(job: Job, artifact: Artifact) -> dict[str, list[str]] | None:
    """Return the jobs, by data set, that trained a model or one that it started from. None if the lineage cannot be
    read completely: it is too long, or leads to a model that another team shares."""
    team = Team.objects.get(pk=job.team_id)
    found = lineage_of(everything_of(team, job.created_by), artifact.id, Direction.UP, MAX_LIMIT, MAX_DEPTH)
    if found.cut:
        return None
    jobs: dict[str, list[str]] = {}
    for edge in found.edges:
        if edge.relation is Relation.TRAINED_ON:
            jobs.setdefault(edge.source, []).append(edge.target)
    return jobs


@dataclass(frozen=True)
class Difference:
    """The difference of two results, with its 95 % confidence interval; None if one of them has none. `is_paired`: it
    is computed from the results of the same items. `p_value`: of McNemar's exact test, for paired scores of 0 and 1."""

    value: float
    low: float | None
    high: float | None
    is_better: bool
    is_paired: bool = False
    p_value: float | None = None

    @property
    def is_significant(self) -> bool | None:
        """Return whether the p-value is below 0.05, or without one, whether the interval does not contain 0; None
        without an interval."""
        if self.p_value is not None:
            return self.p_value < SIGNIFICANCE
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class ComparedResult:
    """A result of a version, and its difference to the version that is compared with, if there is one."""

    version: ModelVersion
    result: EvaluationResult
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """The newest results of versions, by evaluation and metric, newest version first."""

    against: ModelVersion | None
    results: list[ComparedResult]


def difference(result: EvaluationResult, other: EvaluationResult) -> Difference | None:
    """Return `result` minus `other`; None unless they are of as many items of the same data set.

    The interval is that of Newcombe 1998, method 10, from the intervals of both values a and b:
    (a - b) - sqrt((a - l_a)^2 + (u_b - b)^2) to (a - b) + sqrt((u_a - a)^2 + (b - l_b)^2). For symmetrical intervals
    it is the normal one. Both results are taken as independent; on the same items they usually are positively
    correlated, and the interval is too wide rather than too narrow. `paired` has a better one.
    """
    if result.dataset_id is None or (result.dataset_id, result.n) != (other.dataset_id, other.n):
        return None
    value = result.value - other.value
    is_better = value < 0 if result.metric in LOWER_IS_BETTER else value > 0
    if result.low is None or result.high is None or other.low is None or other.high is None:
        return Difference(value, None, None, is_better)
    below = math.hypot(result.value - result.low, other.high - other.value)
    above = math.hypot(result.high - result.value, other.value - other.low)
    return Difference(value, value - below, value + above, is_better)


def paired(found: Difference, result: EvaluationResult, other: EvaluationResult, items: "Items") -> Difference:
    """Return the difference of two results of the same items from the results of each item, if both are stored."""
    columns, others = items.of(result), items.of(other)
    if columns is None or others is None:
        return found
    both, values = (columns, others), (result.value, other.value)
    interval: PairedInterval | None = None
    if not paired_results.is_binary(result.metric):
        interval = paired_results.ratio_interval(both, values)
    elif None not in (result.low, other.low, result.high, other.high):
        assert result.low is not None and other.low is not None and result.high is not None and other.high is not None
        interval = paired_results.binary_interval(both, values, (result.low, other.low), (result.high, other.high))
    if interval is None:
        return found
    return replace(found, low=interval.low, high=interval.high, p_value=interval.p_value, is_paired=True)


class Items:
    """Reads the results of items, one result at a time and at most MAX_COMPARED_ITEMS in all."""

    def __init__(self, against: Iterable[EvaluationResult]) -> None:
        """Read those of the version that others are compared with."""
        self._known: dict[int, Columns | None] = {}
        self._left = MAX_COMPARED_ITEMS
        for row in against:
            self._known[row.pk] = self._read(row)

    def of(self, row: EvaluationResult) -> Columns | None:
        """Return the columns of a result; None if they are not stored, or too many were read before."""
        return self._known[row.pk] if row.pk in self._known else self._read(row)

    def _read(self, row: EvaluationResult) -> Columns | None:
        if self._left < row.n:
            return None
        stored = EvaluationResult.objects.filter(pk=row.pk).values_list("items", flat=True).first()
        if stored is None:
            return None
        self._left -= row.n
        return item_scores.unpack(row.metric, row.n, bytes(stored))


def compare(versions: Iterable[ModelVersion], against: ModelVersion | None) -> Comparison:
    """Return the results of versions, compared with those of one version: paired where the results of the items are
    stored, for the first versions if there are more than MAX_COMPARED_ITEMS."""
    others = {(row.name, row.metric): row for row in against.evaluations} if against is not None else {}
    items = Items(others.values())
    found = []
    for version in versions:
        for row in version.evaluations:
            other = None if version == against else others.get((row.name, row.metric))
            change = None if other is None else difference(row, other)
            if change is not None and other is not None:
                change = paired(change, row, other, items)
            found.append(ComparedResult(version, row, change))
    found.sort(key=lambda each: (each.result.name, each.result.metric, -each.version.number))
    return Comparison(against, found)


@dataclass(frozen=True)
class Requirement:
    """What a version must meet to be promoted, such as `facts.accuracy>=0.8`. `name`: of the evaluation, or empty."""

    text: str
    name: str
    metric: str
    comparison: str
    limit: float

    @classmethod
    def parse(cls, text: str, number: int = 0) -> "Requirement":
        """Return the requirement that is written so. Raises Invalid."""
        found = REQUIREMENT.fullmatch(text.strip())
        if found is None or found[2] not in ALL_METRICS:
            what = f"there is no metric {found[2]!r}" if found else "it is not [EVALUATION.]METRIC>=NUMBER"
            detail = f"the requirement {text[:100]!r} cannot be used: {what}"
            remedy = f"write for example accuracy>=0.8 or held-out.loss<=2.1; the metrics are {', '.join(ALL_METRICS)}"
            problem = FieldProblem(f"/require/{number}", "invalid_requirement", detail)
            raise Invalid("invalid_requirement", detail, remedy=remedy, problems=(problem,))
        return cls(text.strip(), found[1] or "", found[2], found[3], float(found[4]))

    def is_met_by(self, value: float) -> bool:
        """Return whether a value meets it."""
        return bool(COMPARE[self.comparison](value, self.limit))


def check_requirements(version: ModelVersion, requirements: Iterable[Requirement]) -> list[dict[str, Any]]:
    """Return the facts of each requirement and of the version's newest result that meets it.

    Raise Conflict for the first that is not met, or of which the version has no result.
    """
    rows = version.evaluations
    facts = []
    for requirement in requirements:
        row = _result_for(version, requirement, rows)
        if not requirement.is_met_by(row.value):
            raise Conflict(
                "requirement_not_met",
                f"{version} does not meet {requirement.text}: {row.name}.{row.metric} is {described(row)}, computed by "
                f"{row.job_id}",
                remedy=f"promote another version; `athanor model evaluations {version.model.name}` compares them",
            )
        facts.append(
            {
                "requirement": requirement.text, "evaluation": row.name, "metric": row.metric, "value": row.value,
                "n": row.n, "low": row.low, "high": row.high, "job": row.job_id,
            }
        )  # fmt: skip
    return facts


def described(row: EvaluationResult) -> str:
    """Return a result as text, such as `0.75 (n 40, 95 % interval 0.598 to 0.858)`."""
    interval = f"95 % interval {row.low:.4g} to {row.high:.4g}" if row.low is not None else "no interval"
    return f"{row.value:.4g} (n {row.n}, {interval})"


def _result_for(version: ModelVersion, requirement: Requirement, rows: list[EvaluationResult]) -> EvaluationResult:
    """Return the version's result that a requirement is about. Raise Conflict unless there is exactly one."""
    of_metric = [row for row in rows if row.metric == requirement.metric]
    found = [row for row in of_metric if requirement.name in ("", row.name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{row.name}.{row.metric}" for row in sorted(found, key=lambda row: row.name))
        raise Conflict(
            "requirement_ambiguous",
            f"{version} has several results of {requirement.metric}: {names}",
            remedy="name the evaluation in the requirement: "
            f"{found[0].name}.{requirement.metric}{requirement.comparison}{requirement.limit:g}",
        )
    wanted = f"{requirement.name}.{requirement.metric}" if requirement.name else requirement.metric
    model = version.model
    others = EvaluationResult.objects.filter(
        team_id=model.team_id, artifact__versions__model=model, metric=requirement.metric
    )
    if requirement.name:
        others = others.filter(name=requirement.name)
    numbers = sorted(set(others.values_list("artifact__versions__number", flat=True)) - {version.number, None})
    has = f"; it has {', '.join(sorted(f'{row.name}.{row.metric}' for row in rows))}" if rows else ""
    elsewhere = f"; version {numbers[-1]} has one, which says nothing of this version" if numbers else ""
    raise Conflict(
        "not_evaluated",
        f"{version} has no result of {wanted}{has}{elsewhere}",
        remedy=f"run an evaluation job with `evaluation.model: model:{version}` and a task that gives {wanted}, then "
        "promote it",
    )
