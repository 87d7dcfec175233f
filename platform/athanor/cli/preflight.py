"""`athanor preflight`: what was measured before the first step of a job's newest attempt."""

from typing import Annotated

import typer
from rich.markup import escape

from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson, JobId, connect, find_job
from athanor.cli.render import console, print_json
from athanor.cli.times import moment
from trainer.contract.preflight import PreflightReport, format_report


@reports_errors
def preflight(
    job: JobId,
    all_attempts: Annotated[bool, typer.Option("--all", help="Show all attempts, the newest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the preflight of a job: rates of devices, memory, disks, object store and network, measured before the first
    step, and what is slow or broken. A spec asks for it with `preflight: true`."""
    client = connect()
    found = client.get(f"/jobs/{find_job(client, job)}/preflights")["items"]
    shown = found if all_attempts else found[:1]
    if as_json:
        print_json(shown)
        return
    if not shown:
        console.print("No attempt has measured its nodes. Set preflight: true in the spec.")
    for row in shown:
        console.print(f"attempt {row['attempt']}, {moment(row['time'])}: {row['result']}")
        for line in format_report(PreflightReport.model_validate(row)):
            console.print(escape(line), soft_wrap=True, highlight=False)
