"""`athanor verify`: replay segments of a finished job, and show the results."""

import uuid
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.errors import ExitCode, reports_errors
from athanor.cli.options import AsJson, JobId, connect, find_job
from athanor.cli.render import columns, console, print_json
from athanor.cli.watching import exit_code, watch

SAME = ("equal", "within_tolerance")


@reports_errors
def verify(
    job: JobId,
    replay: Annotated[
        int | None, typer.Option("--replay", min=1, help="Submit a replay of this number of segments.", metavar="N")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Cluster to replay on. Default: the one that the job ran on.")
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="The steps before the first stored checkpoint may be chosen too.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the replay ends, and its results.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the replays of a finished job, or submit one: steps are computed again and compared with its checkpoints.

    The exit code is 1 if a result differs or cannot be compared.
    """
    client = connect()
    job_id = find_job(client, job)
    if replay is None:
        _show(list(client.pages(f"/jobs/{job_id}/replays")), as_json=as_json)
        return
    original = client.get(f"/jobs/{job_id}")
    resources = original["resolved_spec"]["resources"]
    taken = ("cluster", "accelerator", "nodes", "processes_per_node", "cpus_per_process", "memory_bytes_per_node")
    spec = {
        "name": f"replay-{original['name']}"[:100],
        "team": original["team"]["name"],
        "project": original["project"],
        "resources": {name: resources[name] for name in taken if resources.get(name) is not None},
        "replay": {"job": job_id, "segments": replay, "from_start": from_start},
    }
    if cluster is not None:
        spec["resources"]["cluster"] = cluster
    made = client.post("/jobs", spec, headers={"Idempotency-Key": f"cli-{uuid.uuid4()}"})
    if not as_json:
        console.print(f"submitted {made['id']}  {client.url}/jobs/{made['id']}", soft_wrap=True)
        for each in made["resolved_spec"]["replay"]["pinned"]:
            console.print(f"  steps {each['first_step'] + 1} to {each['last_step']}")
    if not wait:
        if as_json:
            print_json(made)
        return
    made = watch(client, made["id"], as_json=as_json)
    if made["status"] != "succeeded" and not as_json:
        console.print(f"The replay is {made['status']}: athanor show {made['id']}", soft_wrap=True)
    _show(list(client.pages(f"/jobs/{made['id']}/replays")), as_json=as_json)
    if made["status"] != "succeeded":
        raise typer.Exit(exit_code(made))


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print results. Raises Exit if one of them is not good."""
    if as_json:
        print_json(rows)
    elif not rows:
        console.print("No results. Submit a replay: athanor verify --replay 1 JOB")
    else:
        table = columns("replay", "steps", "verdict", "bits compared", "tensors", "different", "because")
        for row in rows:
            table.add_row(
                row["replay"]["id"], f"{row['first_step'] + 1} to {row['last_step']}", row["verdict"],
                "yes" if row["is_exact"] else "no", str(row["tensors"]), str(row["differing"]), escape(row["because"]),
            )  # fmt: skip
        console.print(table)
    if any(row["verdict"] not in SAME for row in rows):
        raise typer.Exit(ExitCode.JOB_FAILED)
