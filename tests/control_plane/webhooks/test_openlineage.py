"""Webhooks with OpenLineage's run events: read back with its own client, and compared with the lineage of the API."""

import uuid
from collections.abc import Callable
from typing import Any

import attr
import pytest
from django.db import transaction
from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, OutputDataset, Run, RunEvent, RunState
from openlineage.client.event_v2 import Job as LineageJob
from openlineage.client.serde import Serde
from ulid import ULID

from athanor.accounts.models import Team
from athanor.artifacts.models import Checkpoint, Dataset
from athanor.backends.fake.backend import World
from athanor.jobs import events
from athanor.jobs.models import Job, JobEvent
from athanor.jobs.services import request_stop
from athanor.scheduling import services as scheduling
from athanor.webhooks import openlineage
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_base_models import exported, started
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import SPEC, Api
from tests.control_plane.webhooks.receiver import Receiver
from tests.control_plane.webhooks.test_deliveries import run
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db(transaction=True)
CLASSES: dict[str, Any] = {
    "datasetType": facet_v2.dataset_type_dataset.DatasetTypeDatasetFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "ownership": facet_v2.ownership_job.OwnershipJobFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "symlinks": facet_v2.symlinks_dataset.SymlinksDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
}


def read_back(sent: dict[str, Any]) -> dict[str, Any]:
    """Build the event with OpenLineage's client: its classes define the fields and the URL of each facet's schema."""

    def facets(given: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for name, values in given.items():
            fields = {key: value for key, value in values.items() if not key.startswith("_")}
            made[name] = CLASSES[name](**fields, producer=values["_producer"])
        return made

    def dataset(kind: type, given: dict[str, Any]) -> Any:
        return kind(given["namespace"], given["name"], facets=facets(given["facets"]))

    event = RunEvent(
        eventTime=sent["eventTime"],
        producer=sent["producer"],
        run=Run(sent["run"]["runId"], facets(sent["run"].get("facets", {}))),
        job=LineageJob(sent["job"]["namespace"], sent["job"]["name"], facets(sent["job"].get("facets", {}))),
        eventType=RunState(sent["eventType"]),
        inputs=[dataset(InputDataset, each) for each in sent.get("inputs", [])],
        outputs=[dataset(OutputDataset, each) for each in sent.get("outputs", [])],
    )
    return Serde.to_dict(attr.asdict(event))


def without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: without_empty(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in ({}, [])}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


def names(datasets: list[dict[str, Any]]) -> dict[str, str | None]:
    """The version of each data set, by name."""
    return {each["name"]: each["facets"].get("version", {}).get("datasetVersion") for each in datasets}


def test_a_job_from_its_start_to_its_registered_model(
    made: Callable, receiver: Receiver, api: Api, world: World, bucket: str, team: Team
) -> None:
    webhook = made(format="openlineage")
    assert webhook["format"] == "openlineage"
    upload(api, b"text", name="corpus")
    spec = {**SPEC, "training": {**SPEC["training"], "data": {"source": "dataset:corpus"}}}
    attempt = drive.run(Job.objects.get(pk=done(api.send("POST", "jobs", spec))["id"]))
    checkpoint = Checkpoint.objects.create(
        step=5, job=attempt.job, attempt=attempt, generation=0, size_bytes=1, manifest={}
    )
    artifact = exported(attempt)
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    version = registered(api, artifact)
    run()
    by_state = {got.event["eventType"]: got for got in receiver.received}
    assert set(by_state) == {"START", "COMPLETE", "OTHER"}, "one delivery for each event that has a run event"
    for got in receiver.received:
        assert got.headers["Content-Type"] == "application/json; charset=utf-8"
        assert got.is_signed_with(webhook["secret"])
        assert without_empty(read_back(got.event)) == without_empty(got.event)
    start, complete, later = (by_state[state].event for state in ("START", "COMPLETE", "OTHER"))
    assert {event["run"]["runId"] for event in (start, complete, later)} == {openlineage.run_id(attempt.job_id)}
    assert {event["job"]["name"] for event in (start, complete, later)} == {f"{team.name}/tiny"}
    assert complete["job"]["facets"]["jobType"]["jobType"] == "TRAINING"
    status = JobEvent.objects.get(job=attempt.job, type="job.status", data__to="succeeded")
    assert complete["eventTime"] == status.time.isoformat().replace("+00:00", "Z")
    assert names(complete["inputs"]) == {f"datasets/{team.name}/corpus": "1"}
    of_model = f"model/{artifact.id}", f"sha256:{version['digest']}"
    assert names(complete["outputs"]) == dict([of_model, (f"checkpoint/{checkpoint.id}", None)])
    exports = [each for each in later["outputs"] if each["name"] == of_model[0]]
    (link,) = exports[0]["facets"]["symlinks"]["identifiers"]
    assert link == {"namespace": complete["job"]["namespace"], "name": f"registry/{team.name}/bot@1", "type": "MODEL"}
    receiver.received.clear()

    # What a later job starts from has the name that it had as an output.
    again = started(api, "model:bot@1")
    drive.beat(again, step=1)
    drive.settle()
    run()
    (got,) = receiver.received
    assert got.event["eventType"] == "START"
    assert of_model in names(got.event["inputs"]).items()


def test_ends_and_later_attempts_have_their_own_states(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], world: World, team: Team, user: Any
) -> None:
    made(format="openlineage")
    fails, waits = drive.run(submit()), submit(name="waits")
    request_stop(waits.id, user.username)
    scheduling.admit()
    drive.settle()
    with transaction.atomic():  # as if another attempt ran
        row = Job.objects.select_for_update().get(pk=fails.job_id)
        events.append(row, "job.status", actor="dispatch", data={"from": "starting", "to": "running"})
        row.save()
    drive.end(world, fails, EndClass.LOSS_DIVERGED, "the loss is not a number")
    run()
    found = {(got.event["job"]["name"], got.event["eventType"]): got.event for got in receiver.received}
    tiny = f"{team.name}/tiny"
    assert set(found) == {(tiny, "START"), (tiny, "RUNNING"), (tiny, "FAIL"), (f"{team.name}/waits", "ABORT")}
    message = found[tiny, "FAIL"]["run"]["facets"]["errorMessage"]["message"]
    assert "the loss is not a number" in message
    assert all(without_empty(read_back(event)) == without_empty(event) for event in found.values())


def test_objects_in_s3_have_the_names_that_openlineage_gives_them(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], team: Team
) -> None:
    made(format="openlineage")
    job = drive.run(submit()).job
    plain = Dataset.objects.create(team=team, name="s3://corp/texts/web", origin=Dataset.Origin.PLAIN)
    job.resolved_spec["training"]["model"]["base"] = "s3://corp/models/seven/"
    Job.objects.filter(pk=job.pk).update(resolved_spec=job.resolved_spec, dataset_id=plain.id)
    run()
    (got,) = receiver.received
    places = {(each["namespace"], each["name"]) for each in got.event["inputs"]}
    assert places == {("s3://corp", "texts/web"), ("s3://corp", "models/seven")}
    assert without_empty(read_back(got.event)) == without_empty(got.event)


def test_a_test_delivery_names_no_job_of_the_team(made: Callable, receiver: Receiver, admin: Api) -> None:
    webhook = made(format="openlineage")
    assert admin.send("POST", f"webhooks/{webhook['id']}:test").status_code == 202
    run()
    (got,) = receiver.received
    assert (got.event["eventType"], got.event["job"]["name"]) == ("OTHER", "webhook.test")
    assert without_empty(read_back(got.event)) == without_empty(got.event)


def test_the_id_of_a_run_is_a_uuid_of_version_7_with_the_time_of_the_job() -> None:
    ulid = ULID()
    found = uuid.UUID(openlineage.run_id(f"job_{ulid}"))
    assert (found.version, found.variant) == (7, uuid.RFC_4122)
    assert int.from_bytes(found.bytes[:6]) == int(ulid.timestamp * 1000)
    assert openlineage.run_id(f"job_{ulid}") != openlineage.run_id(f"job_{ULID()}")
