"""`athanor preflight`: what was measured before the first step of a job's newest attempt, or of one node now."""

import time
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.clusters import cluster_path
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect, find_job
from athanor.cli.render import console, print_json
from athanor.cli.times import moment
from trainer.contract.preflight import PreflightReport, format_report

POLL_SECONDS = 2.0


@reports_errors
def preflight(
    job: Annotated[
        str | None, typer.Argument(help="The job's name, or the beginning or end of its id.", metavar="[JOB]")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Measure this node of --cluster now, without a job.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Name or id of the node's cluster.")] = None,
    last: Annotated[bool, typer.Option("--last", help="Start none: show the newest one of the node.")] = False,
    all_attempts: Annotated[bool, typer.Option("--all", help="Start none: show all, the newest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the preflight of a job: rates of devices, memory, disks, object store and network, measured before the first
    step, and what is slow or broken. A spec asks for it with `preflight: true`.

    With --node, a platform administrator measures a node that is free: its devices, memory and disk. No team is
    charged, and it stops as soon as a job is submitted to the cluster. Exits with 1 unless nothing is slow or broken.
    """
    if (job is None) == (node is None) or (node is None) != (cluster is None):
        raise CliError(ExitCode.USAGE, "name either a job, or a node with --node and --cluster")
    if node is not None:
        _of_node(str(cluster), node, only_read=last or all_attempts, show_all=all_attempts, as_json=as_json)
        return
    client = connect()
    found = client.get(f"/jobs/{find_job(client, str(job))}/preflights")["items"]
    shown = found if all_attempts else found[:1]
    if as_json:
        print_json(shown)
        return
    if not shown:
        console.print("No attempt has measured its nodes. Set preflight: true in the spec.")
    for row in shown:
        console.print(f"attempt {row['attempt']}, {moment(row['time'])}: {row['result']}")
        _print_report(row)


def _of_node(cluster: str, node: str, *, only_read: bool, show_all: bool, as_json: bool) -> None:
    client = connect()
    path = f"{cluster_path(client, cluster)}/nodes/{node}"
    if only_read:
        found = client.get(f"{path}/preflights")["items"]
    else:
        identifier = client.post(f"{path}:preflight")["id"]
        while not (found := [row for row in client.get(f"{path}/preflights")["items"] if _has_ended(row, identifier)]):
            time.sleep(POLL_SECONDS)  # between two questions to the API, which has no stream of preflights
    shown = found if show_all else found[:1]
    if as_json:
        print_json(shown)
    elif not shown:
        console.print(f"Node {escape(node)} has not been measured outside jobs.", highlight=False)
    for row in [] if as_json else shown:
        by = f"started by {row['actor']}" if row["actor"] else f"started after an {row['cause']}"
        by = "at the interval of its cluster" if row["cause"] == "interval" else by
        console.print(f"{moment(row['created_at'])}, {by}: {row['outcome'] or 'running'}", highlight=False)
        if row["detail"]:
            console.print(escape(row["detail"]), soft_wrap=True, highlight=False)
        if row["report"]:
            _print_report(row["report"])
    if not only_read and shown[0]["outcome"] != "ok":
        raise typer.Exit(ExitCode.JOB_FAILED)


def _has_ended(row: Any, identifier: str) -> bool:
    return bool(row["id"] == identifier and row["outcome"])


def _print_report(row: Any) -> None:
    for line in format_report(PreflightReport.model_validate(row)):
        console.print(escape(line), soft_wrap=True, highlight=False)
