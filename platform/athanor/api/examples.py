"""Examples of the OpenAPI document: a submission, the job that it makes, and an error."""

from typing import Any

from athanor.specs.presets import PRESETS
from athanor.specs.validation import parse_spec

SUBMISSION: dict[str, Any] = {
    **PRESETS["demo"].spec,
    "name": "demo-baseline",
    "team": "research",
    "project": "language",
    "labels": {"experiment": "baseline"},
}
_JOB_ID = "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZB"
_PATH = f"/api/v1/jobs/{_JOB_ID}"
JOB_SUMMARY: dict[str, Any] = {
    "id": _JOB_ID,
    "name": SUBMISSION["name"],
    "team": {"id": "team_01KAN0W8J5D2S7F4G1H6K3L9PQ", "name": SUBMISSION["team"]},
    "project": SUBMISSION["project"],
    "labels": SUBMISSION["labels"],
    "priority": "normal",
    "status": "running",
    "desired": "run",
    "reason": None,
    "health": "ok",
    "cluster": "local",
    "created_at": "2026-01-31T12:00:00.120000Z",
    "started_at": "2026-01-31T12:00:09.480000Z",
    "finished_at": None,
    "updated_at": "2026-01-31T12:01:30.770000Z",
    "created_by": "ada",
    "forked_from": None,
    "attempt_count": 1,
    "ran_seconds": 0.0,
    "running_since": "2026-01-31T12:00:02.310000Z",
    "progress": {
        "step": 40,
        "steps_total": SUBMISSION["training"]["steps"],
        "tokens_seen": 40 * SUBMISSION["training"]["tokens_per_step"],
        "loss": 4.312,
        "validation_loss": None,
        "tokens_per_second": 2048.0,
        "mean_tokens_per_second": 1987.4,
        "mfu": None,
        "mean_mfu": None,
        "eta_seconds": 160.0,
        "phase": "training",
        "updated_at": "2026-01-31T12:01:30.710000Z",
    },
    "validation_loss": None,
    "warnings": [],
    "links": {
        "self": _PATH,
        **{name: f"{_PATH}/{name}" for name in ("events", "metrics", "logs", "checkpoints", "artifacts")},
    },
}
JOB: dict[str, Any] = {
    **JOB_SUMMARY,
    "attempts": [
        {
            "id": "att_01KAN1T8B6N4Q0W3Z5T7J9D2SF",
            "number": 1,
            "status": "running",
            "reason": None,
            "cluster": "local",
            "native_state": "running",
            "native_reason": "",
            "phase": "running",
            "explanation": "",
            "expected_start_at": None,
            "nodes": [],
            "exit_status": None,
            "launched_at": "2026-01-31T12:00:02.310000Z",
            "started_at": "2026-01-31T12:00:09.480000Z",
            "finished_at": None,
            "last_step": None,
        }
    ],
    "preemptions": 0,
    "timings": {
        "total_seconds": 91.874,
        "queued_seconds": 1.105,
        "startup_seconds": 8.712,
        "startup": {"dispatch": 0.31, "launch": 1.12, "import": 2.6, "data": 3.871, "first_step": 0.811},
        "training_seconds": 79.843,
        "preparing_seconds": 0.0,
        "evaluation_seconds": 1.911,
        "checkpoint_seconds": 0.303,
        "export_seconds": 0.0,
        "finishing_seconds": 0.0,
        "paused_seconds": 0.0,
        "stalled_seconds": 0.0,
        "lost_seconds": 0.0,
        "unattributed_seconds": 0.0,
    },
    "spec": SUBMISSION,
    "resolved_spec": parse_spec(SUBMISSION).model_dump(mode="json"),
    "submission": None,
    "wait": None,
}
PROBLEM: dict[str, Any] = {
    "type": "urn:athanor:error:invalid_spec",
    "title": "Invalid content",
    "status": 422,
    "code": "invalid_spec",
    "detail": "cluster 'lokal' is not here; did you mean 'local'?",
    "request_id": "req_01KAN1T6Z2C8B4V7X1M5N3Q9RT",
    "remedy": "correct the fields listed in errors",
    "errors": [
        {
            "pointer": "/resources/cluster",
            "code": "unknown_cluster",
            "detail": "cluster 'lokal' is not here; did you mean 'local'?",
        }
    ],
}
# By component of the OpenAPI document.
OF_COMPONENTS = {"Job": JOB, "JobSummary": JOB_SUMMARY, "Problem": PROBLEM}
