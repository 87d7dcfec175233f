"""The metrics in Prometheus' text format: those of the processes, and the state of the platform."""

import logging
import threading
import time

from django.conf import settings
from django.db import DatabaseError
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from athanor.core import tenancy
from athanor.monitoring import state

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


class _Families(Collector):
    """Metric families that were read before."""

    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the families."""
        return self._families


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
        up = 1.0
        families: list[GaugeMetricFamily] = []
        try:
            with tenancy.unrestricted():
                families = [family.metric() for family in state.read()]
        except DatabaseError as error:
            log.warning("the state of the platform could not be read for metrics: %s", error)
            up = 0.0
        families += [
            GaugeMetricFamily(
                "athanor_state_up", "1 if the database answered this scrape; else there is no state.", value=up
            ),
        ]
        registry = CollectorRegistry()
        registry.register(_Families(families))
        return generate_latest(registry)


_state = _State()
