"""Counts of marker words of the old dialect never rise, and the dashboard has none."""

import json
import re

import pytest

from tests.architecture import words

pytestmark = pytest.mark.skipif(not (words.REPOSITORY / ".git").exists(), reason="needs a git checkout")


def test_marker_words_become_fewer() -> None:
    allowed: dict[str, int] = json.loads(words.COUNTS.read_text())
    for package, places in words.occurrences().items():
        listed = "\n".join(places)
        assert len(places) <= allowed.get(package, 0), (
            f"{package} has {len(places)} marker words and may have {allowed.get(package, 0)}; "
            f"say it in plain words:\n{listed}"
        )


def test_the_recorded_counts_are_the_present_ones() -> None:
    found = {package: len(places) for package, places in words.occurrences().items()}
    recorded: dict[str, int] = json.loads(words.COUNTS.read_text())
    too_high = {package: count for package, count in recorded.items() if count > found.get(package, 0)}
    assert not too_high, f"record the lower counts: python -m tests.architecture.words ({too_high})"


def test_the_dashboard_has_no_marker_words() -> None:
    places = [place for package in words.occurrences().items() if package[0] == "frontend/src" for place in package[1]]
    assert places == []


def test_a_marker_word_is_found() -> None:
    assert re.search(words.MARKERS, "Whoever asks is told at once.")
    assert words.package_of("platform/athanor/jobs/states.py") == "platform/athanor/jobs"
    assert words.package_of("docs/reference/spec.md") == "docs"
