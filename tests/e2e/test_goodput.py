"""A rank is killed on the real stack: the goodput ledger is what the event log says, by an arithmetic of its own."""

import os
import signal
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.figures import check_goodput, events_of
from tests.e2e.test_faults import a_trainer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = 400


def test_a_killed_rank_is_an_interruption_with_its_cause_and_its_repeated_steps(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=STEPS)
    stack.wait_for_step(job_id, 60)
    os.kill(a_trainer(stack).pid, signal.SIGKILL)
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["attempt_count"]) == ("succeeded", 1)
    assert stack.steps_of(job_id) == list(range(1, STEPS + 1))
    found = check_goodput(stack, job_id)
    events = events_of(stack, job_id)
    (restart,) = [event for event in events if event["type"] == "generation.started"]
    began, resumed = [event for event in events if event["type"] == "training.started"]
    (killed,) = found["interruptions"]
    assert (killed["in_place"], killed["reason"]["code"]) == (True, "process_killed")
    assert killed["node"] == restart["data"]["node"]
    assert killed["steps_lost"] == restart["data"]["step"] - resumed["data"]["step"]
    # The work since the state in the checkpoint that it resumed from, or since the first step.
    kept = [
        datetime.fromisoformat(event["time"]) - timedelta(seconds=event["data"]["seconds"])
        for event in events
        if event["type"] == "checkpoint.saved" and event["data"]["step"] == resumed["data"]["step"]
    ]
    first_steps = [event["time"] for event in events if event["data"].get("phase") == "first_step"]
    since = kept[0] if resumed["data"]["step"] > began["data"]["step"] else datetime.fromisoformat(first_steps[0])
    lost = datetime.fromisoformat(restart["time"]) - since
    restarted = datetime.fromisoformat(first_steps[1]) - datetime.fromisoformat(restart["time"])
    slots = found["attempts"][0]["slots"]
    assert killed["lost_slot_seconds"] == pytest.approx(slots * lost.total_seconds(), abs=1e-3)
    # An evaluation before the first step is one, not start-up.
    assert 0 < killed["startup_slot_seconds"] <= slots * restarted.total_seconds() + 1e-3
    assert stack.json("goodput", job_id) == found
