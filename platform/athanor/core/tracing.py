"""Spans for OpenTelemetry, off unless ATHANOR_TRACES is `otlp`. The OTEL_* variables of the SDK set where they go.

A job is one trace: its id is the 128 bits of the job's ULID, so that whatever knows the job's id can add to it. Spans
contain ids, routes, names of tasks and statuses: no bodies, queries or messages.
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from ulid import ULID

from athanor.core.logging import bound_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

JOB_PREFIX = "job_"
EXPORT_SECONDS = 5  # of one request to the collector
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_pinned: ContextVar[tuple[int, int] | None] = ContextVar("pinned", default=None)

Attributes = Mapping[str, str | int | float | bool]


@dataclass
class Work:
    """A piece of work that is measured. `error`: why it failed, "" if it did not. `in_job`: whether its span is part of
    the trace of the job to which its log lines are bound. `exported`: whether it becomes a span at all."""

    name: str
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict)
    error: str = ""
    in_job: bool = True
    exported: bool = True


@dataclass(frozen=True)
class JobSpan:
    """A span of a job's trace. `id`: what its span id is computed from; "" for any. `parent`: that of its parent, None
    for the root."""

    name: str
    start: datetime
    end: datetime
    parent: str | None
    id: str = ""
    attributes: Attributes = field(default_factory=dict)
    error: str = ""


def is_on() -> bool:
    """Return whether spans are exported."""
    return bool(settings.ATHANOR.traces == "otlp")


def trace_id_of(job_id: str) -> int | None:
    """Return the id of a job's trace, None if the text is no id of a job."""
    try:
        return int.from_bytes(ULID.from_str(job_id.removeprefix(JOB_PREFIX)).bytes) if job_id else None
    except ValueError:
        return None


def span_id_of(text: str) -> int:
    """Return the id of the span of a job or attempt: never zero."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) or 1


@contextmanager
def work(name: str, kind: SpanKind = SpanKind.INTERNAL, *, exported: bool = True) -> Iterator[Work]:
    """Measure the block as a span. What is set on the yielded Work until its end counts."""
    measured, began = Work(name, exported=exported), time.time_ns()
    try:
        yield measured
    except Exception as error:  # of any work: it is named in the span, and raised again
        measured.error = type(error).__name__
        raise
    finally:
        if is_on() and measured.exported:
            _export_work(measured, kind, began)


def export_job(job_id: str, spans: list[JobSpan]) -> None:
    """Export spans of a job's trace."""
    trace_id = trace_id_of(job_id)
    assert trace_id is not None, f"{job_id} is no id of a job"
    for span in spans:
        parent = Context() if span.parent is None else _context(trace_id, span.parent)
        token = _pinned.set((trace_id, span_id_of(span.id))) if span.id else None
        try:
            _export(span.name, parent, SpanKind.INTERNAL, (_nanoseconds(span.start), _nanoseconds(span.end)),
                    span.attributes, span.error)  # fmt: skip
        finally:
            if token is not None:
                _pinned.reset(token)


def flush() -> None:
    """Send the spans that wait, within EXPORT_SECONDS."""
    _provider().force_flush(EXPORT_SECONDS * 1000)


def _export_work(measured: Work, kind: SpanKind, began: int) -> None:
    job = bound_id("job")
    trace_id = trace_id_of(job) if measured.in_job else None
    parent = Context() if trace_id is None else _context(trace_id, bound_id("attempt") or job)
    ids = {f"athanor.{name}_id": bound_id(name) for name in ("job", "attempt", "request") if bound_id(name)}
    _export(measured.name, parent, kind, (began, time.time_ns()), {**ids, **measured.attributes}, measured.error)


def _export(
    name: str, parent: Context, kind: SpanKind, times: tuple[int, int], attributes: Attributes, error: str
) -> None:
    """Export one span. Nothing that goes wrong here may disturb the work that is traced."""
    try:
        tracer = _provider().get_tracer("athanor")
        span = tracer.start_span(name, parent, kind, attributes=dict(attributes), start_time=times[0])
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(times[1])
    except Exception:  # of the SDK, or of its settings
        log.exception("the span %s was not exported", name)


def _context(trace_id: int, parent: str) -> Context:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return set_span_in_context(NonRecordingSpan(SpanContext(trace_id, span_id_of(parent), True, sampled)), Context())


@cache
def _provider() -> "TracerProvider":
    from athanor.core import otlp  # noqa: PLC0415 - takes 0.14 s, which no program without traces should spend

    return otlp.provider(_pinned, EXPORT_SECONDS)


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1000
