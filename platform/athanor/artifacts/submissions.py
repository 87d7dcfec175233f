"""Validate job specs against what the platform has: clusters, jobs, secrets, data sets and models."""

from dataclasses import replace
from typing import Any

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.artifacts import base_models, data_policy, data_reports, datasets, replays, team_secrets
from athanor.artifacts.models import Dataset
from athanor.clusters.selectors import pool_for
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs.models import Job
from athanor.jobs.selectors import jobs_of_team
from athanor.jobs.services import Submission, pool_shape
from athanor.specs import fit, validation
from athanor.specs.v1 import JobSpec, OutputEvaluation
from trainer.contract.data import DataSpec


def validate_submission(principal: Principal, team: Team, written: Any, forked_from: Job | None = None) -> Submission:
    """Return the validated submission. Raises Invalid with all problems that are found."""
    checked = validation.check_spec(written)
    spec: JobSpec | None = checked.value
    if spec is None:
        raise validation.invalid(checked.problems, "invalid_spec", "spec")
    problems = []
    pool = None
    task = "/training" if spec.training else "/prepare"
    data: list[Dataset] = []
    found = jobs_of_team(principal, team, spec.after)
    for number, job_id in enumerate(spec.after):
        if job_id not in found:
            detail = f"team {team.name} has no job {job_id}"
            problems.append(FieldProblem(f"/after/{number}", "unknown_job", detail))
    for name in team_secrets.missing(team, spec.secrets) if spec.secrets else []:
        detail = f"team {team.name} has no secret {name!r}; an administrator of the team sets it"
        problems.append(FieldProblem(f"/secrets/{spec.secrets.index(name)}", "unknown_secret", detail))
    problems += team_secrets.telemetry_problems(team, spec)
    try:
        pool = pool_for(spec.resources.cluster, spec.resources.accelerator)
    except Invalid as error:
        problems += error.problems
    try:
        if spec.replay is not None:
            named = jobs_of_team(principal, team, [spec.replay.job]).get(spec.replay.job)
            spec, data = replays.resolve(team, spec, spec.replay, named)
        else:
            data = datasets.resolve_all(team, spec.data, task)
            data_reports.compared_rows(team, spec)
        problems += data_policy.problems_of(team, spec, data, found.values())
        if spec.replay is None:
            spec = _with_data(spec, datasets.with_detected_formats(spec.data, data, task))
    except Invalid as error:
        problems += error.problems
    if spec.output.evaluation is not None:
        problems += _later_data_problems(team, spec.output.evaluation)
    try:
        if spec.training is not None and spec.replay is None:
            spec = spec.model_copy(update={"training": base_models.look_up(team, spec.training)})
        if spec.prepare is not None and spec.prepare.report is not None and spec.prepare.report.base is not None:
            pinned = spec.prepare.report.model_copy(update={"base": base_models.pin(team, spec.prepare.report.base)})
            spec = spec.model_copy(update={"prepare": spec.prepare.model_copy(update={"report": pinned})})
    except Invalid as error:
        problems += error.problems
    problems = validation.at_written_fields(spec, problems)
    if checked.problems:
        raise validation.invalid((*checked.problems, *checked.unaffected(problems)), "invalid_spec", "spec")
    if problems or pool is None:
        raise Invalid(
            "invalid_spec", problems[0].detail, remedy="correct the fields listed in errors", problems=tuple(problems)
        )
    return Submission(
        user=principal.user,
        team=team,
        pool=pool,
        dataset_ids=[row.id for row in data],
        written=written,
        spec=fit.resolve(spec, pool_shape(pool)),
        forked_from=forked_from,
        after=tuple(found.values()),
    )


def _with_data(spec: JobSpec, data: DataSpec) -> JobSpec:
    """Return the spec with this data. Raises Invalid if the rest of the spec does not allow it."""
    if data == spec.data:
        return spec
    name = "training" if spec.training is not None else "prepare"
    changed = spec.model_copy(update={name: spec.task.model_copy(update={"data": data})})
    return validation.parse_spec(changed.model_dump(mode="json"))


def _later_data_problems(team: Team, evaluation: OutputEvaluation) -> list[FieldProblem]:
    """Return the data sets that the evaluation of the job's output names and the team does not have."""
    found = []
    for number, task in enumerate(evaluation.tasks):
        try:
            datasets.resolve(team, task.source)
        except Invalid as error:
            pointer = f"/output/evaluation/tasks/{number}/source"
            found += [replace(problem, pointer=pointer) for problem in error.problems]
    return found
