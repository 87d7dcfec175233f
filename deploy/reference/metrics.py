"""docs/reference/metrics.md, from the gauges of the platform's state and the instruments of its processes."""

from prometheus_client.metrics import MetricWrapperBase

from athanor.core import metrics
from athanor.monitoring.gauges import GAUGES
from deploy.reference.markdown import code, page, table

INTRODUCTION = """
What `GET /metrics` serves ([how to scrape it](../operations/metrics.md)). Gauges are the state of the platform, the
same from each web process. Counters and histograms are of the processes that are scraped.
"""


def metrics_page() -> str:
    """Return the page."""
    found = [(f"athanor_{each.name}", "gauge", each.labels, each.documentation) for each in GAUGES]
    for instrument in vars(metrics).values():
        if isinstance(instrument, MetricWrapperBase):
            family = next(iter(instrument.describe()))
            suffix = "_total" if family.type == "counter" else ""
            found.append((f"{family.name}{suffix}", family.type, instrument._labelnames, family.documentation))
    rows = [
        (code(name), kind, ", ".join(code(label) for label in labels), text)
        for name, kind, labels, text in sorted(found)
    ]
    return page("Metrics", INTRODUCTION, table(("metric", "type", "labels", "meaning"), rows))
