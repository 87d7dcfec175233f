"""The checker's zeros mean something: each kind of fault, planted into a clean record, is found."""

import copy
from typing import Any

import pytest

from tests.chaos import script
from tests.chaos.checker import Findings, Shown, check
from tests.chaos.ledger import Ledger, Life, Wanted

JOB = "job_1"


def a_clean_run() -> tuple[Ledger, dict[str, Shown]]:
    """One job: its first attempt vanished, its second completed."""
    ledger = Ledger(
        jobs=[Wanted(0, "key", steps=2, id=JOB)],
        lives=[
            Life("one", 1.0, 2.0, 2.0, JOB, "att_1", 1, "vanished"),
            Life("two", 3.0, 4.0, 4.0, JOB, "att_2", 2, "completed", models=1),
        ],
    )
    path = ["queued", "admitted", "dispatching", "starting", "queued", "admitted", "dispatching", "starting", "running"]
    attempts = iter(["att_1", "att_2"])
    events: list[dict[str, Any]] = [{"type": "job.submitted", "data": {}}]
    for source, to in zip(path, [*path[1:], "succeeded"], strict=True):
        named = {"attempt": next(attempts)} if to == "dispatching" else {}
        events.append({"type": "job.status", "data": {"from": source, "to": to, **named}})
    events.append({"type": "artifact.registered", "data": {}})
    for number, event in enumerate(events, start=1):
        event["seq"] = number
    job = {
        "id": JOB,
        "status": "succeeded",
        "reason": {"code": "completed"},
        "attempts": [
            {"id": "att_1", "number": 1, "reason": {"code": "unknown_loss"}},
            {"id": "att_2", "number": 2, "reason": {"code": "completed"}},
        ],
    }
    return ledger, {JOB: Shown(job, events, [1, 2])}


def feed_of(shown: dict[str, Shown]) -> list[dict[str, Any]]:
    events = [(job_id, event["seq"]) for job_id, found in shown.items() for event in found.events]
    return [{"team_seq": n, "job_id": job_id, "seq": seq} for n, (job_id, seq) in enumerate(events, start=1)]


def counts(
    ledger: Ledger, shown: dict[str, Shown], listed: int = 1, feed: list[dict[str, Any]] | None = None
) -> dict[str, int]:
    found = check(ledger, shown, listed, feed_of(shown) if feed is None else feed)
    return {name: count for name, count in found.counts().items() if count}


def test_a_clean_run_has_nothing_to_find() -> None:
    ledger, shown = a_clean_run()
    assert check(ledger, shown, 1, feed_of(shown)) == Findings()


@pytest.mark.parametrize("fault", ["left out", "twice", "out of order", "numbered with a gap"])
def test_a_feed_that_does_not_hold_each_event_once_and_in_order_is_found(fault: str) -> None:
    ledger, shown = a_clean_run()
    feed = feed_of(shown)
    if fault == "left out":
        del feed[-1]
    elif fault == "twice":
        feed.append({**feed[-1], "team_seq": len(feed) + 1})
    elif fault == "out of order":
        feed[0]["seq"], feed[1]["seq"] = feed[1]["seq"], feed[0]["seq"]
    else:
        feed[-1]["team_seq"] += 1
    assert counts(ledger, shown, feed=feed) == {"events_missing": 1}


def test_a_second_agent_of_one_attempt_is_a_double_start() -> None:
    ledger, shown = a_clean_run()
    ledger.lives.append(copy.copy(ledger.lives[0]))
    assert counts(ledger, shown) == {"started_twice": 1}


def test_two_attempts_that_live_at_once_are_a_double_start() -> None:
    ledger, shown = a_clean_run()
    ledger.lives[1].began = 1.5
    assert counts(ledger, shown) == {"started_twice": 1}


@pytest.mark.parametrize("status", ["running", "queued", "paused"])
def test_a_job_without_an_end_is_forgotten(status: str) -> None:
    ledger, shown = a_clean_run()
    shown[JOB].job["status"] = status
    assert counts(ledger, shown)["forgotten"] == 1


def test_an_agent_that_nobody_ends_is_forgotten() -> None:
    ledger, shown = a_clean_run()
    ledger.lives[1].ended = None
    assert counts(ledger, shown) == {"forgotten": 1}


def test_a_job_that_is_not_there_is_forgotten_and_one_too_many_is_told() -> None:
    ledger, _ = a_clean_run()
    assert counts(ledger, {}, listed=0) == {"submitted_wrong": 1, "forgotten": 1}
    assert counts(*a_clean_run(), listed=2) == {"submitted_wrong": 1}


@pytest.mark.parametrize(
    ("status", "reason"), [("failed", "unknown_loss"), ("cancelled", "stopped_by_user"), ("succeeded", "preempted")]
)
def test_an_end_that_did_not_happen_is_wrong(status: str, reason: str) -> None:
    ledger, shown = a_clean_run()
    shown[JOB].job.update(status=status, reason={"code": reason})
    assert counts(ledger, shown)["wrong_end"] == 1


def test_an_attempt_that_was_given_up_while_it_lived_is_a_wrong_end() -> None:
    ledger, shown = a_clean_run()
    ledger.lives[0].end = "over"
    assert counts(ledger, shown) == {"wrong_end": 1}


def test_what_the_user_asked_for_in_time_decides() -> None:
    ledger, shown = a_clean_run()
    ledger.jobs[0].cancel_accepted = True
    shown[JOB].events.append({"type": "job.stop_requested", "data": {}, "seq": len(shown[JOB].events) + 1})
    assert counts(ledger, shown) == {}, "it completed before it heard of the cancel"
    ledger.lives[1].end = "stopped"
    shown[JOB].job["attempts"][1]["reason"] = {"code": "stopped_by_user"}
    assert counts(ledger, shown) == {"wrong_end": 1}, "succeeded without anything that completed"


@pytest.mark.parametrize("seq", range(1, 13))
def test_each_event_that_is_missing_is_found(seq: int) -> None:
    ledger, shown = a_clean_run()
    assert len(shown[JOB].events) == 12 - 1
    if seq == 12:
        shown[JOB].steps = [1]
    else:
        del shown[JOB].events[seq - 1]
    assert counts(ledger, shown)["events_missing"] >= 1


@pytest.mark.parametrize("seq", range(1, 12))
def test_an_event_that_is_missing_is_found_without_a_gap_in_the_sequence_too(seq: int) -> None:
    ledger, shown = a_clean_run()
    events = shown[JOB].events
    del events[seq - 1]
    for number, event in enumerate(events, start=1):
        event["seq"] = number
    assert counts(ledger, shown)["events_missing"] >= 1


def test_a_seed_is_a_script() -> None:
    assert script.jobs(7, 50, 2, 9) == script.jobs(7, 50, 2, 9) != script.jobs(8, 50, 2, 9)
    assert script.outages(7, (0.0, 20.0), 5.0) == script.outages(7, (0.0, 20.0), 5.0)
    faults = [script.fault(7, "observe", number) for number in range(500)]
    assert faults == [script.fault(7, "observe", number) for number in range(500)]
    assert {drawn for drawn, _ in faults} == set(script.Fault)
    kinds = {(job.ends, job.twist) for job in script.jobs(7, 2000, 2, 9)}
    assert len(kinds) == len(script.ENDS) * len(script.TWISTS), "every pair of an end and a twist comes about"


def test_a_long_run_breaks_every_service_for_every_length_and_freezes_the_worker() -> None:
    planned = script.outages(7, (0.0, 20.0, 60.0), 3.0)
    killed = {(outage.service, outage.down_seconds) for outage in planned if not outage.frozen}
    assert killed == {(service, seconds) for service in script.SERVICES for seconds in (0.0, 20.0, 60.0)}
    assert [outage.service for outage in planned if outage.frozen] == ["worker"]
    assert not any(outage.frozen for outage in script.outages(7, (0.0,), 1.0))
