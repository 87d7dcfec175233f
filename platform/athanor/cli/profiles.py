"""`athanor profile`."""

from pathlib import Path
from typing import Annotated

import typer

from athanor.cli.client import Client
from athanor.cli.downloading import Download
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.job_events import JobEvents
from athanor.cli.options import AsJson, JobId, connect, find_job
from athanor.cli.render import console, print_json, size
from athanor.cli.schema_gen import Profile
from athanor.cli.watching import PATIENCE_SECONDS

OPEN = "requested"


@reports_errors
def profile(
    job: JobId,
    steps: Annotated[int, typer.Option(min=1, max=50, help="Number of steps to profile.")] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder. Default: profile- and the steps.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the traces and fetch them.")] = True,
    as_json: AsJson = False,
) -> None:
    """Profile the next steps of a running job: one trace per rank for Perfetto or chrome://tracing. These steps take
    longer; the job continues."""
    client = connect()
    job = find_job(client, job)
    events = JobEvents(client, job) if wait else None
    asked: Profile = client.post(f"/jobs/{job}:profile", {"steps": steps})
    if events is None:
        if as_json:
            print_json(asked)
        else:
            console.print(f"{asked['id']} requested: {steps} steps of {job}")
        return
    found = _answered(client, job, asked, events)
    if found["artifact"] is None:
        raise CliError(ExitCode.JOB_FAILED, f"{found['id']} has failed: {found['reason']}")
    artifact = client.get(f"/artifacts/{found['artifact']}")
    folder = output or Path(f"profile-{found['first_step']}-{found['last_step']}-{job[-6:].lower()}")
    Download(client, artifact, folder).run(lambda count: None)
    if as_json:
        print_json({**found, "folder": str(folder), "files": [file["path"] for file in artifact["files"]]})
        return
    traced = f"steps {found['first_step']} to {found['last_step']} of {len(artifact['files'])} ranks"
    console.print(f"{folder}: {traced}, {size(artifact['size_bytes'])}; open them with https://ui.perfetto.dev")


def _answered(client: Client, job: str, asked: Profile, events: JobEvents) -> Profile:
    while True:
        page = client.get(f"/jobs/{job}/profiles", patience_seconds=PATIENCE_SECONDS)
        found: Profile = next(row for row in page["items"] if row["id"] == asked["id"])
        if found["status"] != OPEN:
            return found
        while (event := events.next()) and not str(event["type"]).startswith("profile."):
            pass
