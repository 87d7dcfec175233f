"""`athanor model register --checkpoint`: the job that is submitted, and the version that is shown."""

import json
from typing import Any

import pytest

JOB, EXPORT = "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZB", "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZC"
RESOURCES = {"cluster": "hpc", "accelerator": "h100", "nodes": 2, "processes_per_node": 8, "cpus_per_process": None}
TRAINING = {
    "id": JOB, "name": "tune", "team": {"id": "team_1", "name": "red"}, "project": "default",
    "resolved_spec": {"resources": {**RESOURCES, "spare_nodes": 1}},
}  # fmt: skip
MADE = {**TRAINING, "id": EXPORT, "name": "export-tune"}
CHECKPOINTS = [{"step": 30, "state": "damaged"}, {"step": 20, "state": "intact"}, {"step": 10, "state": "intact"}]


@pytest.mark.parametrize(("checkpoint", "step"), [("10", 10), ("newest", 20)])
def test_a_job_exports_and_registers_the_checkpoint(
    athanor: Any, server: Any, answer: Any, checkpoint: str, step: int
) -> None:
    server.answer(f"GET /api/v1/jobs/{JOB}", answer(TRAINING))
    server.answer(f"GET /api/v1/jobs/{JOB}/checkpoints", answer({"items": CHECKPOINTS, "next_cursor": None}))
    server.answer("POST /api/v1/jobs", answer(MADE, status=201))
    done = athanor("model", "register", "bot", JOB, "--checkpoint", checkpoint, "--alias", "candidate")
    assert done.returncode == 0, done.stderr
    assert "export-tune" in done.stdout and EXPORT in done.stdout and f"step {step} of tune" in done.stdout
    (sent,) = [each for each in server.seen if each.method == "POST"]
    assert json.loads(sent.body) == {
        "name": "export-tune", "team": "red", "project": "default",
        "resources": {"cluster": "hpc", "accelerator": "h100", "nodes": 2, "processes_per_node": 8},
        "export": {"job": JOB, "step": step}, "output": {"register": "bot", "alias": "candidate"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((JOB, "--wait"), "--wait belongs to --checkpoint"),
        (("art_1", "--checkpoint", "10"), "art_1 is an artifact"),
        ((JOB, "--checkpoint", "best"), "give the step of a checkpoint, or newest"),
        ((JOB, "--checkpoint", "newest"), "has no intact stored checkpoint"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    athanor: Any, server: Any, answer: Any, arguments: tuple[str, ...], says: str
) -> None:
    server.answer(f"GET /api/v1/jobs/{JOB}", answer(TRAINING))
    server.answer(f"GET /api/v1/jobs/{JOB}/checkpoints", answer({"items": CHECKPOINTS[:1], "next_cursor": None}))
    done = athanor("model", "register", "bot", *arguments)
    assert done.returncode == 2 and says in " ".join(done.stderr.split()), done.stderr
    assert not [each for each in server.seen if each.method == "POST"]
