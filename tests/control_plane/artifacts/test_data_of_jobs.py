"""What an attempt receives of the data sets of its job, and jobs that only prepare them."""

from typing import Any

import pytest

from athanor.accounts.models import AuditEvent
from athanor.artifacts import keys, storage
from athanor.artifacts.models import Dataset, PreparedDataset
from athanor.dispatch import observe, tokens
from athanor.dispatch.services import run_config_of, spec_of
from athanor.jobs.models import Attempt, Job
from athanor.telemetry.selectors import newest_progress
from tests.control_plane import drive
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.conftest import Api
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import DatasetManifest, StoredFile
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import DataKeys, EndClass

pytestmark = pytest.mark.django_db


class AgentClient:
    def __init__(self, attempt: Attempt) -> None:
        self._client = Api()
        self._client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(attempt.id)}")

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        url = f"/api/agent/v1/{path}"
        return self._client.get(url) if method == "GET" else self._client.post(url, body, format="json")


def mixture_spec(spec: dict, *sources: str) -> dict:
    spec["training"]["data"] = {"mixture": [{"source": source, "weight": 1 + n} for n, source in enumerate(sources)]}
    return spec


def test_an_attempt_is_told_every_part_of_a_mixture_and_given_its_key(
    api: Any, spec: dict, world: Any, bucket: str
) -> None:
    ids = [upload(api, text, name=name).json()["id"] for name, text in (("one", b"text"), ("two", b"other"))]
    made = api.send("POST", "jobs", mixture_spec(spec, "dataset:two", "builtin:python-stdlib", "dataset:one"))
    assert made.status_code == 201, made.content
    job = Job.objects.get(pk=made.json()["id"])
    attempt = drive.start(job)
    run = run_config_of(attempt)
    assert [source.name for source in run.datasets] == ["two", "builtin:python-stdlib", "one"]
    assert run.cache_scope == job.team_id, "each team has its own part of a node's cache"
    assert [run.datasets[0].dataset_id, run.datasets[2].dataset_id] == ids[::-1]
    agent = AgentClient(attempt)
    received = DataKeys.model_validate(agent("GET", "keys").json())
    for source in (run.datasets[0], run.datasets[2]):
        (part,) = source.raw[0].parts
        sealed = storage.get(part.key)
        assert sealed is not None
        assert Encryptor(received.of_dataset(source.dataset_id)).decrypt(sealed, part) in (b"text", b"other")
        answer = agent("POST", "storage:presign", {"operation": "get", "keys": [part.key]})
        assert answer.status_code == 200
    foreign = upload(api, b"third", name="three").json()["id"]
    key = Dataset.objects.get(pk=foreign).files[0]["parts"][0]["key"]
    assert agent("POST", "storage:presign", {"operation": "get", "keys": [key]}).status_code == 403


def test_every_part_of_a_mixture_that_is_missing_is_named(api: Any, spec: dict, world: Any, bucket: str) -> None:
    upload(api, b"text", name="one")
    body = api.send("POST", "jobs", mixture_spec(spec, "dataset:none", "dataset:one", "s3://elsewhere/x")).json()
    assert [item["pointer"] for item in body["errors"]] == [
        "/training/data/mixture/0/source", "/training/data/mixture/2/source",
    ]  # fmt: skip


def test_a_preparation_is_registered_only_for_a_data_set_of_the_job(
    api: Any, spec: dict, world: Any, bucket: str
) -> None:
    foreign = upload(api, b"text", name="foreign").json()["id"]
    attempt = drive.start(submitted(api, spec))
    assert AgentClient(attempt)("POST", "datasets", manifest_of(attempt, foreign, "0" * 64)).status_code == 403
    assert not PreparedDataset.objects.filter(dataset_id=foreign).exists()


def manifest_of(attempt: Attempt, dataset_id: str, recipe: str) -> dict[str, Any]:
    """Store a prepared form of one part, encrypted with the data set's key as an agent does."""
    encryptor = keys.encryptor(dataset_id, attempt.job.team)
    ciphertext, part = encryptor.encrypt(b"tokens", f"jobs/{attempt.job_id}/dataset/{recipe[:8]}")
    storage.put(part.key, ciphertext)
    manifest = DatasetManifest(
        dataset_id=dataset_id, recipe=recipe, fingerprint="f", vocab_size=1, train_tokens=1, validation_tokens=1,
        documents=1, created_at="2026-01-01T00:00:00Z", files=[StoredFile(path="x", parts=[part])],
    )  # fmt: skip
    return manifest.model_dump(mode="json")


def prepare_spec(*sources: str, **fields: Any) -> dict[str, Any]:
    data = {"source": sources[0]} if len(sources) == 1 else {"mixture": [{"source": source} for source in sources]}
    return {"version": 1, "name": "prepare", "prepare": {"data": data, "tokenizer": {"vocab_size": 300}}, **fields}


def submitted(api: Any, spec: dict[str, Any]) -> Job:
    answer = api.send("POST", "jobs", spec)
    assert answer.status_code == 201, answer.content
    return Job.objects.get(pk=answer.json()["id"])


def test_a_job_that_prepares_succeeds_when_its_data_is_registered_and_later_jobs_find_it(
    api: Any, spec: dict, world: Any, bucket: str
) -> None:
    upload(api, b"text", name="one")
    job = submitted(api, prepare_spec("dataset:one"))
    attempt = drive.start(job)
    run = run_config_of(attempt)
    assert (run.training, run.prepare) == (None, spec_of(job).prepare)
    agent = AgentClient(attempt)
    key = DataKeys.model_validate(agent("GET", "keys").json()).of_dataset(run.dataset.dataset_id)
    (part,) = run.dataset.raw[0].parts
    assert agent("POST", "storage:presign", {"operation": "get", "keys": [part.key]}).status_code == 200
    assert Encryptor(key).decrypt(storage.get(part.key) or b"", part) == b"text"
    drive.beat(attempt, 0)
    observe.observe_due()
    shown = api.send("GET", f"jobs/{job.id}").json()
    assert (shown["status"], shown["progress"]) == ("running", None)
    (recipe,) = dataset_recipes(run.data.parts, run.tokenizer, [run.dataset.dataset_id])
    answer = agent("POST", "datasets", manifest_of(attempt, run.dataset.dataset_id, recipe))
    assert answer.status_code == 201
    drive.end(world, attempt, EndClass.COMPLETED)
    assert drive.status_of(job) == ("succeeded", "completed")
    assert api.send("GET", f"jobs/{job.id}").json()["reason"]["remedy"] == "Train on the data set."
    assert newest_progress([job.id], [job.team_id], None) == []
    spec["training"] |= {"data": {"source": "dataset:one", "packing": "documents"}, "tokenizer": {"vocab_size": 300}}
    prepared = run_config_of(drive.start(submitted(api, spec))).dataset.prepared
    assert prepared is not None
    assert prepared.recipe == recipe


def test_what_was_prepared_is_forgotten_and_made_anew_while_who_reads_it_reads_on(
    api: Any, spec: dict, world: Any, bucket: str
) -> None:
    """A stored form may have been damaged in the object store."""
    dataset_id = upload(api, b"text", name="one").json()["id"]

    def prepared_by_a_job() -> Any:
        attempt = drive.start(submitted(api, prepare_spec("dataset:one")))
        run = run_config_of(attempt)
        assert run.dataset.prepared is None
        (recipe,) = dataset_recipes(run.data.parts, run.tokenizer, [dataset_id])
        manifest = manifest_of(attempt, dataset_id, recipe)
        assert AgentClient(attempt)("POST", "datasets", manifest).status_code == 201
        drive.end(world, attempt, EndClass.COMPLETED)
        return manifest["files"][0]["parts"][0]["key"]

    damaged = prepared_by_a_job()
    spec["training"] |= {"data": {"source": "dataset:one"}, "tokenizer": {"vocab_size": 300}}
    reader = drive.start(submitted(api, spec))
    assert run_config_of(reader).dataset.prepared is not None
    for count in (1, 0):
        assert api.delete(f"/api/v1/datasets/{dataset_id}/preparations").json() == {"forgotten": count}
    assert AuditEvent.objects.filter(action="dataset.forget", after={"forgotten": 1}).count() == 1
    assert AgentClient(reader)("POST", "storage:presign", {"operation": "get", "keys": [damaged]}).status_code == 200
    drive.end(world, reader, EndClass.COMPLETED)
    assert prepared_by_a_job() != damaged
    assert run_config_of(drive.start(submitted(api, spec))).dataset.prepared is not None


def test_a_job_that_prepares_has_not_completed_without_all_its_data(api: Any, world: Any, bucket: str) -> None:
    for name in ("one", "two"):
        upload(api, b"text", name=name)
    job = submitted(api, prepare_spec("dataset:one", "dataset:two"))
    attempt = drive.start(job)
    run = run_config_of(attempt)
    recipe = dataset_recipes(run.data.parts, run.tokenizer, job.dataset_ids)[0]
    AgentClient(attempt)("POST", "datasets", manifest_of(attempt, job.dataset_ids[0], recipe))
    drive.end(world, attempt, EndClass.COMPLETED)
    attempt.refresh_from_db()
    said = "It reported its completion but registered no data set."
    assert (attempt.reason, attempt.reason_detail) == ("platform_error", said)


def test_bad_data_ends_a_job_that_prepares_with_its_place(api: Any, world: Any, bucket: str) -> None:
    upload(api, b"text", name="one")
    job = submitted(api, prepare_spec("dataset:one"))
    drive.end(world, drive.start(job), EndClass.DATA_ERROR, "a.jsonl line 7 has no field 'text'")
    job.refresh_from_db()
    assert (job.status, job.reason) == ("failed", "data_error")
    assert "a.jsonl line 7" in job.reason_detail


def test_preparing_takes_one_process_and_no_model(api: Any, spec: dict, world: Any, bucket: str) -> None:
    upload(api, b"text", name="one")
    wide = api.send("POST", "jobs", prepare_spec("dataset:one", resources={"processes_per_node": 2})).json()
    assert [(item["pointer"], item["code"]) for item in wide["errors"]] == [
        ("/resources/processes_per_node", "too_many_processes")
    ]
    missing = api.send("POST", "jobs", prepare_spec("dataset:none")).json()
    assert missing["errors"][0]["pointer"] == "/prepare/data/source"
    both = api.send("POST", "jobs", {**spec, **prepare_spec("dataset:one")}).json()
    neither = api.send("POST", "jobs", {"version": 1, "name": "x"}).json()
    one_of = "exactly one of training, prepare, evaluation, replay and export"
    assert f"{one_of}; it has training and prepare" in both["errors"][0]["detail"]
    assert neither["errors"][0]["detail"].endswith(one_of)
    plan = api.send("POST", "jobs:plan", prepare_spec("dataset:one")).json()
    assert (plan["estimate"]["num_parameters"], plan["estimate"]["tokens_total"]) == (0, 0)
