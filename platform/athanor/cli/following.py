"""`athanor watch` and `athanor logs`."""

from typing import Annotated, Any

import typer

from athanor.cli.client import Client
from athanor.cli.errors import reports_errors
from athanor.cli.job_events import JobEvents
from athanor.cli.options import AsJson, JobId, connect, find_job
from athanor.cli.render import console, job_lines, print_json
from athanor.cli.times import clock
from athanor.cli.watching import FINAL, PATIENCE_SECONDS, exit_code, watch

PAGE_LINES = 500


@reports_errors
def watch_job(
    job: JobId,
    timeout: Annotated[
        float | None, typer.Option(help="Stop watching after this many seconds; the job continues.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a job's progress until it ends. Ctrl-C does not stop the job."""
    client = connect()
    last = watch(client, find_job(client, job), as_json=as_json, until_seconds=timeout)
    if as_json:
        print_json(last, one_line=True)
    else:
        for line in job_lines(last, client.url):
            console.print(line, soft_wrap=True)
    if last["status"] in FINAL:
        raise typer.Exit(exit_code(last))


@reports_errors
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=1, max=10_000, help="Only the last N lines.")] = None,
    attempt: Annotated[int | None, typer.Option()] = None,
    rank: Annotated[int | None, typer.Option(help="Only lines of this rank.")] = None,
    grep: Annotated[str | None, typer.Option(help="Only lines that contain this text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job's processes."""
    client = connect()
    job = find_job(client, job)
    filters: dict[str, Any] = {"attempt": attempt, "rank": rank, "grep": grep}
    events = JobEvents(client, job) if follow else None
    after = _print_page(client, job, as_json, {**filters, "tail": tail, "limit": PAGE_LINES})
    while True:
        ended = follow and client.get(f"/jobs/{job}", patience_seconds=PATIENCE_SECONDS)["status"] in FINAL
        after = _print_rest(client, job, as_json, filters, after)
        if ended or events is None:
            return
        events.next()


def _print_rest(client: Client, job: str, as_json: bool, filters: dict[str, Any], after: str | None) -> str | None:
    """Print everything after the cursor that exists now."""
    while True:
        newer = _print_page(client, job, as_json, {**filters, "after": after, "limit": PAGE_LINES})
        if newer in (None, after):
            return after
        after = newer


def _print_page(client: Client, job: str, as_json: bool, params: dict[str, Any]) -> str | None:
    page = client.get(f"/jobs/{job}/logs", patience_seconds=PATIENCE_SECONDS, **params)
    for line in page["items"]:
        if as_json:
            print_json(line, one_line=True)
        else:
            console.print(f"{clock(line['time'])} [{line['rank']}] {line['text']}", markup=False, soft_wrap=True)
    after: str | None = page.get("next_after")
    return after
