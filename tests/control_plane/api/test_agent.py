"""The agent API: one token per attempt for its own prefix only, idempotent, refused after the end of the attempt."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from athanor.artifacts import keys, storage
from athanor.artifacts import services as artifacts
from athanor.artifacts.models import Artifact, Checkpoint
from athanor.backends.fake.backend import World
from athanor.dispatch import observe, tokens
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.telemetry.models import MetricChunk
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import CheckpointManifest, ModelManifest, StoredFile
from trainer.contract.run import EndClass, RunConfig

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.start(submit())


class AgentClient:
    def __init__(self, token: str) -> None:
        self._client = Api()
        self._client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        url = f"/api/agent/v1/{path}"
        return self._client.get(url) if method == "GET" else self._client.post(url, body, format="json")

    def send_text(self, path: str, body: str) -> Any:
        """A body as it is, which may be JSON that Python would not write."""
        return self._client.generic("POST", f"/api/agent/v1/{path}", body, content_type="application/json")


@pytest.fixture
def agent(attempt: Attempt) -> AgentClient:
    return AgentClient(tokens.issue(attempt.id))


def manifest_of(attempt: Attempt, step: int, parts: list[Any]) -> CheckpointManifest:
    return CheckpointManifest(
        job_id=attempt.job_id,
        attempt_id=attempt.id,
        generation=0,
        step=step,
        tokens_seen=step * 512,
        data_position=step,
        world_size=1,
        mesh={"data": 1},
        spec_digest="0" * 64,
        dataset_fingerprint="f",
        torch_version="2.13.0",
        created_at=NOW,
        files=[StoredFile(path="rank0", parts=parts)],
    )


def stored_part(attempt: Attempt, name: str, content: bytes = b"weights") -> Any:
    encryptor = Encryptor(keys.data_key(attempt.job_id, attempt.job.team))
    ciphertext, part = encryptor.encrypt(content, f"jobs/{attempt.job_id}/{name}")
    storage.put(part.key, ciphertext)
    return part


def test_an_attempt_is_told_its_run_and_its_keys(agent: AgentClient, attempt: Attempt) -> None:
    config = RunConfig.model_validate(agent("GET", "run").json())
    assert (config.job_id, config.attempt_id, config.attempt_number) == (attempt.job_id, attempt.id, 1)
    assert config.prefix == f"jobs/{attempt.job_id}/"
    assert config.dataset.origin == "builtin"
    assert config.resume is None
    answer = agent("GET", "keys").json()
    assert set(answer) == {"job", "dataset", "more_datasets", "base", "replayed", "secrets"}
    assert answer["job"] != answer["dataset"]
    assert answer == agent("GET", "keys").json()


def test_an_attempt_is_told_where_its_metrics_go_besides(submit: Callable[..., Job], bucket: str) -> None:
    job = submit(name="named", telemetry={"mlflow": {"tracking_uri": "https://mlflow.example"}})
    config = RunConfig.model_validate(AgentClient(tokens.issue(drive.start(job).id))("GET", "run").json())
    assert config.telemetry.mlflow is not None
    assert (config.telemetry.mlflow.run_name, config.telemetry.mlflow.experiment) == ("named", "athanor")


@pytest.mark.parametrize("token", ["", "att_x", "ath_something", "att_01M7XQXRKD3V00438BK92GHFR5.0000"])
def test_a_wrong_token_is_refused(attempt: Attempt, token: str) -> None:
    assert AgentClient(token)("GET", "run").status_code == 401


def test_another_attempts_signature_does_not_fit(attempt: Attempt, submit: Callable[..., Job]) -> None:
    other = drive.start(submit(name="other"))
    mixed = f"{attempt.id}.{tokens.issue(other.id).partition('.')[2]}"
    assert AgentClient(mixed)("GET", "run").status_code == 401


def test_a_users_token_is_no_attempts_token(api: Any, attempt: Attempt) -> None:
    assert api.get("/api/agent/v1/run").status_code == 401


def test_an_attempts_token_opens_nothing_of_the_public_api(attempt: Attempt) -> None:
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(attempt.id)}")
    assert client.send("GET", "jobs").status_code == 401


def test_the_token_dies_with_the_attempt(agent: AgentClient, attempt: Attempt, world: World) -> None:
    drive.end(world, attempt, EndClass.DATA_ERROR)
    answer = agent("POST", "heartbeat", {"node_rank": 0, "generation": 0, "phase": "x"})
    assert (answer.status_code, answer.json()["code"]) == (410, "attempt_over")


@pytest.mark.parametrize(
    "key",
    ["jobs/job_0/x", "teams/x", "jobs/{job}/../x", "/jobs/{job}/x", "s3://athanor/jobs/{job}/x", "jobs/{job}x/y"],
)
@pytest.mark.parametrize("operation", ["put", "get"])
def test_nothing_outside_its_own_prefix_is_presigned(
    agent: AgentClient, attempt: Attempt, key: str, operation: str
) -> None:
    asked = {"operation": operation, "keys": [key.replace("{job}", attempt.job_id)]}
    answer = agent("POST", "storage:presign", asked)
    assert (answer.status_code, answer.json()["code"]) == (403, "outside_prefix")


def test_a_presigned_url_writes_and_reads_just_that_object(agent: AgentClient, attempt: Attempt) -> None:
    key = f"jobs/{attempt.job_id}/checkpoints/a"
    put = agent("POST", "storage:presign", {"operation": "put", "keys": [key]}).json()["urls"][0]
    request = urllib.request.Request(put["url"], data=b"ciphertext", method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    assert storage.get(key) == b"ciphertext"
    get = agent("POST", "storage:presign", {"operation": "get", "keys": [key]}).json()["urls"][0]
    with urllib.request.urlopen(get["url"]) as answer:
        assert answer.read() == b"ciphertext"
    other = urllib.request.Request(put["url"].replace("checkpoints/a", "checkpoints/b"), data=b"x", method="PUT")
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(other)


@pytest.fixture
def s3_calls() -> Iterator[list[str]]:
    """The names of the calls to the object store."""
    calls: list[str] = []

    def note(model: Any, **_: Any) -> None:
        calls.append(model.name)

    s3_events = storage.client().meta.events
    s3_events.register("before-call.s3", note)
    yield calls
    s3_events.unregister("before-call.s3", note)


def test_many_parts_of_a_checkpoint_are_looked_up_by_a_few_listings(
    agent: AgentClient, attempt: Attempt, s3_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [stored_part(attempt, f"checkpoints/1/rank{number}") for number in range(40)]
    listed = storage.page
    monkeypatch.setattr(storage, "page", lambda prefix, after="": listed(prefix, after, limit=15))
    s3_calls.clear()
    assert agent("POST", "checkpoints", manifest_of(attempt, 1, parts).model_dump(mode="json")).status_code == 201
    assert s3_calls == ["ListObjectsV2"] * 3
    storage.delete([parts[17].key])
    answer = agent("POST", "checkpoints", manifest_of(attempt, 2, parts).model_dump(mode="json"))
    assert (answer.status_code, answer.json()["code"]) == (422, "part_missing")
    assert parts[17].key in answer.json()["detail"]


def test_a_part_that_the_listing_does_not_have_yet_is_asked_for(
    agent: AgentClient, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [stored_part(attempt, f"checkpoints/1/rank{number}") for number in range(20)]
    monkeypatch.setattr(storage, "page", lambda prefix, after="": storage.Page([], is_last=True))
    assert agent("POST", "checkpoints", manifest_of(attempt, 1, parts).model_dump(mode="json")).status_code == 201


def test_a_checkpoint_exists_only_when_its_parts_do(agent: AgentClient, attempt: Attempt) -> None:
    part = stored_part(attempt, "checkpoints/1/rank0")
    absent = part.model_copy(update={"key": part.key + "-absent"})
    body = manifest_of(attempt, 1, [part, absent]).model_dump(mode="json")
    answer = agent("POST", "checkpoints", body)
    assert (answer.status_code, answer.json()["code"]) == (422, "part_missing")
    assert Checkpoint.objects.count() == 0
    short = part.model_copy(update={"size": part.size + 1})
    assert agent("POST", "checkpoints", manifest_of(attempt, 1, [short]).model_dump(mode="json")).status_code == 422
    whole = manifest_of(attempt, 1, [part]).model_dump(mode="json")
    first, again = agent("POST", "checkpoints", whole), agent("POST", "checkpoints", whole)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert JobEvent.objects.filter(type="checkpoint.registered").count() == 1


def test_a_manifest_that_names_another_jobs_objects_is_refused(
    agent: AgentClient, attempt: Attempt, submit: Callable[..., Job]
) -> None:
    other = drive.start(submit(name="other"))
    foreign = stored_part(other, "checkpoints/1/rank0")
    answer = agent("POST", "checkpoints", manifest_of(attempt, 1, [foreign]).model_dump(mode="json"))
    assert (answer.status_code, answer.json()["code"]) == (403, "outside_prefix")


def test_nothing_resumes_from_a_damaged_checkpoint(agent: AgentClient, attempt: Attempt) -> None:
    for step in (1, 2):
        part = stored_part(attempt, f"checkpoints/{step}/rank0")
        agent("POST", "checkpoints", manifest_of(attempt, step, [part]).model_dump(mode="json"))
    damaged = {"attempt_id": attempt.id, "generation": 0, "step": 2, "because": "digest differs"}
    for _ in range(2):
        assert agent("POST", "checkpoints:damaged", damaged).status_code == 200
    assert agent("GET", "run").json()["resume"]["step"] == 1
    told = JobEvent.objects.filter(job=attempt.job, type="checkpoint.damaged")
    assert [(event.data["step"], event.data["because"]) for event in told] == [(2, "digest differs")]
    assert agent("POST", "checkpoints:damaged", {**damaged, "step": 7}).status_code == 404
    agent("POST", "checkpoints:damaged", {**damaged, "step": 1})
    refused = agent("GET", "run")
    assert (refused.status_code, refused.json()["code"]) == (409, "no_intact_checkpoint")


def test_the_agent_learns_after_how_long_a_rank_hangs(submit: Callable[..., Job]) -> None:
    attempt = drive.start(submit(retry={"hang_seconds": 90}))
    assert AgentClient(tokens.issue(attempt.id))("GET", "run").json()["hang_seconds"] == 90


def test_a_job_that_diverged_resumes_from_an_earlier_checkpoint(agent: AgentClient, attempt: Attempt) -> None:
    Job.objects.filter(pk=attempt.job_id).update(
        resolved_spec={**attempt.job.resolved_spec, "checkpoint": {"every_steps": 1, "keep_last": 4}}
    )
    for step in (10, 20, 30, 40):
        part = stored_part(attempt, f"checkpoints/{step}/rank0")
        agent("POST", "checkpoints", manifest_of(attempt, step, [part]).model_dump(mode="json"))
    request = {"generation": 0, "last_good_step": 25, "first_sequence": 800, "because": "NaN"}
    back = {"attempt_id": attempt.id, "generation": 0, "from_step": 20, "first_sequence": 800}
    for _ in range(2):  # the agents of two nodes
        answer = agent("POST", "rollbacks", request)
        assert (answer.status_code, answer.json()) == (200, {"rollback": back})
    config = agent("GET", "run").json()
    assert (config["resume"]["step"], config["rollbacks"]) == (20, [back])
    states = [row.state for row in Checkpoint.objects.order_by("step")]
    assert states == ["intact", "intact", "diverged", "diverged"]
    answer = agent("POST", "rollbacks", {**request, "generation": 1, "last_good_step": 9})
    assert answer.json() == {"rollback": None}
    assert agent("GET", "run").json()["rollbacks"] == [back]
    later = manifest_of(attempt, 30, [stored_part(attempt, "checkpoints/again/rank0")])
    agent("POST", "checkpoints", later.model_copy(update={"generation": 1}).model_dump(mode="json"))
    kept = Checkpoint.objects.filter(retired_at__isnull=True).order_by("generation", "step")
    assert [(row.generation, row.step) for row in kept] == [(0, 10), (0, 20), (1, 30)], "the others are deleted"
    assert agent("POST", "rollbacks", {**request, "last_good_step": -1}).status_code == 422
    for generation in range(2, 6):  # whatever an agent asks for, the spec limits how often
        agent("POST", "rollbacks", {**request, "generation": generation, "last_good_step": 30})
    assert [each["generation"] for each in agent("GET", "run").json()["rollbacks"]] == [0, 2]


@pytest.mark.parametrize("days", [6, 8])
def test_a_damaged_checkpoint_takes_no_place_of_those_that_are_retained(
    agent: AgentClient, attempt: Attempt, days: int
) -> None:
    """It is retired when the time has passed in which an administrator can mark it as intact."""
    keep = attempt.job.resolved_spec["checkpoint"]["keep_last"]
    for step in range(1, keep + 1):
        part = stored_part(attempt, f"checkpoints/{step}/rank0")
        agent("POST", "checkpoints", manifest_of(attempt, step, [part]).model_dump(mode="json"))
    damaged = {"attempt_id": attempt.id, "generation": 0, "step": keep, "because": "digest differs"}
    agent("POST", "checkpoints:damaged", damaged)
    Checkpoint.objects.exclude(damaged_at=None).update(damaged_at=timezone.now() - timedelta(days=days))
    later = manifest_of(attempt, keep, [stored_part(attempt, "checkpoints/again/rank0")]).model_copy(
        update={"generation": 1}
    )
    agent("POST", "checkpoints", later.model_dump(mode="json"))
    kept = Checkpoint.objects.filter(retired_at__isnull=True).order_by("generation", "step")
    steps = range(1, keep) if days > settings.ATHANOR.undo_days else range(1, keep + 1)
    assert [(row.generation, row.step) for row in kept] == [*((0, step) for step in steps), (1, keep)]


def test_old_checkpoints_are_retired_and_their_objects_deleted(agent: AgentClient, attempt: Attempt) -> None:
    for step in (1, 2, 3):
        part = stored_part(attempt, f"checkpoints/{step}/rank0")
        agent("POST", "checkpoints", manifest_of(attempt, step, [part]).model_dump(mode="json"))
    kept = Checkpoint.objects.filter(retired_at__isnull=True).order_by("step")
    assert [row.step for row in kept] == [2, 3]
    assert artifacts.sweep_retired() == 1
    assert storage.size_of(f"jobs/{attempt.job_id}/checkpoints/1/rank0") is None
    assert storage.size_of(f"jobs/{attempt.job_id}/checkpoints/2/rank0") is not None
    assert RunConfig.model_validate(agent("GET", "run").json()).resume.step == 3


@pytest.mark.parametrize("keep_best", [False, True])
def test_the_checkpoint_with_the_lowest_loss_is_retained_on_request(
    submit: Callable[..., Job], bucket: str, keep_best: bool
) -> None:
    policy = {"every_steps": 1, "keep_last": 1, "keep_best": keep_best}
    attempt = drive.start(submit(name="best", checkpoint=policy))
    agent = AgentClient(tokens.issue(attempt.id))
    best: dict[str, float] = {}
    for step, loss in ((1, 3.0), (2, 2.0), (3, 2.5), (4, 2.2)):
        if loss < best.get("evaluation/best_loss", 9.0):
            best = {"evaluation/best_loss": loss, "evaluation/best_step": float(step)}
        part = stored_part(attempt, f"checkpoints/{step}/rank0")
        manifest = manifest_of(attempt, step, [part]).model_copy(update={"metrics": {"evaluation/loss": loss, **best}})
        assert agent("POST", "checkpoints", manifest.model_dump(mode="json")).status_code == 201
    kept = Checkpoint.objects.filter(job=attempt.job, retired_at__isnull=True).order_by("step")
    assert [row.step for row in kept] == ([2, 4] if keep_best else [4])
    part = stored_part(attempt, "checkpoints/5/rank0")
    without_loss = manifest_of(attempt, 5, [part]).model_copy(update={"metrics": {"evaluation/best_step": 5.0}})
    assert agent("POST", "checkpoints", without_loss.model_dump(mode="json")).status_code == 201
    run = RunConfig.model_validate(agent("GET", "run").json())
    assert run.resume is not None
    assert run.resume.step == 5
    assert (run.best.step if run.best is not None else None) == (2 if keep_best else None)


def test_milestones_are_retained(submit: Callable[..., Job], bucket: str) -> None:
    attempt = drive.start(submit(checkpoint={"every_steps": 1, "keep_last": 1, "keep_every_steps": 4}))
    agent = AgentClient(tokens.issue(attempt.id))
    for step in range(1, 11):
        part = stored_part(attempt, f"checkpoints/{step}/rank0")
        assert (
            agent("POST", "checkpoints", manifest_of(attempt, step, [part]).model_dump(mode="json")).status_code == 201
        )
    kept = Checkpoint.objects.filter(job=attempt.job, retired_at__isnull=True).order_by("step")
    assert [row.step for row in kept] == [4, 8, 10]


def test_a_model_is_registered_once(agent: AgentClient, attempt: Attempt) -> None:
    part = stored_part(attempt, "model/model.safetensors")
    manifest = ModelManifest(
        job_id=attempt.job_id, attempt_id=attempt.id, step=10, num_parameters=1, created_at=NOW,
        files=[StoredFile(path="model.safetensors", parts=[part])],
    )  # fmt: skip
    body = manifest.model_dump(mode="json")
    assert [agent("POST", "artifacts", body).status_code for _ in range(2)] == [201, 201]
    assert Artifact.objects.filter(kind="model").count() == 1


def test_a_repeated_batch_is_acknowledged_and_a_gap_refused(agent: AgentClient) -> None:
    def batch(sequence: int) -> dict[str, Any]:
        point = {"step": sequence, "time": NOW.isoformat(), "values": {"train/loss": 1.0}}
        return {"writer": "rank0", "sequence": sequence, "points": [point]}

    assert agent("POST", "metrics", batch(0)).json() == {"next_sequence": 1}
    assert agent("POST", "metrics", batch(0)).json() == {"next_sequence": 1}
    gap = agent("POST", "metrics", batch(5))
    assert (gap.status_code, gap.json()["code"], gap.json()["next_sequence"]) == (409, "sequence_gap", 1)
    assert MetricChunk.objects.count() == 1


def test_a_message_that_is_none_is_refused_by_field(agent: AgentClient) -> None:
    answer = agent("POST", "metrics", {"writer": "RANK 0", "sequence": -1})
    assert answer.status_code == 422
    assert {item["pointer"] for item in answer.json()["errors"]} == {"/writer", "/sequence"}


def test_a_heartbeat_hears_of_a_stop(agent: AgentClient, attempt: Attempt) -> None:
    beat = {"node_rank": 0, "generation": 0, "phase": "training", "step": 3, "processes_alive": 1}
    assert agent("POST", "heartbeat", beat).json() == {"stop": None, "profile": None, "round": 0, "grows": False}
    services.request_stop(attempt.job_id, actor="ada")
    drive.settle()
    assert agent("POST", "heartbeat", beat).json() == {"stop": "cancel", "profile": None, "round": 0, "grows": False}


def test_a_token_of_letters_that_none_has_is_refused(attempt: Attempt) -> None:
    assert AgentClient(f"{attempt.id}.\xe9")("GET", "run").status_code == 401


def test_an_end_and_progress_that_carry_a_nul_are_taken(attempt: Attempt, agent: AgentClient) -> None:
    end = {"end_class": "user_error", "last_step": 3, "message": "bad \x00 byte", "at": NOW.isoformat()}
    assert agent("POST", "end", end).status_code == 201
    attempt.refresh_from_db()
    assert attempt.end_report is not None
    assert attempt.end_report["message"] == "bad \N{REPLACEMENT CHARACTER} byte"
    skipped = {"time": NOW.isoformat(), "type": "step.skipped", "data": {"text": "\x00"}}
    batch = {"writer": "node-0", "sequence": 0, "events": [skipped]}
    assert agent("POST", "progress", batch).status_code == 200
    assert JobEvent.objects.filter(job=attempt.job, data__text="\N{REPLACEMENT CHARACTER}").exists()


def test_a_notice_of_a_spot_machine_leads_to_a_checkpoint_and_the_queue(
    agent: AgentClient, attempt: Attempt, world: World
) -> None:
    drive.beat(attempt, step=1)
    observe.observe_due()
    beat = {"node_rank": 0, "generation": 0, "phase": "training", "step": 1, "interruption": "TRUE"}
    for _ in range(2):  # reported by every node, and again
        assert agent("POST", "heartbeat", beat).json()["stop"] == "pause"
    job = attempt.job
    assert drive.status_of(job) == ("pausing", "spot_notice")
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("queued", "spot_notice")
    assert Job.objects.get(pk=job.pk).reason_detail == "Its provider said: TRUE."
    assert drive.start(job).number == 2
