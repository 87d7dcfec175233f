"""What a team requires of data before a job trains on it: a data report without critical findings.

Checked when a job is submitted, and before its first attempt: a report can be made, or the requirement set, while it
waits. Attempts after the first are not refused, since their work would be lost.
"""

from collections.abc import Iterable, Sequence

from django.db import transaction

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import data_reports
from athanor.artifacts.models import Dataset
from athanor.core.errors import FieldProblem
from athanor.jobs.models import Job
from athanor.specs.v1 import JobSpec

MAX_NAMED_KINDS = 5


def require_report(team: Team, *, required: bool, actor: User) -> Team:
    """Set whether training is refused on data without a report, or with critical findings in the newest one."""
    with transaction.atomic():
        row = Team.objects.select_for_update(no_key=True).get(pk=team.pk)
        before = row.requires_data_report
        if before != required:
            row.requires_data_report = required
            row.save(update_fields=["requires_data_report"])
            audit.record(
                "team.data_policy",
                actor=actor,
                target=("team", row.id),
                team_id=row.id,
                before={"requires_data_report": before},
                after={"requires_data_report": required},
            )
    return row


def problems_of(team: Team, spec: JobSpec, rows: Sequence[Dataset], upstream: Iterable[Job]) -> list[FieldProblem]:
    """Return why a submission may not train on its data sets. `rows`: of each part.

    A data set on which a job in `after` reports is checked when that job has ended: before the first attempt.
    """
    if spec.training is None or not Team.objects.filter(pk=team.pk, requires_data_report=True).exists():
        return []
    awaited = {each for job in upstream if data_reports.reports_on_data(job) for each in job.dataset_ids}
    data_reports.load_newest(rows)
    found = []
    for number, row in enumerate(rows):
        detail = "" if row.id in awaited else _refusal(row)
        if detail:
            pointer = f"/training/data/mixture/{number}/source" if spec.data.mixture else "/training/data/source"
            found.append(FieldProblem(pointer, "data_report_required", detail))
    return found


def refusal_before_start(job: Job) -> str:
    """Return why a job that has had no attempt may not train on its data, empty if it may."""
    if job.resolved_spec["training"] is None or job.attempts.exists():
        return ""
    if not Team.objects.filter(pk=job.team_id, requires_data_report=True).exists():
        return ""
    rows = list(Dataset.objects.filter(pk__in=job.dataset_ids).order_by("name"))
    data_reports.load_newest(rows)
    return "; ".join(filter(None, map(_refusal, rows)))


def _refusal(row: Dataset) -> str:
    """Return why the newest report of a data set does not allow training, and what to do; empty if it does."""
    make = f"athanor dataset report {row} --make"
    if row.report is None:
        return f"the team requires a data report, and {row} has none; make one: {make}"
    if not row.report.critical:
        return ""
    kinds = row.report.critical_kinds
    more = f" and {len(kinds) - MAX_NAMED_KINDS} more" if len(kinds) > MAX_NAMED_KINDS else ""
    return (
        f"the team refuses data with critical findings, and the newest data report of {row} has "
        f"{', '.join(kinds[:MAX_NAMED_KINDS])}{more}; see athanor dataset report {row}, upload corrected data "
        "as a new version, make its report, and submit the job again"
    )
