"""Holds what the platform says against what really happened. Pure: a ledger and the API's answers in, findings out."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.ledger import Ledger, Life, Wanted

FINAL = {"succeeded", "failed", "cancelled", "expired"}
# What the platform may say of an attempt that really ended so.
ATTEMPT_REASONS = {
    "completed": {"completed"},
    "stopped": {"paused_by_user", "stopped_by_user", "interrupted"},
    "data_error": {"data_error"},
    "storage_error": {"storage_error"},
    "killed": {"process_killed", "paused_by_user", "stopped_by_user"},
    "vanished": {"unknown_loss"},
    "platform_unreachable": {"platform_error"},
}


@dataclass
class Shown:
    """One job as the API shows it when all is over."""

    job: dict[str, Any]
    events: list[dict[str, Any]]
    steps: list[int]


@dataclass
class Findings:
    """Empty lists are what a run is to end with; each entry says what was found."""

    submitted_wrong: list[str] = field(default_factory=list)
    started_twice: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    wrong_end: list[str] = field(default_factory=list)
    events_missing: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {name: len(found) for name, found in vars(self).items()}

    def all(self) -> list[str]:
        return [f"{name}: {line}" for name, found in vars(self).items() for line in found]


def check(ledger: Ledger, shown: dict[str, Shown], jobs_listed: int, feed: list[dict[str, Any]]) -> Findings:
    findings = Findings()
    if jobs_listed != len(ledger.jobs):
        findings.submitted_wrong.append(f"{len(ledger.jobs)} were submitted, {jobs_listed} are there")
    lives: dict[str, list[Life]] = {}
    for life in ledger.lives:
        lives.setdefault(life.job_id, []).append(life)
    _check_starts(ledger, lives, findings)
    findings.forgotten += [f"{life.name} still runs" for life in ledger.lives if life.ended is None]
    for wanted in ledger.jobs:
        if wanted.id not in shown:
            findings.forgotten.append(f"job {wanted.script_number} ({wanted.id or 'never answered'}) is not there")
            continue
        found = shown[wanted.id]
        of_job = sorted(lives.get(wanted.id, []), key=lambda life: life.began)
        if found.job["status"] not in FINAL:
            findings.forgotten.append(f"{wanted.id} is {found.job['status']}")
        else:
            findings.wrong_end += _wrong_end(wanted, found, of_job)
        findings.wrong_end += _wrong_attempts(found, of_job)
        findings.events_missing += _missing(wanted, found, of_job)
    findings.events_missing += ledger.gaps + _missing_in_feed(shown, feed)
    return findings


def _check_starts(ledger: Ledger, lives: dict[str, list[Life]], findings: Findings) -> None:
    starts = Counter(life.name for life in ledger.lives)
    findings.started_twice += [f"{name} was started {count} times" for name, count in starts.items() if count > 1]
    for job_id, of_job in lives.items():
        if not job_id:
            continue  # it never came so far as to ask what it is to do
        ordered = sorted(of_job, key=lambda life: life.began)
        for earlier, later in zip(ordered, ordered[1:], strict=False):
            if earlier.name != later.name and (earlier.ended is None or earlier.ended > later.began):
                findings.started_twice.append(f"{job_id}: {later.name} began while {earlier.name} was alive")


def _wrong_end(wanted: Wanted, found: Shown, lives: list[Life]) -> list[str]:
    job = found.job
    said = (job["status"], (job["reason"] or {}).get("code"))
    last = lives[-1].end if lives else ""
    if last == "completed":
        right = ("succeeded", "completed")
    elif wanted.cancel_accepted:
        right = ("cancelled", "stopped_by_user")
    elif last == "data_error":
        right = ("failed", "data_error")
    else:
        right = ("succeeded", "completed")  # whatever else happened was to be survived
    return [] if said == right else [f"{job['id']} is {said}, and should be {right}: {_told(job, lives)}"]


def _wrong_attempts(found: Shown, lives: list[Life]) -> list[str]:
    by_id = {life.attempt_id: life for life in lives}
    wrong = []
    for attempt in found.job["attempts"]:
        life = by_id.get(attempt["id"])
        reason = (attempt["reason"] or {}).get("code")
        if life is not None and reason is not None and reason not in ATTEMPT_REASONS.get(life.end, set()):
            wrong.append(f"{attempt['id']} ended as {reason}, and really {life.end or 'not at all'}")
    return wrong


def _missing_in_feed(shown: dict[str, Shown], feed: list[dict[str, Any]]) -> list[str]:
    """The team's feed numbers each event once, leaves out no number, and has each job's events in their order."""
    missing = []
    numbers = [event["team_seq"] for event in feed]
    if numbers != list(range(1, len(numbers) + 1)):
        missing.append(f"the team's feed goes {numbers}")
    of_job: dict[str, list[int]] = {}
    for event in feed:
        of_job.setdefault(event["job_id"], []).append(event["seq"])
    for job_id, found in shown.items():
        told = [event["seq"] for event in found.events]
        if of_job.get(job_id, []) != told:
            missing.append(f"{job_id}: the team's feed has its events {of_job.get(job_id)}, the job {told}")
    return missing


def _missing(wanted: Wanted, found: Shown, lives: list[Life]) -> list[str]:
    job, events = found.job, found.events
    missing = []
    seqs = [event["seq"] for event in events]
    if seqs != list(range(1, len(seqs) + 1)):
        missing.append(f"{job['id']}: the sequence is {seqs}")
    moves = [event["data"] for event in events if event["type"] == "job.status"]
    chain = ["queued", *(move["to"] for move in moves)]
    if [move["from"] for move in moves] != chain[:-1] or chain[-1] != job["status"]:
        missing.append(f"{job['id']}: the moves {chain} do not lead to {job['status']}")
    counted = Counter(event["type"] for event in events)
    dispatched = {move.get("attempt") for move in moves if move["to"] == "dispatching"}
    for life in lives:
        if life.attempt_id not in dispatched:
            missing.append(f"{job['id']}: no event tells of {life.attempt_id}")
    expected = {
        "job.submitted": (1, 1),
        "job.stop_requested": (int(wanted.cancel_accepted), 1),
        "job.pause_requested": (int(wanted.pause_accepted), 1),
        "job.resume_requested": (int(wanted.resume_accepted and wanted.pause_accepted), 1),
        "checkpoint.registered": (sum(life.checkpoints for life in lives),) * 2,
        "artifact.registered": (sum(life.models for life in lives),) * 2,
    }
    for type_, (fewest, most) in expected.items():
        if not fewest <= counted[type_] <= most:
            missing.append(f"{job['id']}: {counted[type_]} events {type_}, {fewest} to {most} happened")
    if job["status"] == "succeeded" and found.steps != list(range(1, wanted.steps + 1)):
        missing.append(f"{job['id']}: the steps shown are {found.steps} of {wanted.steps}")
    return missing


def _told(job: dict[str, Any], lives: list[Life]) -> str:
    really = ", ".join(f"{life.number} {life.end}" for life in lives) or "nothing ever ran"
    said = ", ".join(f"{a['number']} {(a['reason'] or {}).get('code')}" for a in job["attempts"])
    return f"really {really}; the platform says {said}"
