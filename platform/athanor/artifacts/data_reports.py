"""Data reports: registered by the jobs that make them, read by members of the team, and what a team requires of them.

The content is read when it is registered, so that digest and numbers of findings in the row are those of the content.
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from pydantic import ValidationError

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import datasets, keys, manifests, preparations, services, storage
from athanor.artifacts.models import DataReport, Dataset
from athanor.core.errors import Conflict, Forbidden, Invalid, NotFound
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.specs.v1 import JobSpec
from trainer.contract.data_findings import SEVERITIES
from trainer.contract.data_report import MAX_REPORT_BYTES, REPORT_NAME
from trainer.contract.data_report import DataReport as Content
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import DataReportManifest

REMEDY = "use the trainer of this platform's version"


def register(attempt: Attempt, manifest: DataReportManifest) -> DataReport:
    """Register the report of a data set. Idempotent.

    Raise Forbidden unless the attempt's job reports on the data set, and Invalid for content that is no report of it,
    or larger than MAX_REPORT_BYTES.
    """
    preparations.check_dataset(attempt, manifest.dataset_id)
    if not reports_on_data(attempt.job):
        detail = f"{attempt.job_id} makes no data report"
        raise Forbidden("no_report_job", detail, remedy="submit a job with prepare.report")
    services.check_is_whole(attempt.job_id, manifest)
    encryptor = keys.encryptor(manifest.dataset_id, attempt.job.team)
    manifest = manifests.by_attempt(attempt, manifest, encryptor)
    report = _content(manifest, encryptor)
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        row, created = DataReport.objects.get_or_create(
            attempt=attempt,
            dataset_id=manifest.dataset_id,
            defaults={
                "job": job,
                "manifest": manifest.model_dump(mode="json"),
                "digest": report.digest,
                "size_bytes": services.size_of_files(manifest.files),
                **{severity: report.count(severity) for severity in SEVERITIES},
                "critical_kinds": report.kinds("critical"),
            },
        )
        if created:
            facts = {
                "report": row.id, "dataset": row.dataset_id, "digest": row.digest, "critical": row.critical,
                "warning": row.warning, "info": row.info,
            }  # fmt: skip
            events.append(job, "data_report.registered", actor=attempt.id, data=facts)
            job.save(update_fields=["event_seq", "updated_at"])
    return row


def reports_on_data(job: Job) -> bool:
    """Return whether the job only makes data reports."""
    prepare = JobSpec.model_validate(job.resolved_spec).prepare
    return prepare is not None and prepare.report is not None


def compared_rows(team: Team, spec: JobSpec) -> list[Dataset]:
    """Return the evaluation data with which a report compares its data; none for another job.

    Raise Invalid for data that the team does not have, or that was deleted since.
    """
    if spec.prepare is None or spec.prepare.report is None:
        return []
    places = {
        f"/prepare/report/evaluation/{number}": source for number, source in enumerate(spec.prepare.report.evaluation)
    }
    return datasets.resolve_sources(team, places)


def are_registered(attempt: Attempt) -> bool:
    """Return whether the attempt has registered a report of each data set of its job."""
    found = set(DataReport.objects.filter(attempt=attempt).values_list("dataset_id", flat=True))
    return found >= set(attempt.job.dataset_ids)


def counts_of(row: DataReport) -> dict[str, int]:
    """Return the number of kinds of findings by severity."""
    return {severity: getattr(row, severity) for severity in SEVERITIES}


def load_newest(rows: Sequence[Dataset]) -> None:
    """Set `report` of data sets to the newest one, None without one."""
    found = DataReport.objects.filter(dataset__in=[row.pk for row in rows])
    newest = {report.dataset_id: report for report in found.order_by("dataset_id", "-id").distinct("dataset_id")}
    for row in rows:
        row.report = newest.get(row.pk)


def find(dataset: Dataset, job_id: str = "") -> DataReport:
    """Return the newest report of a data set, or the newest that a job made. Raise NotFound if there is none."""
    rows = DataReport.objects.filter(dataset=dataset).select_related("dataset__team", "job")
    found = (rows.filter(job_id=job_id) if job_id else rows).order_by("-id").first()
    if found is None:
        what = f"data report by {job_id} of" if job_id else "data report of"
        remedy = f"make one: athanor dataset report {dataset} --make, or a job with prepare.report"
        raise NotFound(what, str(dataset), remedy=remedy)
    return found


def read(row: DataReport, user: User) -> Content:
    """Return the decrypted report. The reading is audited.

    Raise Conflict if it is damaged, or not what was registered, and Unavailable if the object store does not answer.
    """
    with transaction.atomic():
        team_id, facts = row.dataset.team_id, {"report": row.id}
        audit.record("dataset.report", actor=user, target=("dataset", row.dataset_id), team_id=team_id, after=facts)
    manifest = manifests.of_report(row)
    try:
        return _content(manifest, keys.encryptor(row.dataset_id, row.dataset.team))
    except Invalid as error:
        raise Conflict(
            "data_report_damaged",
            f"{row.id} of {row.dataset} is damaged in the object store: {error.message}",
            remedy="make a new report, or restore the object from a backup",
        ) from error


def _content(manifest: DataReportManifest, encryptor: Encryptor) -> Content:
    """Return the report that a manifest names. Raise Invalid if it is none, too large, or has another digest."""
    if [file.path for file in manifest.files] != [REPORT_NAME]:
        raise _invalid(f"a report has one file, {REPORT_NAME}")
    (file,) = manifest.files
    stored = sum(part.size for part in file.parts)
    # Encryption adds less than a tenth; the size of the object, unlike that of the plaintext, was compared.
    if file.size > MAX_REPORT_BYTES or stored > 1.1 * MAX_REPORT_BYTES + 1024 or len(file.parts) > 1:
        raise _invalid(f"the report has {max(file.size, stored)} bytes; at most {MAX_REPORT_BYTES} are allowed")
    content = b""
    for part in file.parts:
        ciphertext = storage.get(part.key)
        if ciphertext is None:
            raise _invalid(f"{part.key} is not in the object store")
        try:
            content += encryptor.decrypt(ciphertext, part)
        except ValueError as error:
            raise _invalid(f"{part.key} cannot be decrypted: {error}") from error
    try:
        report = Content.model_validate_json(content)
    except ValidationError as error:
        problem: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "/".join(str(piece) for piece in problem["loc"])
        raise _invalid(f"{REPORT_NAME} is no data report: {place}: {problem['msg']}") from error
    if report.content != content or report.digest != manifest.digest:
        raise _invalid(f"{REPORT_NAME} has the digest {report.digest}, and its manifest names {manifest.digest}")
    return report


def _invalid(detail: str) -> Invalid:
    return Invalid("invalid_data_report", f"the data report is not valid: {detail}", remedy=REMEDY)
