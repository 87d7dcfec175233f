"""Follow a job to its end: a progress bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from athanor.cli.client import Client
from athanor.cli.errors import ExitCode
from athanor.cli.job_events import JobEvents
from athanor.cli.plain import plain
from athanor.cli.render import console, duration, number, print_json, progress_of
from athanor.cli.schema_gen import Job

FINAL = {"succeeded", "failed", "cancelled", "expired"}
PATIENCE_SECONDS = 900.0  # the server may be restarted or updated meanwhile; the job continues
PLAIN_LINE_SECONDS = 10.0
Show = Callable[[Job], None]


def exit_code(job: Job) -> ExitCode:
    """Return the exit code for the final status of a job."""
    if job["status"] == "succeeded":
        return ExitCode.OK
    return ExitCode.CANCELLED if job["status"] == "cancelled" else ExitCode.JOB_FAILED


def watch(client: Client, job_id: str, *, as_json: bool, until_seconds: float | None = None) -> Job:
    """Show progress until the job ends (or `until_seconds` have passed) and return its last state."""
    if as_json:
        return _follow(client, job_id, _json_lines(), until_seconds)
    if not console.is_terminal:
        return _follow(client, job_id, _plain_lines(), until_seconds)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[step]}"),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("queued", total=None, step="", loss="", speed="", left="")
        return _follow(client, job_id, _bar(progress, task), until_seconds)


def _follow(client: Client, job_id: str, show: Show, until_seconds: float | None) -> Job:
    give_up_at = None if until_seconds is None else time.monotonic() + until_seconds
    events = JobEvents(client, job_id, give_up_at)
    while True:
        job: Job = client.get(f"/jobs/{job_id}", patience_seconds=PATIENCE_SECONDS)
        show(job)
        if job["status"] in FINAL or events.is_over:
            return job
        # The newest numbers come with the stream; for everything else the job is read again.
        while (event := events.next()) and event["type"] == "job.progress" and not events.is_over:
            # The stream also has what was sent before the job was read, which is newer then.
            if _reported_at(event["progress"]) >= _reported_at(job.get("progress")):
                job["progress"] = event["progress"]
                show(job)


def _reported_at(progress: Any) -> datetime:
    return datetime.fromisoformat(progress["updated_at"]) if progress else datetime.min.replace(tzinfo=UTC)


def _bar(progress: Progress, task: TaskID) -> Show:
    def show(job: Job) -> None:
        now = progress_of(job)
        total = now.get("steps_total")
        progress.update(
            task,
            description=plain(headline(job)),
            total=total,
            completed=now.get("step") or 0,
            step=f"{now.get('step')}/{total}" if now.get("step") is not None else "",
            loss=f"training loss {number(now.get('loss'), '.3f')}" if now.get("loss") is not None else "",
            speed=f"{now['tokens_per_second']:,.0f} tokens/s" if now.get("tokens_per_second") else "",
            left=f"{duration(left)} left" if (left := now.get("eta_seconds")) is not None else "",
        )

    return show


def _plain_lines() -> Show:
    last: tuple[str, float] = ("", 0.0)

    def show(job: Job) -> None:
        nonlocal last
        head = headline(job)
        if head == last[0] and time.monotonic() - last[1] < PLAIN_LINE_SECONDS:
            return
        last = (head, time.monotonic())
        now = progress_of(job)
        line = head
        if now.get("loss") is not None:
            line += f"  step {now['step']}/{now['steps_total']}  training loss {number(now.get('loss'), '.3f')}"
            line += f"  {number(now.get('tokens_per_second'), ',.0f')} tokens/s"
        if (left := now.get("eta_seconds")) is not None:
            line += f"  {duration(left)} left"
        print(plain(line), flush=True)

    return show


def _json_lines() -> Show:
    """Print one object per event with `status`, `phase` and `progress`; the full job comes at the end."""
    last: dict[str, Any] = {}

    def show(job: Job) -> None:
        nonlocal last
        now: dict[str, Any] = {"id": job["id"], "status": job["status"], "progress": job.get("progress")}
        if now != last and job["status"] not in FINAL:
            print_json(now, one_line=True)
        last = now

    return show


def headline(job: Job) -> str:
    """Return a headline such as `starting: data`, `running`, `queued: waiting_for_capacity`."""
    phase = progress_of(job).get("phase")
    if job["status"] in ("starting", "running") and phase and phase not in (job["status"], "training"):
        return f"{job['status']}: {phase}"
    reason = job.get("reason")
    if job["status"] == "queued" and reason:
        return f"queued: {reason['code']}"
    return job["status"]
