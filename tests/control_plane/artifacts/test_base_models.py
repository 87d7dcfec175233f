"""A job continues from a model of its team, by name or id, or of a bucket; its attempt can read only that model."""

import copy
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from athanor.artifacts import keys, services, storage
from athanor.artifacts.models import Artifact
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from tests.control_plane.conftest import SPEC, Api
from trainer.contract.encryption import Encryptor
from trainer.contract.hugging_face import hugging_face_config
from trainer.contract.manifest import ModelManifest, StoredFile
from trainer.contract.models import MODELS
from trainer.contract.run import RunConfig

pytestmark = pytest.mark.django_db
SHAPE = MODELS["llama-1m"]
CONFIG = json.dumps(hugging_face_config(SHAPE, 512, 64, "float32", 0)).encode()
FILES = {"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors": b"weights"}


def finished_model(
    submit: Callable[..., Job], files: dict[str, bytes] = FILES, name: str = "first"
) -> tuple[Artifact, Job]:
    """A registered model and the job that made it."""
    attempt = drive.start(submit(name=name))
    return exported(attempt, files), attempt.job


def exported(attempt: Attempt, files: dict[str, bytes] = FILES) -> Artifact:
    """The model that an attempt registers."""
    encryptor = Encryptor(keys.data_key(attempt.job_id, attempt.job.team))
    stored = []
    for path, content in files.items():
        ciphertext, part = encryptor.encrypt(content, f"jobs/{attempt.job_id}/model/{path}")
        storage.put(part.key, ciphertext)
        digest = hashlib.sha256(content).hexdigest()
        stored.append(StoredFile(path=path, parts=[part], plaintext_sha256=digest))
    manifest = ModelManifest(
        job_id=attempt.job_id, attempt_id=attempt.id, step=10, num_parameters=1, files=stored,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    return services.register_model(attempt, manifest)


def going_on(base: str, **training: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec["name"] = "second"
    spec["training"] |= {"model": {"base": base}, **training}
    return spec


def agent_answer(attempt: Attempt, path: str, body: Any = None) -> Any:
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(attempt.id)}")
    url = f"/api/agent/v1/{path}"
    return client.get(url) if body is None else client.post(url, body, format="json")


def started(api: Api, base: str) -> Attempt:
    answer = api.send("POST", "jobs", going_on(base))
    assert answer.status_code == 201, answer.content
    return drive.start(Job.objects.get(pk=answer.json()["id"]))


def test_a_name_means_the_newest_model_and_stays_with_it(api: Api, submit: Callable[..., Job], bucket: str) -> None:
    finished_model(submit)
    newest, _ = finished_model(submit)
    attempt = started(api, "model:first")
    finished_model(submit)
    config = RunConfig.model_validate(agent_answer(attempt, "run").json())
    assert config.training.model.base == f"model:{newest.id}"
    assert config.training.model.resolve() == SHAPE
    assert (config.training.tokenizer.kind, config.training.tokenizer.vocab_size) == ("model", 512)
    assert {file.path for file in config.base.files} == set(FILES)


def test_the_attempt_can_open_the_model_and_nothing_else_of_that_job(
    api: Api, submit: Callable[..., Job], bucket: str
) -> None:
    artifact, source = finished_model(submit)
    attempt = started(api, f"model:{artifact.id}")
    base = RunConfig.model_validate(agent_answer(attempt, "run").json()).base
    part = next(file for file in base.files if file.path == "model.safetensors").parts[0]
    reply = agent_answer(attempt, "storage:presign", {"operation": "get", "keys": [part.key]})
    assert reply.status_code == 200
    encryptor = Encryptor(agent_answer(attempt, "keys").json()["base"])
    assert encryptor.decrypt(storage.get(part.key), part) == b"weights"
    other = agent_answer(
        attempt, "storage:presign", {"operation": "get", "keys": [f"jobs/{source.id}/checkpoints/1/rank0"]}
    )
    assert other.json()["code"] == "outside_prefix"
    written = agent_answer(attempt, "storage:presign", {"operation": "put", "keys": [part.key]})
    assert written.json()["code"] == "outside_prefix"


@pytest.mark.parametrize(
    ("base", "training", "code", "says"),
    [
        ("model:nowhere", {}, "base_not_found", "has no model 'nowhere'"),
        ("/home/me/model", {}, "base_not_found", "is no model of the platform"),
        ("s3://elsewhere/model", {}, "bucket_not_allowed", "team red may not read s3://elsewhere/model"),
        ("model:first", {"model": {"base": "model:first", "shape": MODELS["llama-10m"].model_dump()}},
         "base_not_usable", "model.shape is not that of model.base"),
    ],
)  # fmt: skip
def test_a_base_that_cannot_be_used_is_refused_by_field(
    api: Api, submit: Callable[..., Job], bucket: str, base: str, training: dict[str, Any], code: str, says: str
) -> None:
    finished_model(submit)
    answer = api.send("POST", "jobs", going_on(base, **training))
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/training/model/base", code)
    assert says in problem["detail"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config.json": CONFIG}, "has no tokenizer.json"),
        ({**FILES, "config.json": b'{"model_type": "gpt2"}'}, "model_type is 'gpt2'"),
        ({**FILES, "config.json": b"[]"}, "config.json is not a JSON object"),
        ({**FILES, "config.json": b'{"model_type": ["gemma3"], "text_config": {}}'}, "model_type is ['gemma3']"),
        ({**FILES, "config.json": b'{"model_type": "gemma3"}'}, "or gemma3 with a text_config"),
        ({**FILES, "config.json": CONFIG.replace(b'"vocab_size": 512', b'"vocab_size": 12')}, "greater than or equal"),
    ],
)
def test_a_model_that_is_not_computed_is_refused(
    api: Api, submit: Callable[..., Job], bucket: str, files: dict[str, bytes], says: str
) -> None:
    finished_model(submit, files)
    answer = api.send("POST", "jobs", going_on("model:first"))
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/training/model/base")
    assert says in answer.json()["errors"][0]["detail"]


def test_another_teams_model_is_not_found(
    api_of: Callable[..., Api], make_user: Callable[..., Any], other_team: Any, submit: Callable[..., Job], bucket: str
) -> None:
    artifact, _ = finished_model(submit)
    answer = api_of(make_user("eve", other_team), other_team).send("POST", "jobs", going_on(f"model:{artifact.id}"))
    assert answer.json()["errors"][0]["code"] == "base_not_found"
