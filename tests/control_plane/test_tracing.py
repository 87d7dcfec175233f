"""Traces: what a collector receives, over OTLP as it does, and that nothing depends on one."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.db import transaction
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from ulid import ULID

from athanor.accounts.failures import run_isolated
from athanor.core import task_triggers, tracing
from athanor.core.logging import bound
from athanor.dispatch.submit import prepare_due, submit_due
from athanor.jobs import traces
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import JobStatus
from athanor.jobs.transitions import move
from athanor.scheduling.services import admit
from tests.control_plane.api.test_goodput import SLOTS, interrupted  # noqa: F401 - fixtures
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


class Collector:
    """A server that takes spans as an OpenTelemetry collector does: `POST /v1/traces`, protobuf."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self.resource: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    outer.resource = {each.key: each.value.string_value for each in group.resource.attributes}
                    for scope in group.scope_spans:
                        outer._spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def spans(self) -> list[Span]:
        """Return what was exported until now."""
        tracing.flush()
        return self._spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def restart_tracing(settings: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"traces": "otlp"})
    tracing._provider.cache_clear()


@pytest.fixture
def collector(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    running = Collector()
    restart_tracing(settings, monkeypatch, running.url)
    yield running
    tracing._provider().shutdown()
    tracing._provider.cache_clear()
    running.close()


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def trace_of(job: Job) -> bytes:
    return ULID.from_str(job.id.removeprefix("job_")).bytes


def children(spans: list[Span], parent: Span) -> list[Span]:
    return [span for span in spans if span.parent_span_id == parent.span_id]


def test_a_job_is_one_trace_with_its_attempts_and_activities(collector: Collector, interrupted: Job) -> None:  # noqa: F811 - the fixture
    traces.export(interrupted.id)
    spans = collector.spans()
    assert {span.trace_id for span in spans} == {trace_of(interrupted)}
    (root,) = (span for span in spans if not span.parent_span_id)
    assert root.name == "job"
    assert attributes(root)["athanor.status"] == interrupted.status
    assert (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9 == pytest.approx(
        (interrupted.finished_at - interrupted.created_at).total_seconds()
    )
    attempts = [span for span in children(spans, root) if span.name.startswith("attempt ")]
    assert [span.name for span in attempts] == [
        f"attempt {number}" for number in Attempt.objects.filter(job=interrupted).values_list("number", flat=True)
    ]
    activities = [span for span in spans if span is not root and span not in attempts]
    assert {"training", "startup"} <= {span.name.partition(":")[0] for span in activities}
    covered = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in activities)
    assert covered == root.end_time_unix_nano - root.start_time_unix_nano, "activities add up to the job's time"
    for attempt in attempts:
        for span in children(spans, attempt):
            assert attempt.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= attempt.end_time_unix_nano
    assert collector.resource["service.name"] == "athanor"


def test_requests_that_change_a_job_are_in_its_trace_and_its_end_exports_it(
    collector: Collector, api: Api, submit: Callable[..., Job], django_capture_on_commit_callbacks: Any
) -> None:
    job = submit()
    api.get(f"/api/v1/jobs/{job.id}")
    with django_capture_on_commit_callbacks(execute=True):
        assert api.post(f"/api/v1/jobs/{job.id}:cancel").status_code == 202
        job.refresh_from_db()
        with transaction.atomic():
            move(job, JobStatus.CANCELLED, reason=Reason.STOPPED_BY_USER, actor="dispatch")
    by_name = {span.name: span for span in collector.spans()}
    cancelled = by_name["POST api/v1/jobs/<id:job_id>:cancel"]
    assert cancelled.trace_id == by_name["job"].trace_id == trace_of(job)
    assert cancelled.parent_span_id == by_name["job"].span_id
    assert attributes(cancelled)["http.response.status_code"] == 202
    assert attributes(cancelled)["athanor.job_id"] == job.id
    assert attributes(by_name["job"])["athanor.status"] == "cancelled"
    assert by_name["GET api/v1/jobs/<id:job_id>"].trace_id != trace_of(job)


def test_the_request_that_submits_a_job_is_in_its_trace(
    collector: Collector, api: Api, spec: dict[str, Any], pool: Any
) -> None:
    answer = api.send("POST", "jobs", spec)
    assert answer.status_code == 201
    (span,) = (span for span in collector.spans() if span.name == "POST api/v1/jobs")
    assert span.trace_id == trace_of(Job.objects.get(id=answer.json()["id"]))


def test_refused_requests_and_reports_of_agents_are_in_no_trace_of_a_job(
    collector: Collector, api: Api, api_of: Any, submit: Callable[..., Job], make_user: Any, other_team: Any
) -> None:
    """With another team's token, nothing gets into the trace of a job."""
    job = submit()
    stranger = api_of(make_user("eve", other_team), other_team)
    assert stranger.post(f"/api/v1/jobs/{job.id}:cancel").status_code == 404
    with bound(job="job_nonsense"), tracing.work("x"):
        pass
    assert {span.name for span in collector.spans()} >= {"x", "POST api/v1/jobs/<id:job_id>:cancel"}
    assert trace_of(job) not in {span.trace_id for span in collector.spans()}


def test_background_work_that_brings_a_job_further_is_in_its_trace(
    collector: Collector, submit: Callable[..., Job]
) -> None:
    job = submit()

    def fail() -> None:
        raise ZeroDivisionError("a secret")

    with bound(job=job.id):
        run_isolated(task_triggers.DISPATCH, f"submitting {job.id}", fail)
        run_isolated(task_triggers.OBSERVE, f"observing {job.id}", lambda: None)
    (span,) = collector.spans()
    assert (span.name, span.trace_id) == (task_triggers.DISPATCH, trace_of(job))
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "ZeroDivisionError")
    assert b"secret" not in span.SerializeToString()


def test_the_submission_to_a_cluster_is_in_the_trace_of_the_job(
    collector: Collector, submit: Callable[..., Job]
) -> None:
    job = submit()
    assert admit()
    prepare_due()
    submit_due()
    attempt = Attempt.objects.get(job=job)
    prepared, submitted = collector.spans()
    assert {span.name for span in (prepared, submitted)} == {task_triggers.DISPATCH}
    assert {span.trace_id for span in (prepared, submitted)} == {trace_of(job)}
    assert attributes(submitted)["athanor.attempt_id"] == attempt.id
    assert submitted.parent_span_id == tracing.span_id_of(attempt.id).to_bytes(8)


def test_without_traces_nothing_is_made(settings: Any, api: Api, submit: Callable[..., Job]) -> None:
    assert settings.ATHANOR.traces == "off"
    tracing._provider.cache_clear()
    api.get(f"/api/v1/jobs/{submit().id}")
    assert tracing._provider.cache_info().currsize == 0


def test_a_collector_that_does_not_answer_disturbs_nothing(
    settings: Any, monkeypatch: pytest.MonkeyPatch, api: Api, submit: Callable[..., Job]
) -> None:
    restart_tracing(settings, monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setattr(tracing, "EXPORT_SECONDS", 0.2)
    assert api.get(f"/api/v1/jobs/{submit().id}").status_code == 200
    tracing._provider().shutdown()
    assert api.get("/api/v1/jobs").status_code == 200
    tracing._provider.cache_clear()
