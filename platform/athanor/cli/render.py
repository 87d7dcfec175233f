"""Output for people. Nothing here is printed with --json."""

import json
import sys
from collections.abc import Sequence
from typing import Any, cast

from rich.markup import escape
from rich.table import Table

from athanor.cli.plain import PlainConsole, plain
from athanor.cli.schema_gen import Job, JobSummary, Plan, Progress, StartOutlook
from athanor.cli.times import moment

console = PlainConsole(highlight=False)
if not console.is_terminal:
    console = PlainConsole(highlight=False, width=160)  # into a file or a pipe: no terminal bounds the lines
COLOURS = {
    "succeeded": "green", "failed": "red", "expired": "red", "cancelled": "yellow", "running": "cyan",
    "starting": "cyan", "dispatching": "cyan", "stopping": "yellow",
}  # fmt: skip
WHOLE = ("id", "status", "time", "created", "job", "node")


def note(text: str) -> None:
    """Print a line on standard error: what a secret on standard output is, or what to do next."""
    print(plain(text), file=sys.stderr, flush=True)


def print_json(value: Any, *, one_line: bool = False) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=None if one_line else 2), flush=True)


def progress_of(job: Job | JobSummary) -> Progress:
    """Return the newest progress. Jobs without progress lack the fields: use `get`."""
    return job.get("progress") or cast("Progress", {})


def status_text(job: JobSummary | Job) -> str:
    """Return the status of a job with its colour, and its reason unless it is done."""
    status = job["status"]
    colour = COLOURS.get(status, "white")
    reason = job.get("reason")
    suffix = f" ({escape(reason['code'])})" if reason and reason["code"] != "completed" else ""
    return f"[{colour}]{status}[/{colour}]{suffix}"


def columns(*names: str) -> Table:
    """Return an empty table whose cells do not wrap when copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in WHOLE)
    return table


def jobs_table(jobs: Sequence[JobSummary]) -> Table:
    """Return a table of jobs."""
    table = columns("id", "name", "team", "status", "step", "training loss", "validation loss", "created")
    for job in jobs:
        progress = progress_of(job)
        table.add_row(
            job["id"],
            escape(job["name"]),
            escape(job["team"]["name"]),
            status_text(job),
            f"{progress['step']}/{progress['steps_total']}" if progress.get("step") is not None else "",
            number(progress.get("loss"), ".3f"),
            number(progress.get("validation_loss"), ".3f"),
            moment(job.get("created_at")),
        )
    return table


def job_lines(job: Job, server_url: str) -> list[str]:
    """Return the summary of a job in a few lines. `server_url`: the server that has its runbook."""
    progress = progress_of(job)
    lines = [
        f"[bold]{escape(job['name'])}[/bold]  {job['id']}  {status_text(job)}",
        f"team {escape(job['team']['name'])}, project {escape(job.get('project') or '')}, "
        f"created {moment(job['created_at'])}, attempts {job.get('attempt_count', 0)}",
    ]
    reason = job.get("reason")
    if reason and reason["code"] != "completed":
        message = escape(reason.get("message") or reason["code"])
        if reason.get("remedy"):
            message += f"{'' if message.endswith('.') else '.'} {escape(reason['remedy'])}"
        lines.append(f"reason: {message}")
        if reason.get("runbook"):  # absent from older servers
            lines.append(f"runbook: {server_url}{reason['runbook']}")
    if said := _why_not_started(job):
        lines.append(escape(said))
    if progress.get("step") is not None:
        lines.append(
            f"step {progress['step']} of {progress['steps_total']}, "
            f"training loss {number(progress.get('loss'), '.4f')}, "
            f"{number(progress.get('mean_tokens_per_second'), ',.0f')} tokens/s on average, "
            f"{number(progress.get('tokens_per_second'), ',.0f')} in the newest step"
        )
    losses = job.get("validation_loss")
    if losses:
        lines.append(
            f"validation loss {number(losses.get('before'), '.4f')} before, {number(losses.get('after'), '.4f')} after"
        )
    lines += [f"warning: {escape(w['detail'])}" for w in job.get("warnings") or []]
    return lines


def _why_not_started(job: Job) -> str:
    """Return what the cluster says of an attempt that it has not started yet; empty if it says nothing."""
    attempts = job.get("attempts") or []
    if job["status"] != "starting" or not attempts:
        return ""
    newest = attempts[-1]
    is_waiting = newest["phase"] != "running" and newest["explanation"]
    return f"{newest['cluster']}: {newest['explanation']}" if is_waiting else ""


ACTIVITIES = {
    "queued": "queued", "startup": "start-up", "preparing": "preparing data", "training": "training",
    "evaluation": "evaluation", "checkpoint": "waiting for checkpoints", "export": "export", "finishing": "finishing",
    "paused": "paused", "stalled": "no progress", "lost": "lost, not saved", "idle": "idle nodes",
    "unattributed": "not known",
}  # fmt: skip


def time_lines(job: Job) -> list[str]:
    """Return where the job's time went, the parts of which there are some."""
    timings = cast("dict[str, Any]", job.get("timings") or {})
    if "total_seconds" not in timings:
        return []  # an older server
    lines = [f"time: {duration(timings['total_seconds'])}"]
    for activity, label in ACTIVITIES.items():
        if seconds := timings.get(f"{activity}_seconds"):  # an older server reports fewer
            phases = ", ".join(f"{phase} {duration(each)}" for phase, each in timings["startup"].items())
            lines.append(
                f"  {duration(seconds):>8}  {label}" + (f" ({escape(phases)})" if activity == "startup" else "")
            )
    return lines


def outlook_lines(plan: Plan) -> list[str]:
    """Return when a planned job would start, what it would reserve, and alternatives."""
    start = plan["start"]
    lines = ["it would start immediately" if start["starts_now"] else f"it would wait: {_when(start)}"]
    if start["reason"]:
        lines.append(f"  {start['reason']['message']} {start['unblocks']}")
    expected = plan.get("expected")
    if expected:
        lines.append(
            f"expected: runs {duration(expected['p50_seconds'])}, nine times of ten within "
            f"{duration(expected['p90_seconds'])}; costs {expected['p50_cost']:.2f} to {expected['p90_cost']:.2f} "
            f"{plan['cost']['currency']} (from {expected['like_jobs']} like jobs)"
        )
    lines += [
        f"budget {each['name']}: reserves {each['reserves']:.2f} of {each['available']:.2f} {each['unit']}"
        for each in plan["budgets"]
    ]
    for each in plan["alternatives"]:
        cost = f"{each['cost']['amount']:.2f} {each['cost']['currency']}"
        lines.append(f"or with {each['label']}: {_when(each['start'])}, {cost}")
    return lines


def _when(start: StartOutlook) -> str:
    if start["starts_now"]:
        return "starts immediately"
    if start["p50_seconds"] is None:
        return "nobody can say yet for how long"
    late = start["p90_seconds"]
    return f"about {start['p50_seconds']:,} s" + (f", nine times of ten within {late:,} s" if late is not None else "")


def number(value: float | None, form: str) -> str:
    """Return a number in a format, or `-`."""
    return "-" if value is None else format(value, form)


def duration(seconds: float) -> str:
    """Return a duration in the two largest units that it has."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}h {minutes:02d}m" if hours < 24 else f"{hours // 24}d {hours % 24}h"


def size(count: float) -> str:
    """Return a size in bytes with a binary unit, as the dashboard does."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
