"""Collect findings by kind: how many rows have each, and the first of them."""

from dataclasses import dataclass, field

from trainer.contract.data_findings import FINDINGS, SEVERITIES
from trainer.contract.data_report import MAX_PLACES, Finding, FoundAt
from trainer.data.documents import Place
from trainer.data_report.secrets import hide_secrets


@dataclass
class Findings:
    """Findings of one source. `max_places`: how many places of each kind are stored."""

    max_places: int = MAX_PLACES
    _counts: dict[str, int] = field(default_factory=dict)
    _places: dict[str, list[FoundAt]] = field(default_factory=dict)

    def add(self, kind: str, place: Place, detail: str = "") -> None:
        """Record a finding. Call it once for a row and kind."""
        assert kind in FINDINGS, kind
        self._counts[kind] = self._counts.get(kind, 0) + 1
        places = self._places.setdefault(kind, [])
        if len(places) < self.max_places:
            places.append(FoundAt(object=place.object, row=place.row, detail=hide_secrets(detail)))

    def result(self, rows: int) -> list[Finding]:
        """Return the findings of `rows` rows, the most severe and most frequent first."""
        found = [
            Finding(
                kind=kind, severity=FINDINGS[kind].severity, title=FINDINGS[kind].title, count=count,
                share=min(1.0, count / max(1, rows)), places=self._places[kind], remedy=FINDINGS[kind].remedy,
            )
            for kind, count in self._counts.items()
        ]  # fmt: skip
        return sorted(found, key=lambda each: (SEVERITIES.index(each.severity), -each.count, each.kind))
