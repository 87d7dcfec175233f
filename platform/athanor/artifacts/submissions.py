"""Validate job specs against what the platform has: clusters, jobs, secrets, data sets and models."""

from typing import Any

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.artifacts import (
    base_models,
    checkpoint_exports,
    checkpoint_uses,
    data_policy,
    data_reports,
    datasets,
    quota_checks,
    replays,
    team_secrets,
)
from athanor.artifacts.models import Dataset
from athanor.clusters.selectors import pool_for
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs import projects
from athanor.jobs.models import Job
from athanor.jobs.selectors import jobs_of_team
from athanor.jobs.services import Submission, pool_shape
from athanor.specs import fit, validation
from athanor.specs.v1 import JobSpec
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
        elif spec.export is not None:
            spec, data = checkpoint_exports.resolve(principal, team, spec, spec.export)
        else:
            data = datasets.resolve_all(team, spec.data, task)
        problems += data_policy.problems_of(team, spec, data, found.values())
        if spec.source_job is None:
            exact = datasets.with_versions(spec.data, data)
            tasks = spec.evaluation.tasks if spec.evaluation is not None else []
            items = [number for number, each in enumerate(tasks) if each.kind != "loss"]
            spec = _with_data(spec, datasets.with_detected_formats(exact, data, task, items))
    except Invalid as error:
        problems += error.problems
    try:
        spec = _with_compared_data(team, _with_data_of_output(team, spec))
    except Invalid as error:
        problems += error.problems
    try:
        if spec.training is not None and spec.source_job is None:
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


def check(submission: Submission) -> None:
    """Check what may have changed since the submission was validated, within the transaction that creates the job.

    Raises Invalid for a job that can never run, Conflict for one that cannot be accepted now, such as one that reads a
    checkpoint that was retired meanwhile.
    """
    quota_checks.check(submission)
    if submission.spec.source_job is not None:
        # First the project, which a deletion of the project locks before its checkpoints.
        projects.get_or_create_for_submission(submission.team, submission.spec.project, submission.user)
        checkpoint_uses.lock_read_by(submission.spec)


def _with_data(spec: JobSpec, data: DataSpec) -> JobSpec:
    """Return the spec with this data, under the names of its sources wherever it has them. Raises Invalid if the rest
    of the spec does not allow it."""
    if data == spec.data:
        return spec
    names = {before.source: after.source for before, after in zip(spec.data.parts, data.parts, strict=True)}
    task: dict[str, Any] = {"data": data}
    tokenizer = spec.task.tokenizer
    if tokenizer.trained_on in names:
        task["tokenizer"] = tokenizer.model_copy(update={"trained_on": names[tokenizer.trained_on]})
    name = "training" if spec.training is not None else "prepare"
    changes: dict[str, Any] = {name: spec.task.model_copy(update=task)}
    if spec.evaluation is not None:
        tasks = [each.model_copy(update={"source": names[each.source]}) for each in spec.evaluation.tasks]
        changes["evaluation"] = spec.evaluation.model_copy(update={"tasks": tasks})
    return validation.parse_spec(spec.model_copy(update=changes).model_dump(mode="json"))


def _with_data_of_output(team: Team, spec: JobSpec) -> JobSpec:
    """Return the spec with the versions of the data sets on which the job's output will be evaluated.

    They have their numbers in any case: the evaluation is submitted later, when a name may refer to a newer version.
    Raises Invalid with each data set that cannot be used.
    """
    evaluation = spec.output.evaluation
    if evaluation is None:
        return spec
    places = {f"/output/evaluation/tasks/{number}/source": each.source for number, each in enumerate(evaluation.tasks)}
    rows = datasets.resolve_sources(team, places)
    tasks = [
        each.model_copy(update={"source": row.spec_source}) for each, row in zip(evaluation.tasks, rows, strict=True)
    ]
    output = spec.output.model_copy(update={"evaluation": evaluation.model_copy(update={"tasks": tasks})})
    return spec.model_copy(update={"output": output})


def _with_compared_data(team: Team, spec: JobSpec) -> JobSpec:
    """Return the spec with the versions of the evaluation data that a report compares its data with.

    They have their numbers in any case: an attempt finds them by this name. Raises Invalid with each data set that
    cannot be used.
    """
    rows = data_reports.compared_rows(team, spec)
    if not rows or spec.prepare is None or spec.prepare.report is None:
        return spec
    report = spec.prepare.report
    report = report.model_copy(update={"evaluation": [row.spec_source for row in rows]})
    pinned = spec.prepare.model_copy(update={"report": report})
    return spec.model_copy(update={"prepare": pinned})
