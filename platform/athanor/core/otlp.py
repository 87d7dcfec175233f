"""The part of tracing that needs OpenTelemetry's SDK: imported where traces are on (core/tracing.py)."""

from contextvars import ContextVar
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

Pinned = ContextVar[tuple[int, int] | None]


def provider(pinned: Pinned, export_seconds: float) -> TracerProvider:
    """Return a provider that exports in batches, in a thread of its own. `pinned`: trace and span id of the next span,
    None for random ones."""
    resource = Resource({"service.name": "athanor", "service.version": version("athanor")})
    made = TracerProvider(
        sampler=ALWAYS_ON, resource=resource.merge(OTELResourceDetector().detect()), id_generator=_Ids(pinned)
    )
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=export_seconds)))
    return made


class _Ids(RandomIdGenerator):
    """Random ids, apart from those of a job and its attempts."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        pinned = self._pinned.get()
        return pinned[0] if pinned else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        pinned = self._pinned.get()
        return pinned[1] if pinned else super().generate_span_id()
