"""`athanor preflight`: what was measured before the first step of a job's newest attempt, or of one node now."""

from typing import Annotated

import typer
from rich.markup import escape

from athanor.cli import node_preflights
from athanor.cli.client import Client
from athanor.cli.clusters import cluster_path
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect, find_job
from athanor.cli.render import console, print_json
from athanor.cli.times import moment


@reports_errors
def preflight(
    job: Annotated[
        str | None, typer.Argument(help="The job's name, or the beginning or end of its id.", metavar="[JOB]")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Measure this node of --cluster now, without a job.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Name or id of the node's cluster; without --node, a free node is chosen.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Start none: show the newest one of the node.")] = False,
    all_attempts: Annotated[bool, typer.Option("--all", help="Start none: show all, the newest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the preflight of a job: rates of devices, memory, disks, object store and network, measured before the first
    step, and what is slow or broken. A spec asks for it with `preflight: true`.

    With --cluster, a platform administrator tests a node that is free: whether the trainer starts there, and reaches
    the platform and the object store; its devices, memory and disk. No team is charged, and it stops as soon as a job
    is submitted to the cluster. Exits with 1 unless nothing is slow or broken.
    """
    if (job is None) == (cluster is None) or (node is not None and cluster is None):
        raise CliError(ExitCode.USAGE, "name either a job, or --cluster and perhaps --node of it")
    if (last or all_attempts) and cluster is not None and node is None:
        raise CliError(ExitCode.USAGE, "name the node with --node")
    if cluster is not None:
        _of_node(cluster, node, only_read=last or all_attempts, show_all=all_attempts, as_json=as_json)
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
        node_preflights.print_report(row)


def _free_node(client: Client, place: str) -> str:
    pools = client.get(place)["pools"]
    return node_preflights.free_node(client, place, {pool["accelerator"] for pool in pools})


def _of_node(cluster: str, node: str | None, *, only_read: bool, show_all: bool, as_json: bool) -> None:
    client = connect()
    place = cluster_path(client, cluster)
    chosen = node or _free_node(client, place)
    path = f"{place}/nodes/{chosen}"
    found = client.get(f"{path}/preflights")["items"] if only_read else node_preflights.measure(client, path)
    shown = found if show_all else found[:1]
    if as_json:
        print_json(shown)
    elif not shown:
        console.print(f"Node {escape(chosen)} has not been measured outside jobs.", highlight=False)
    else:
        if node is None:
            console.print(f"node {escape(chosen)}", highlight=False)
        node_preflights.print_preflights(shown)
    if not only_read and shown[0]["outcome"] != "ok":
        raise typer.Exit(ExitCode.JOB_FAILED)
