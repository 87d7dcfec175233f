"""What the agent API refuses: events of the platform, times out of range, numbers that do not fit a column."""

import copy
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.artifacts import storage
from athanor.backends.fake.backend import World
from athanor.dispatch import tokens
from athanor.jobs import event_feed
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.states import AttemptStatus
from athanor.jobs.timeline import OF_WALL_TIME
from athanor.telemetry import codec, compaction
from athanor.telemetry.models import LogChunk, MetricChunk
from athanor.webhooks import envelope, publishing
from athanor.webhooks import services as webhooks
from athanor.webhooks.models import Delivery
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, manifest_of
from tests.control_plane.conftest import Api
from trainer.contract.base import MAX_INT32
from trainer.contract.events import AGENT_EVENT_TYPES
from trainer.contract.manifest import DatasetManifest, ModelManifest, ProfileManifest, StoredFile, StoredPart

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
FUTURE = "9999-12-31T23:59:59Z"
PAST = "1970-01-01T00:00:00Z"
EXTREMES = (2**31, 2**40, 2**63, 2**70, 10**400, -2, -(2**31) - 1, -(2**70))


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.start(submit())


@pytest.fixture
def agent(attempt: Attempt) -> AgentClient:
    return AgentClient(tokens.issue(attempt.id))


def events_batch(*types: str, sequence: int = 0, time: str = NOW, **data: Any) -> dict[str, Any]:
    events = [{"type": type_, "time": time, "data": data} for type_ in types]
    return {"writer": "agent", "sequence": sequence, "events": events}


def test_an_agent_cannot_forge_the_status_of_its_job(agent: AgentClient, attempt: Attempt) -> None:
    webhook, _ = webhooks.create(
        attempt.job.team, url="https://example.org/", name="", types=[], actor=attempt.job.created_by
    )
    event_feed.assign_numbers()
    before = JobEvent.objects.filter(job=attempt.job, type="job.status").count()
    body = events_batch("job.status", "checkpoint.saved", to="succeeded")
    assert agent("POST", "progress", body).json() == {"next_sequence": 1}
    publishing.publish_due()
    assert JobEvent.objects.filter(job=attempt.job, type="job.status").count() == before
    sent = set(Delivery.objects.filter(webhook=webhook).values_list("event_type", flat=True))
    assert "job.status.succeeded" not in sent
    refused = JobEvent.objects.get(job=attempt.job, type="agent.events_refused")
    assert (refused.actor, refused.data) == ("platform", {"attempt": attempt.id, "types": ["job.status"], "count": 1})
    assert "job.status" in refused.message
    assert JobEvent.objects.filter(job=attempt.job, type="checkpoint.saved").exists(), "the rest of the batch is stored"


@pytest.mark.parametrize(
    "type_",
    ["job.status", "job.submitted", "job.budget_warning", "budget.spent", "checkpoint.registered"]
    + ["artifact.registered", "profile.ready", "webhook.test", "agent.events_refused", "made.up"],
)
def test_events_of_other_senders_are_dropped_and_recorded(agent: AgentClient, attempt: Attempt, type_: str) -> None:
    assert agent("POST", "progress", events_batch(type_, type_)).status_code == 200
    assert not JobEvent.objects.filter(job=attempt.job, actor=attempt.id).exists()
    assert JobEvent.objects.get(job=attempt.job, type="agent.events_refused").data["types"] == [type_]


def test_every_type_of_the_trainer_is_taken(agent: AgentClient, attempt: Attempt) -> None:
    types = sorted(AGENT_EVENT_TYPES)
    assert agent("POST", "progress", events_batch(*types)).status_code == 200
    stored = JobEvent.objects.filter(job=attempt.job, actor=attempt.id).order_by("seq")
    assert list(stored.values_list("type", flat=True)) == types
    assert not {"job", "budget", "artifact", "profile", "webhook"} & {type_.partition(".")[0] for type_ in types}


def test_a_flood_of_unknown_types_makes_one_bounded_record(agent: AgentClient, attempt: Attempt) -> None:
    types = [f"made.up_{'x' * number}" for number in range(40)]
    assert agent("POST", "progress", events_batch(*types)).status_code == 200
    (refused,) = JobEvent.objects.filter(job=attempt.job, type="agent.events_refused")
    assert (len(refused.data["types"]), refused.data["count"]) == (10, 40)


@pytest.mark.parametrize("time", [FUTURE, PAST, "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999-23:59"])
def test_times_of_an_agent_lie_between_its_launch_and_now(agent: AgentClient, attempt: Attempt, time: str) -> None:
    earliest = attempt.created_at
    points = [{"step": 1, "time": time, "values": {"train/loss": 1.0}}]
    lines = [{"time": time, "rank": 0, "stream": "stdout", "text": "hello"}]
    more_points = [{"step": 2, "time": time, "values": {"train/loss": 1.0}}]
    for path, items in (
        ("progress", {"events": [{"type": "checkpoint.saved", "time": time, "data": {}}]}),
        ("metrics", {"points": points}),
        ("logs", {"lines": lines}),
    ):
        assert agent("POST", path, {"writer": "w", "sequence": 0, **items}).status_code == 200, path
    assert agent("POST", "metrics", {"writer": "w", "sequence": 1, "points": more_points}).status_code == 200
    latest = timezone.now()
    stored = [JobEvent.objects.get(job=attempt.job, type="checkpoint.saved").time.timestamp()]
    for chunk in MetricChunk.objects.filter(attempt=attempt):
        stored += [at for _, at, _ in codec.unpack_rows(chunk.content)]
    for log in LogChunk.objects.filter(attempt=attempt):
        stored += [at for at, *_ in codec.unpack_rows(log.content)]
    assert len(stored) == 4
    assert all(earliest.timestamp() <= at <= latest.timestamp() for at in stored)


def test_a_true_time_is_stored_as_it_is(agent: AgentClient, attempt: Attempt) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(created_at=timezone.now() - timedelta(hours=2))
    true = timezone.now() - timedelta(hours=1)
    agent("POST", "progress", events_batch("checkpoint.saved", time=true.isoformat()))
    assert JobEvent.objects.get(job=attempt.job, type="checkpoint.saved").time == true


def test_an_end_reported_for_another_century_is_taken_for_now(agent: AgentClient, attempt: Attempt) -> None:
    end = {"end_class": "completed", "last_step": 1, "at": FUTURE}
    assert agent("POST", "end", end).status_code == 201
    attempt.refresh_from_db()
    assert attempt.end_report is not None
    assert attempt.created_at <= datetime.fromisoformat(attempt.end_report["at"]) <= timezone.now()


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-1e300", "1" + "0" * 400, "-5"])
def test_seconds_that_are_none_do_not_change_the_times(
    agent: AgentClient, attempt: Attempt, api: Api, seconds: str
) -> None:
    body = json.dumps(events_batch("checkpoint.saved", "phase.finished", seconds=7.5)).replace("7.5", seconds)
    answer = agent.send_text("progress", body)
    assert answer.status_code == 200, answer.content
    timings = api.get(f"/api/v1/jobs/{attempt.job_id}").json()["timings"]
    assert timings["checkpoint_seconds"] == 0
    assert timings["total_seconds"] == pytest.approx(
        sum(timings[f"{activity}_seconds"] for activity in OF_WALL_TIME), abs=1e-5
    )


# Every body that an agent sends, valid but for what a test plants in it.


def _bodies(attempt: Attempt) -> dict[str, dict[str, Any]]:
    part = StoredPart(key=f"jobs/{attempt.job_id}/p", size=1, sha256="0" * 64, plaintext_size=1)
    storage.put(part.key, b"x")  # so that what is valid is stored
    files = [StoredFile(path="a", parts=[part])]
    checkpoint = manifest_of(attempt, 1, [part]).model_copy(update={"micro_batch": 1})
    common = {"job_id": attempt.job_id, "attempt_id": attempt.id, "created_at": NOW, "files": files}
    model = ModelManifest(step=1, num_parameters=1, **common)
    dataset = DatasetManifest(
        recipe="r", fingerprint="f", vocab_size=1, train_tokens=1, validation_tokens=1, documents=1, created_at=NOW,
        files=files,
    )  # fmt: skip
    profile = ProfileManifest(number=1, node_rank=0, files=files)
    return {
        "heartbeat": {"node_rank": 0, "generation": 0, "phase": "x", "step": 0, "processes_alive": 0},
        "rendezvous": {"node_index": 0, "name": "n", "address": "a", "store_port": 1, "round": 1},
        "metrics": {"writer": "w", "sequence": 0, "points": [{"step": 1, "time": NOW, "generation": 0, "values": {}}]},
        "logs": {"writer": "w", "sequence": 0, "lines": [{"time": NOW, "rank": 0, "stream": "stdout", "text": ""}]},
        "progress": events_batch("checkpoint.saved"),
        "checkpoints": checkpoint.model_dump(mode="json"),
        "artifacts": model.model_dump(mode="json"),
        "datasets": dataset.model_dump(mode="json"),
        "profiles": profile.model_dump(mode="json"),
        "end": {"end_class": "completed", "last_step": 1, "node_rank": 0, "exit_codes": {"0": 0}, "at": NOW},
    }


def _integers(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths of all integers of a JSON document."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, value in items:
        if isinstance(value, int) and not isinstance(value, bool):
            yield (*path, name)
        yield from _integers(value, (*path, name))


def _planted(body: dict[str, Any], path: tuple[Any, ...], value: int) -> str:
    changed = copy.deepcopy(body)
    place: Any = changed
    for piece in path[:-1]:
        place = place[piece]
    place[path[-1]] = 987654321987
    return json.dumps(changed).replace("987654321987", str(value) if abs(value) < 10**300 else "1" + "0" * 400)


@pytest.mark.parametrize(
    "endpoint", ["heartbeat", "rendezvous", "metrics", "logs", "progress", "checkpoints", "artifacts", "datasets"]
    + ["profiles", "end"],
)  # fmt: skip
def test_no_whole_number_of_an_agent_overflows_anything(agent: AgentClient, attempt: Attempt, endpoint: str) -> None:
    """Each number is refused by name, or accepted, and then later processing works too."""
    body = _bodies(attempt)[endpoint]
    found = list(_integers(body))
    assert found
    for path in found:
        for value in EXTREMES:
            answer = agent.send_text(endpoint, _planted(body, path, value))
            assert answer.status_code < 500, (path, value, answer.content)
            if answer.status_code == 422 and answer.json()["code"] == "invalid_message":
                assert answer.json()["errors"][0]["pointer"].endswith(f"/{path[-1]}"), (path, answer.json())
            beyond_column = not -1 <= value <= MAX_INT32
            in_json = endpoint in ("checkpoints", "datasets", "artifacts") or path[0] in ("exit_codes", "files")
            if beyond_column and not in_json:
                assert answer.status_code in (400, 422), (path, value, answer.status_code)
    Attempt.objects.filter(pk=attempt.pk).update(status=AttemptStatus.ENDED.value)
    compaction.compact_due()  # raises for a rank, a step or a name that no column can hold


def test_an_end_report_of_an_older_version_that_cannot_be_read_is_ignored(
    agent: AgentClient, attempt: Attempt, world: World
) -> None:
    bad = {"end_class": "completed", "last_step": 2**70, "at": NOW}
    Attempt.objects.filter(pk=attempt.pk).update(end_report=bad)
    assert agent("POST", "end", bad | {"end_class": "data_error", "last_step": 3}).status_code == 201
    attempt.refresh_from_db()
    assert attempt.end_report is not None
    assert attempt.end_report["last_step"] == 3
    Attempt.objects.filter(pk=attempt.pk).update(end_report=bad)
    world.finish(attempt.backend_name, 65)
    drive.settle()
    assert (job := Job.objects.get(pk=attempt.job_id)).status == "failed", job.reason


@pytest.mark.parametrize(
    ("endpoint", "field", "value"),
    [
        ("heartbeat", "step", 2**31),
        ("heartbeat", "node_rank", 2**40),
        ("heartbeat", "generation", 2**40),
        ("checkpoints", "step", 2**70),
        ("checkpoints", "generation", 2**40),
        ("artifacts", "step", 2**31),
        ("end", "last_step", 2**70),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_name(
    agent: AgentClient, attempt: Attempt, endpoint: str, field: str, value: int
) -> None:
    answer = agent.send_text(endpoint, _planted(_bodies(attempt)[endpoint], (field,), value))
    assert answer.status_code == 422, answer.content
    problem = answer.json()
    assert problem["errors"][0]["pointer"] == f"/{field}"
    assert str(value) in problem["detail"]
    assert field in problem["detail"]


def test_text_of_an_agent_with_a_nul_is_stored_without_it(agent: AgentClient, attempt: Attempt) -> None:
    heartbeat = {"node_rank": 0, "generation": 0, "phase": "tr\x00aining"}
    assert agent("POST", "heartbeat", heartbeat).status_code == 200
    points = [{"step": 1, "time": NOW, "values": {"a\x00b": 1.0}}]
    assert agent("POST", "metrics", {"writer": "w", "sequence": 0, "points": points}).status_code == 200
    manifest = _bodies(attempt)["checkpoints"] | {"torch_version": "2\x00"}
    assert agent("POST", "checkpoints", manifest).status_code == 201
    Attempt.objects.filter(pk=attempt.pk).update(status=AttemptStatus.ENDED.value)
    compaction.compact_due()
    assert not MetricChunk.objects.exists(), "what cannot be stored would be tried for ever"


def test_the_type_of_an_event_names_what_was_sent(attempt: Attempt) -> None:
    event = JobEvent(job=attempt.job, type="job.status", data={"to": "failed"})
    assert envelope.full_type(event) == "job.status.failed"
