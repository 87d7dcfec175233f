"""Following a job by the server's event stream, and by polling if a server or proxy does not stream."""

import json
from typing import Any

from tests.cli.conftest import Program, ScriptedServer

JOB = "job_1"
PATH = f"/api/v1/jobs/{JOB}"


def job(status: str, step: int = 0) -> dict[str, Any]:
    return {
        "id": JOB, "name": "tiny", "status": status, "desired": "run", "reason": None,
        "progress": {"step": step, "steps_total": 10, "loss": 2.0, "phase": "training",
                     "updated_at": f"2026-01-01T00:00:{step:02}+00:00"},
    }  # fmt: skip


def frames(*items: dict[str, Any]) -> bytes:
    text = "retry: 2000\n\n: still here\n\n"
    for item in items:
        text += f"event: {item['type']}\n" if "progress" in item else f"id: {item['seq']}\n"
        text += f"data: {json.dumps(item)}\n\n"
    return text.encode()


def progress(step: int) -> dict[str, Any]:
    return {"type": "job.progress", "job_id": JOB, "progress": job("running", step)["progress"], "log_lines": 1}


def test_progress_comes_with_the_stream_and_the_end_by_reading(
    athanor: Program, server: ScriptedServer, answer: Any
) -> None:
    server.answer(f"GET {PATH}", answer(job("running", 1)), answer(job("running", 1)), answer(job("succeeded", 10)))
    server.answer(
        f"GET {PATH}/events",
        answer({"items": [], "next_after": 7}),
        answer(
            frames(progress(4), progress(5), {"type": "job.status", "seq": 8}),
            headers={"Content-Type": "text/event-stream"},
        ),
    )
    result = athanor("watch", JOB, "--json")
    assert result.returncode == 0, result.stderr
    steps = [json.loads(line)["progress"]["step"] for line in result.stdout.splitlines()]
    assert steps == [1, 4, 5, 10]
    opened = next(seen for seen in server.seen if seen.headers.get("Accept") == "text/event-stream")
    assert opened.headers["Last-Event-ID"] == "7"


def test_progress_from_before_the_job_was_read_is_left_out(
    athanor: Program, server: ScriptedServer, answer: Any
) -> None:
    states = job("starting"), job("starting"), job("running", 5), job("succeeded", 10)
    server.answer(f"GET {PATH}", *map(answer, states))
    server.answer(
        f"GET {PATH}/events",
        answer({"items": [], "next_after": 7}),
        answer(
            frames({"type": "job.status", "seq": 8}, progress(4), progress(6), {"type": "job.status", "seq": 9}),
            headers={"Content-Type": "text/event-stream"},
        ),
    )
    result = athanor("watch", JOB, "--json")
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["progress"]["step"] for line in result.stdout.splitlines()] == [0, 5, 6, 10]


def test_without_streams_the_job_is_read_again_and_again(athanor: Program, server: ScriptedServer, answer: Any) -> None:
    server.answer(f"GET {PATH}", answer(job("running", 1)), answer(job("running", 2)), answer(job("succeeded", 10)))
    server.answer(f"GET {PATH}/events", answer({"items": [], "next_after": 7}), answer({"code": "not_acceptable"}, 406))
    result = athanor("watch", JOB, "--json")
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["progress"]["step"] for line in result.stdout.splitlines()] == [1, 2, 10]
