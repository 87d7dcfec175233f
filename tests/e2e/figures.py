"""The figures of a job as its users see them, compared with what its event log says by an arithmetic of its own."""

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from deploy.local.administrator import Administrator
from deploy.local.handle import wait_until
from tests.e2e.conftest import TINY

OUTSIDE_ATTEMPTS = frozenset({"queued", "paused"})
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400}
ACTIVITIES = {
    "Queued": "queued_seconds",
    "Start-up": "startup_seconds",
    "Training": "training_seconds",
    "Evaluation": "evaluation_seconds",
    "Waiting for checkpoints": "checkpoint_seconds",
    "Export": "export_seconds",
    "Finishing": "finishing_seconds",
    "Paused": "paused_seconds",
    "No progress": "stalled_seconds",
    "Lost, not saved": "lost_seconds",
    "Not known": "unattributed_seconds",
}
METER_SECONDS = 3.0  # usage is counted in whole seconds, and to the moment when the platform sees the end


@dataclass(frozen=True)
class Stay:
    """A time in one status, by the event log. `attempt`: the number of the attempt that it belongs to."""

    status: str
    start: datetime
    end: datetime
    attempt: int | None

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


class EventLog:
    """What the events of an ended job say of its times."""

    def __init__(self, job: dict[str, Any], events: list[dict[str, Any]]) -> None:
        self.events = events
        moves = [event for event in events if event["type"] == "job.status"]
        assert datetime.fromisoformat(moves[-1]["time"]) == datetime.fromisoformat(job["finished_at"])
        bounds = [("queued", job["created_at"]), *((move["data"]["to"], move["time"]) for move in moves)]
        self.stays: list[Stay] = []
        number = 0
        for (status, start), (_, end) in pairwise(bounds):
            if status == "admitted":
                number += 1
            inside = None if status in OUTSIDE_ATTEMPTS else number
            self.stays.append(Stay(status, datetime.fromisoformat(start), datetime.fromisoformat(end), inside))

    @property
    def attempts(self) -> list[int]:
        return sorted({stay.attempt for stay in self.stays if stay.attempt is not None})

    def in_status(self, status: str) -> float:
        return sum(stay.seconds for stay in self.stays if stay.status == status)

    def of_attempt(self, number: int) -> float:
        return sum(stay.seconds for stay in self.stays if stay.attempt == number)

    def reported(self, event_type: str, field: str = "seconds") -> float:
        return sum(event["data"][field] for event in self.events if event["type"] == event_type)

    def last(self, event_type: str) -> dict[str, Any]:
        return next(event["data"] for event in reversed(self.events) if event["type"] == event_type)


def events_of(stack, job_id: str) -> list[dict[str, Any]]:
    """All events of a job, in order."""
    events: list[dict[str, Any]] = []
    while page := stack.get(f"/jobs/{job_id}/events", limit=200, after=events[-1]["seq"] if events else 0)["items"]:
        events += page
    return events


def seconds_shown(text: str) -> float:
    """A duration as the dashboard writes it, in seconds."""
    parts = re.findall(r"([\d.]+)\s*(µs|ms|[smhd])\b", text)
    assert parts, f"{text!r} is no duration"
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def check_times(stack, job_id: str) -> EventLog:
    """Compare the timeline of an ended job, and every place that shows its times, with its events."""
    job = stack.job(job_id)
    log = EventLog(job, events_of(stack, job_id))
    found = stack.get(f"/jobs/{job_id}/timeline")
    timings = found["timings"]
    wall = (datetime.fromisoformat(job["finished_at"]) - datetime.fromisoformat(job["created_at"])).total_seconds()
    parts = [value for name, value in timings.items() if name not in ("total_seconds", "startup")]
    assert sum(parts) == pytest.approx(wall, abs=1e-5)
    assert timings["total_seconds"] == pytest.approx(wall, abs=1e-5)
    assert timings["paused_seconds"] == pytest.approx(log.in_status("paused"), abs=1e-5)
    waits = [span for span in found["spans"] if span["attempt"] is None and span["activity"] == "queued"]
    waited = sum(
        (datetime.fromisoformat(span["end"]) - datetime.fromisoformat(span["start"])).total_seconds() for span in waits
    )
    assert waited == pytest.approx(log.in_status("queued"), abs=1e-5)
    assert [each["attempt"] for each in found["attempts"]] == log.attempts
    for each in found["attempts"]:
        assert each["timings"]["total_seconds"] == pytest.approx(log.of_attempt(each["attempt"]), abs=1e-5)
    # Clocks of processes differ from the database's by less than this.
    assert timings["evaluation_seconds"] == pytest.approx(log.reported("evaluation"), abs=0.2)
    assert stack.json("show", job_id)["timings"] == timings
    assert job["ran_seconds"] == pytest.approx(sum(map(log.of_attempt, log.attempts)), abs=METER_SECONDS)
    check_goodput(stack, job_id)
    return log


def check_goodput(stack, job_id: str) -> dict[str, Any]:
    """Compare the goodput ledger of an ended job with its attempts, its cost and its events. Return it."""
    job, cost = stack.job(job_id), stack.get(f"/jobs/{job_id}/cost")
    found: dict[str, Any] = stack.get(f"/jobs/{job_id}/goodput")
    launched = [each for each in job["attempts"] if each["launched_at"] is not None]
    assert [each["attempt"] for each in found["attempts"]] == [each["number"] for each in launched]
    for ledger, attempt in zip(found["attempts"], launched, strict=True):
        wall = datetime.fromisoformat(attempt["finished_at"]) - datetime.fromisoformat(attempt["launched_at"])
        assert ledger["slot_seconds"] == pytest.approx(ledger["slots"] * wall.total_seconds(), abs=1e-5)
    for ledger in (found, *found["attempts"]):
        assert sum(each["slot_seconds"] for each in ledger["categories"]) == pytest.approx(ledger["slot_seconds"])
        assert sum(each["cost"] for each in ledger["categories"]) == ledger["cost"]
    assert (found["cost"], found["refunded"], found["charged"]) == (cost["cost"], cost["fault_cost"], cost["charged"])
    restarts = {
        (event["actor"], event["data"]["generation"])
        for event in events_of(stack, job_id)
        if event["type"] == "generation.started"
    }
    assert sum(each["in_place"] for each in found["interruptions"]) == len(restarts)
    ends = [each for each in job["attempts"] if each["reason"] and each["reason"]["code"] != "completed"]
    shown = [(each["attempt"], each["reason"]["code"]) for each in found["interruptions"] if not each["in_place"]]
    assert shown == [(each["number"], each["reason"]["code"]) for each in ends]
    return found


def check_cost(stack, job_id: str, slots: int) -> int:
    """Compare the usage that a job is charged for with its attempts. Return its slot-seconds."""
    job, cost = stack.job(job_id), stack.get(f"/jobs/{job_id}/cost")
    ran = [
        (datetime.fromisoformat(each["finished_at"]) - datetime.fromisoformat(each["launched_at"])).total_seconds()
        for each in job["attempts"]
        if each["launched_at"] is not None
    ]
    assert cost["slot_seconds"] == pytest.approx(slots * sum(ran), abs=slots * METER_SECONDS * len(ran))
    assert cost["charged"] == cost["cost"] - cost["fault_cost"]
    assert cost["fault_slot_seconds"] <= cost["slot_seconds"]
    return int(cost["slot_seconds"])


def check_costs_of_teams(administrator: Administrator, teams: set[str]) -> None:
    """Compare the sums of these teams, in each grouping, with the usage of each of their jobs."""
    jobs: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = administrator.call("GET", f"jobs?limit=200&cursor={cursor}")
        jobs += [job for job in page["items"] if job["team"]["name"] in teams]
        cursor = page["next_cursor"]

    def of_jobs() -> int:
        return sum(administrator.call("GET", f"jobs/{job['id']}/cost")["slot_seconds"] for job in jobs)

    def of_groups(grouping: str) -> int:
        rows = administrator.call("GET", f"costs?by={grouping}")["items"]
        return sum(row["slot_seconds"] for row in rows if row["team"] in teams)

    # A job that another test has left is metered every ten seconds.
    for grouping in ("team", "team,project", "team,accelerator", "team,cluster,pool", "day,team", "team,person"):
        wait_until(lambda grouping=grouping: of_groups(grouping) == of_jobs(), f"costs by {grouping} add up", 60)


def check_pages(page: Page, stack, job_id: str, log: EventLog) -> None:
    """Compare what the jobs table and the page of an ended job print with its events and series."""
    job = stack.job(job_id)
    losses = stack.curve(job_id, "train/loss")
    rates = stack.curve(job_id, "throughput/tokens_per_second")["values"]
    page.goto(f"/jobs?q={job_id}")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=job["name"], exact=True))
    expect(row).to_be_visible()
    headings = page.get_by_role("columnheader").all_text_contents()
    cells = dict(zip(headings, row.locator("th, td").all_inner_texts(), strict=True))
    assert cells["Training loss"] == f"{losses['values'][-1]:.4f}"
    assert cells["Validation loss"] == f"{log.last('evaluation')['loss']:.4f}"
    assert seconds_shown(cells["Ran for"]) == pytest.approx(job["ran_seconds"], abs=0.6)
    tokens = TINY["training"]["tokens_per_step"]
    mean = job["progress"]["mean_tokens_per_second"]
    assert mean == pytest.approx(len(rates) * tokens / sum(tokens / rate for rate in rates), rel=0.05)
    assert cells["Tokens/s, mean"] == shown_count(mean)

    page.goto(f"/jobs/{job_id}")
    breakdown = page.get_by_role("region", name="Time breakdown")
    expect(breakdown.get_by_role("row").last).to_contain_text("Total")
    rows = [
        (row.get_by_role("rowheader").inner_text(), seconds_shown(row.get_by_role("cell").inner_text()))
        for row in breakdown.locator("tr:not([data-detail])").all()
    ]
    shown, timings = dict(rows), job["timings"]
    total = shown.pop("Total")
    assert total == pytest.approx(timings["total_seconds"], abs=0.51)
    assert sum(shown.values()) == pytest.approx(total, abs=0.51 * (len(shown) + 1))
    assert {name for name, field in ACTIVITIES.items() if timings[field] > 0} == shown.keys()
    for name, seconds in shown.items():
        assert seconds == pytest.approx(timings[ACTIVITIES[name]], abs=0.51), name
    attempts = page.get_by_role("region", name="Attempts")
    for attempt in job["attempts"]:
        expect(attempts).to_contain_text(attempt["reason"]["message"])


def shown_count(value: float) -> str:
    """A number as the jobs table writes it: three digits and a letter."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            return f"{_three_digits(value / size)}{letter}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
