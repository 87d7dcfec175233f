"""Log lines are numbered once, read in pages from both ends, and searched without opening every chunk."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from athanor.artifacts.models import Artifact
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import AttemptStatus
from athanor.telemetry import codec, compaction, ingest, logs, retention
from athanor.telemetry.logs import Sought
from athanor.telemetry.models import LogChunk
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import Batch, LogLine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LAUNCH = datetime(2025, 12, 31, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(submit: Callable[..., Job]) -> Attempt:
    return drive.start(submit())


def send(attempt: Attempt, sequence: int, texts: list[str], rank: int = 0) -> None:
    attempt.created_at = LAUNCH  # as if it had run then: times before an attempt are not believed
    found = [LogLine(time=NOW, rank=rank, stream="stdout", text=text) for text in texts]
    ingest.ingest(attempt, "logs", Batch(writer=f"rank{rank}", sequence=sequence, lines=found))


def texts_of(page: logs.Page) -> list[str]:
    return [line.text for line in page.lines]


def forwards(job: Job, after: int = -1, limit: int = 500, **sought: object) -> logs.Page:
    return logs.forwards(job, Sought(**sought), after=after, limit=limit)  # type: ignore[arg-type]


def backwards(job: Job, limit: int, after: int = -1, **sought: object) -> logs.Page:
    return logs.backwards(job, Sought(**sought), after=after, limit=limit)  # type: ignore[arg-type]


def all_pages(job: Job, limit: int, **sought: object) -> list[int]:
    """Return the cursors of all matching lines, page by page, until a page adds nothing."""
    found, after = [], -1
    while (page := forwards(job, after, limit, **sought)).next_after != after:
        found += [line.cursor for line in page.lines]
        after = page.next_after
    return found


def test_logs_are_read_forwards_from_a_cursor_and_backwards_from_the_end(attempt: Attempt) -> None:
    send(attempt, 0, ["a", "b", "c"])
    send(attempt, 0, ["x", "y"], rank=1)
    send(attempt, 1, ["d"])
    job = attempt.job
    assert texts_of(forwards(job)) == ["a", "b", "c", "x", "y", "d"]
    page = forwards(job, after=1, limit=2)
    assert (texts_of(page), page.next_after) == (["c", "x"], 3)
    assert texts_of(backwards(job, 2)) == ["y", "d"]
    assert texts_of(backwards(job, 9, after=3)) == ["y", "d"]
    assert texts_of(forwards(job, rank=1)) == ["x", "y"]
    assert [line.cursor for line in forwards(job, grep="d").lines] == [5]
    assert texts_of(forwards(job, attempt=2)) == []


def all_pages_backwards(job: Job, limit: int, **sought: object) -> list[int]:
    """Return the cursors of all matching lines, page by page from the end, in order."""
    found: list[int] = []
    before: int | None = None
    while True:
        page = logs.backwards(job, Sought(**sought), after=-1, limit=limit, before=before)  # type: ignore[arg-type] # of any name
        found = [line.cursor for line in page.lines] + found
        if page.next_before is None:
            return found
        assert before is None or page.next_before < before
        before = page.next_before


def test_earlier_lines_are_reached_page_by_page_from_the_end(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"step {number} of many" for number in range(1000)]
    for sequence, start in enumerate(range(0, 1000, 40)):
        send(attempt, sequence, texts[start : start + 40])
    job = attempt.job
    assert all_pages_backwards(job, 170) == list(range(1000))
    assert all_pages_backwards(job, 1000) == list(range(1000))
    assert logs.backwards(job, Sought(), after=-1, limit=2000).next_before is None
    assert logs.backwards(job, Sought(), after=-1, limit=10, before=0).lines == []
    monkeypatch.setattr(logs, "MAX_OPENED_CHUNKS", 1)  # a search stops before it has found enough
    assert all_pages_backwards(job, 50, grep="step 33") == [33, *range(330, 340)]
    send(attempt, 25, ["new"])
    assert 1000 not in [line.cursor for line in logs.backwards(job, Sought(), after=-1, limit=5, before=1000).lines]


def test_a_log_is_downloaded_with_its_filters(api: Api, attempt: Attempt) -> None:
    send(attempt, 0, ["first line", "second line"])
    send(attempt, 0, ["of rank one"], rank=1)
    path = f"/api/v1/jobs/{attempt.job_id}/logs:download"
    answer = api.get(path)
    assert answer["Content-Disposition"] == f'attachment; filename="{attempt.job_id}.log"'
    lines = b"".join(answer.streaming_content).decode().splitlines()
    assert lines[0] == f"{NOW.isoformat()} attempt=1 rank=0 first line"
    assert [line.split(" ", 3)[3] for line in lines] == ["first line", "second line", "of rank one"]
    assert b"".join(api.get(f"{path}?rank=1").streaming_content).decode().endswith("rank=1 of rank one\n")
    assert b"".join(api.get(f"{path}?grep=second").streaming_content).count(b"\n") == 1
    assert b"".join(api.get(f"{path}?attempt=2").streaming_content) == b""


@pytest.mark.parametrize("batch", [pytest.param(3, marks=pytest.mark.slow), 60, 400, 1700])
def test_nothing_is_lost_or_doubled_by_compaction(attempt: Attempt, batch: int) -> None:
    texts = [f"step {number} of many" for number in range(3400)]
    for sequence, start in enumerate(range(0, len(texts), batch)):
        send(attempt, sequence, texts[start : start + batch])
    assert LogChunk.objects.filter(signature=None).count() <= compaction.LINES
    assert all_pages(attempt.job, 170) == list(range(3400))
    assert texts_of(backwards(attempt.job, 3400)) == texts
    assert [line.text for line in logs.every_line(attempt)] == texts
    assert all_pages(attempt.job, 50, grep="step 33") == [33, *range(330, 340), *range(3300, 3400)]


def test_a_search_opens_only_chunks_that_may_hold_it(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    for sequence in range(20):
        words = [f"loss {number / 7:.3f} at step {sequence * 500 + number}" for number in range(500)]
        if sequence == 11:
            words[123] = "RuntimeError: CUDA error: an illegal memory access was encountered"
        send(attempt, sequence // 2, words, rank=sequence % 2)
    opened = []
    monkeypatch.setattr(
        "athanor.telemetry.logs.codec.unpack_rows", lambda content: opened.append(1) or codec_unpack_rows(content)
    )
    page = forwards(attempt.job, grep="illegal memory access")
    assert ([line.cursor for line in page.lines], len(opened)) == ([11 * 500 + 123], 1)
    assert page.next_after == 9999, "all of it was looked at"
    assert forwards(attempt.job, after=page.next_after, grep="illegal").next_after == 9999
    opened.clear()
    assert len(backwards(attempt.job, 5, grep="illegal memory access").lines) == 1
    assert len(opened) == 1
    opened.clear()
    assert len(forwards(attempt.job, rank=1, limit=700).lines) == 700
    assert len(opened) == 2, "chunks of the other rank stay closed"


codec_unpack_rows = codec.unpack_rows


def test_a_search_that_takes_long_says_how_far_it_came(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_OPENED_CHUNKS", 4)
    monkeypatch.setattr(logs, "PAGE_CHUNKS", 2)
    for sequence in range(10):
        send(attempt, sequence, ["zz"] * 500)
    send(attempt, 10, ["found zy"])
    first = forwards(attempt.job, grep="zy")
    assert (first.lines, first.next_after) == ([], 4 * 500 - 1)
    assert all_pages(attempt.job, 10, grep="zy") == [5000], "an empty page that has come further is no end"


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20), st.data())
def test_a_signature_never_hides_what_is_there(texts: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(texts))
    start = data.draw(st.integers(0, len(text)))
    sought = text[start : data.draw(st.integers(start, len(text)))]
    bits = int.from_bytes(logs.signature(texts), "little")
    if len(sought.encode()) >= 3:
        assert all(bits >> int(place) & 1 for place in logs._places(sought))


def test_lines_go_when_they_are_old_and_in_the_archive(attempt: Attempt) -> None:
    send(attempt, 0, ["old"])
    Job.objects.update(finished_at=timezone.now() - timedelta(days=31))
    asked = retention.Policy(metrics=(0, 0, 0), logs=30)
    assert retention.sweep(asked=asked) == (0, 0), "not in the archive"
    Artifact.objects.create(
        job=attempt.job, attempt=attempt, kind="log", name="log", step=0, size_bytes=0, manifest={"files": []}
    )
    assert retention.sweep(asked=asked) == (0, 1)
    assert forwards(attempt.job).lines == []


def test_the_sweeper_compacts_lines_that_an_ended_attempt_left(attempt: Attempt) -> None:
    for sequence in range(5):
        send(attempt, sequence, ["a", "b"])
    Attempt.objects.update(status=AttemptStatus.ENDED.value)
    assert compaction.compact_due() == 1
    assert (LogChunk.objects.count(), LogChunk.objects.filter(signature=None).count()) == (1, 0)
    assert texts_of(forwards(attempt.job)) == ["a", "b"] * 5


def test_the_api_pages_and_searches(api: Api, attempt: Attempt) -> None:
    send(attempt, 0, [f"line {number}" for number in range(30)])
    path = f"jobs/{attempt.job_id}/logs"
    first = api.send("GET", f"{path}?limit=10").json()
    assert ([item["text"] for item in first["items"]][-1], first["next_after"]) == ("line 9", 9)
    found = api.send("GET", f"{path}?grep=line 2&after=9").json()
    assert [item["cursor"] for item in found["items"]] == list(range(20, 30))
    assert found["items"][0]["time"] == "2026-01-01T00:00:00+00:00"
    assert api.send("GET", f"{path}?tail=2&grep=line 1").json()["next_after"] == 29
    assert api.send("GET", f"{path}?tail=1001").status_code == 422
