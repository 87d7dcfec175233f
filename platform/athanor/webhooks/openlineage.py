"""OpenLineage run events (https://openlineage.io, spec 2-0-2) of a team's jobs, for catalogues of data.

A job of the platform is a run; its name in the team is the job of OpenLineage, so that runs of one name form a history.
What a run reads and writes are the neighbours of the job in the lineage that the API shows (artifacts/lineage.py).
"""

import importlib.metadata
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from django.db.models import Min
from ulid import ULID

from athanor.accounts.selectors import everything_of
from athanor.artifacts.lineage import DEFAULT_LIMIT, Direction, Kind, Lineage, Node, Relation, lineage_of
from athanor.artifacts.models import Dataset, ModelVersion
from athanor.jobs.models import Job, JobEvent
from athanor.jobs.states import FINAL, JobStatus

SPECIFICATION = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = {
    "datasetType": "1-0-1/DatasetTypeDatasetFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
    "jobType": "2-0-4/JobTypeJobFacet",
    "ownership": "1-0-1/OwnershipJobFacet",
    "processing_engine": "1-1-1/ProcessingEngineRunFacet",
    "symlinks": "1-0-1/SymlinksDatasetFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet",
}
"""Version and name of the schema of each facet that is used."""
ENDS = {JobStatus.SUCCEEDED: "COMPLETE", JobStatus.FAILED: "FAIL"}
ABORT = "ABORT"  # of the other ends
TYPES = {
    Kind.DATASET: ("FILE", "DATASET"),
    Kind.PREPARED: ("FILE", "TOKENISED"),
    Kind.REPORT: ("FILE", "DATA_REPORT"),
    Kind.CHECKPOINT: ("MODEL", "CHECKPOINT"),
    Kind.MODEL: ("MODEL", "EXPORT"),
    Kind.EXTERNAL: ("MODEL", "EXTERNAL"),
}
"""Type and subtype of what a run reads or writes; other kinds of nodes are neither."""
TEST_JOB = "webhook.test"
NIL_RUN = str(uuid.UUID(int=0))
Facets = dict[str, dict[str, Any]]


def run_event_of(event: JobEvent, job: Job, source: str) -> dict[str, Any] | None:
    """Return the run event of a job's event, None if it has none. `source`: address of the platform, the namespace.

    The first attempt that runs is the START, later ones are RUNNING; an end is COMPLETE, FAIL or ABORT, and a version
    that is registered after it OTHER.
    """
    state = _state(event)
    if state is None:
        return None
    run_facets = {"processing_engine": {"version": importlib.metadata.version("athanor"), "name": "Athanor"}}
    if state == "FAIL":
        run_facets["errorMessage"] = {"message": event.message or "the job failed", "programmingLanguage": "PYTHON"}
    job_facets: Facets = {
        "jobType": {"processingType": "BATCH", "integration": "ATHANOR", "jobType": _task(job)},
        "ownership": {"owners": [{"name": f"team:{job.team.name}", "type": "OWNER"}]},
    }
    found = lineage_of(everything_of(job.team, job.created_by), job.id, Direction.BOTH, DEFAULT_LIMIT, 1)
    neighbours = _Neighbours(found, job, source)
    return _run_event(
        state,
        event.time,
        {"runId": run_id(job.id), "facets": _facets(run_facets, source)},
        {"namespace": source, "name": f"{job.team.name}/{job.name}", "facets": _facets(job_facets, source)},
        source,
        inputs=neighbours.inputs(),
        outputs=neighbours.outputs(),
    )


def test_event(at: datetime, source: str) -> dict[str, Any]:
    """Return the run event of a test delivery: of a run and a job that exist for tests only."""
    return _run_event("OTHER", at, {"runId": NIL_RUN}, {"namespace": source, "name": TEST_JOB}, source)


def run_id(job_id: str) -> str:
    """Return the id of a job's run, a UUID: time and random bits of the ULID in the job's id, marked as version 7."""
    number = int.from_bytes(ULID.from_str(job_id.partition("_")[2]).bytes)
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=number))


class _Neighbours:
    """What a job reads and writes, as data sets of OpenLineage."""

    def __init__(self, found: Lineage, job: Job, source: str) -> None:
        self._source = source
        self._team = job.team
        self._nodes = {node.id: node for node in found.nodes}
        self._read = [edge.source for edge in found.edges if edge.target == job.id]
        self._written = [
            edge.target for edge in found.edges if edge.source == job.id and edge.relation is Relation.MADE_BY
        ]
        models = [node.id for node in found.nodes if node.kind is Kind.MODEL]
        versions = ModelVersion.objects.filter(artifact_id__in=models, model__team_id=job.team_id)
        self._versions = list(versions.select_related("model").order_by("pk"))

    def inputs(self) -> list[dict[str, Any]]:
        """Return the data, the base model, and the checkpoint of an export."""
        return self._all(self._read)

    def outputs(self) -> list[dict[str, Any]]:
        """Return the tokenised data, checkpoints, models and reports that there are by now."""
        return self._all(self._written)

    def _all(self, ids: list[str]) -> list[dict[str, Any]]:
        nodes = [self._nodes[each] for each in dict.fromkeys(ids)]
        return [self._dataset(node) for node in nodes if node.kind in TYPES]

    def _dataset(self, node: Node) -> dict[str, Any]:
        namespace, name = self._name(node)
        type_, subtype = TYPES[node.kind]
        facets: Facets = {"datasetType": {"datasetType": type_, "subType": subtype}}
        version = _version(node)
        if version:
            facets["version"] = {"datasetVersion": version}
        names = [f"registry/{self._team.name}/{each}" for each in self._versions if each.artifact_id == node.id]
        if names:
            links = [{"namespace": self._source, "name": each, "type": "MODEL"} for each in names]
            facets["symlinks"] = {"identifiers": links}
        return {"namespace": namespace, "name": name, "facets": _facets(facets, self._source)}

    def _name(self, node: Node) -> tuple[str, str]:
        """Return the namespace and the name: of objects in S3 as the naming rules of OpenLineage have them."""
        address = node.id
        if node.kind is Kind.DATASET:
            address = node.row.deletion.name if node.row.deletion else node.row.name
        if address.startswith("s3://"):
            parts = urlsplit(address)
            return f"s3://{parts.netloc}", parts.path.strip("/") or "/"
        if node.kind is Kind.DATASET:
            return self._source, f"datasets/{self._team.name}/{address}"
        return self._source, f"{node.kind}/{address}"


def _state(event: JobEvent) -> str | None:
    if event.type == "model.registered":
        return "OTHER"
    status = event.data.get("to") if event.type == "job.status" else None
    if status in FINAL:
        return ENDS.get(JobStatus(status), ABORT)
    if status != JobStatus.RUNNING:
        return None
    running = JobEvent.objects.filter(job_id=event.job_id, type="job.status", data__to=status)
    return "START" if running.aggregate(first=Min("seq"))["first"] == event.seq else "RUNNING"


def _task(job: Job) -> str:
    tasks = ("export", "replay", "evaluation", "prepare")
    return next((task for task in tasks if job.resolved_spec.get(task)), "training").upper()


def _version(node: Node) -> str | None:
    if isinstance(node.row, Dataset) and node.row.origin == Dataset.Origin.SEALED:
        return str(node.row.version)
    digest = node.digest if node.row is not None else None
    return f"sha256:{digest}" if digest else None


def _facets(given: Facets, source: str) -> Facets:
    """Return facets with what the specification requires of each. `source`: what it calls the producer."""
    schema = "https://openlineage.io/spec/facets/{}.json#/$defs/{}"
    return {
        name: {"_producer": source, "_schemaURL": schema.format(FACETS[name], FACETS[name].partition("/")[2]), **facet}
        for name, facet in given.items()
    }


def _run_event(
    state: str, at: datetime, run: dict[str, Any], job: dict[str, Any], source: str, **datasets: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "eventType": state,
        "eventTime": at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "run": run,
        "job": job,
        **datasets,
        "producer": source,
        "schemaURL": SPECIFICATION,
    }
