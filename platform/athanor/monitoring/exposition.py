"""The metrics in Prometheus' text format: those of the processes, and the state of the platform."""

import logging
import threading
import time
from collections.abc import Iterable

from django.conf import settings
from django.db import DatabaseError
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from athanor.core import tenancy
from athanor.monitoring import gauges, state

CONTENT_TYPE = CONTENT_TYPE_LATEST
FRESH_SECONDS = 5.0  # several servers that scrape do not each read the database

log = logging.getLogger(__name__)


def render() -> bytes:
    """Return the metrics of this process, or of all that share PROMETHEUS_MULTIPROC_DIR, and the platform's state.

    If the database does not answer, `athanor_state_up` is 0 and the rest of the state is left out.
    """
    return generate_latest(_of_processes()) + _state.rendered()


def serve(host: str, port: int) -> None:
    """Serve the metrics of this process alone, in a thread of its own. Raises OSError if the address is not free."""
    start_http_server(port, host, _of_processes())


def _of_processes() -> CollectorRegistry:
    folder = settings.ATHANOR.metrics_folder
    if folder is None:
        return REGISTRY
    shared = CollectorRegistry()
    MultiProcessCollector(shared, str(folder))  # type: ignore[no-untyped-call] # the library has no type for it
    return shared


class _Samples(Collector):
    """Samples of gauges, as metric families of the library. A gauge without samples has its description."""

    def __init__(self, samples: Iterable[state.Sample]) -> None:
        self._families = {
            gauge: GaugeMetricFamily(f"athanor_{gauge.name}", gauge.documentation, labels=gauge.labels)
            for gauge in gauges.GAUGES
        }
        for gauge, labels, value in samples:
            self._families[gauge].add_metric([str(label) for label in labels], value)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the families."""
        return self._families.values()


class _State:
    """The state in the text format, read once in FRESH_SECONDS, by one request at a time."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._text, self._read_at = b"", float("-inf")

    def rendered(self) -> bytes:
        with self._reading:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._text = self._read()
                self._read_at = time.monotonic()
            return self._text

    def _read(self) -> bytes:
        samples: list[state.Sample] = []
        try:
            with tenancy.unrestricted():
                samples = [*state.read(), (gauges.STATE_UP, (), 1.0)]
        except DatabaseError as error:
            log.warning("the state of the platform could not be read for metrics: %s", error)
            samples = [(gauges.STATE_UP, (), 0.0)]
        registry = CollectorRegistry()
        registry.register(_Samples(samples))
        return generate_latest(registry)


_state = _State()
