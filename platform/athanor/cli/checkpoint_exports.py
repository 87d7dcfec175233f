"""`athanor model register --checkpoint`: a job that exports a stored checkpoint and registers it."""

import uuid

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode
from athanor.cli.options import find_job
from athanor.cli.render import console, print_json
from athanor.cli.watching import exit_code, watch

NEWEST = "newest"
TAKEN = ("cluster", "accelerator", "nodes", "processes_per_node", "cpus_per_process", "memory_bytes_per_node")


def register_checkpoint(
    client: Client,
    model: str,
    job: str,
    checkpoint: str,
    alias: str | None,
    team: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Submit a job that exports a checkpoint of `job`, on resources like those of that job, and registers it as the
    next version of the model. With `wait`, follow it to its end and show the version. Raises Exit if the job fails."""
    if job.startswith("art_"):
        raise CliError(ExitCode.USAGE, f"--checkpoint needs a job, and {job} is an artifact: give the job's id or name")
    job_id = find_job(client, job)
    original = client.get(f"/jobs/{job_id}")
    step = _step_of(client, job_id, checkpoint)
    resources = original["resolved_spec"]["resources"]
    spec = {
        "name": f"export-{original['name']}"[:100],
        "team": team or original["team"]["name"],
        "project": original["project"],
        "resources": {name: resources[name] for name in TAKEN if resources.get(name) is not None},
        "export": {"job": job_id, "step": step},
        "output": {"register": model, **({"alias": alias} if alias is not None else {})},
    }
    made = client.post("/jobs", spec, headers={"Idempotency-Key": f"cli-{uuid.uuid4()}"})
    if not as_json:
        console.print(f"submitted {escape(made['name'])} {made['id']}  {client.url}/jobs/{made['id']}", soft_wrap=True)
        console.print(f"  exports the checkpoint of step {step} of {escape(original['name'])}")
    if not wait:
        if as_json:
            print_json(made)
        return
    made = watch(client, made["id"], as_json=as_json)
    if made["status"] != "succeeded":
        if not as_json:
            console.print(f"The export is {made['status']}: athanor show {made['id']}", soft_wrap=True)
        raise typer.Exit(exit_code(made))
    rows = client.pages("/models", team=spec["team"], name=model)
    versions = (each for row in rows for each in client.pages(f"/models/{row['id']}/versions"))
    version = next((each for each in versions if each["job"] and each["job"]["id"] == made["id"]), None)
    if as_json:
        print_json(version)
    elif version is None:
        console.print(f"The version is deleted already: athanor show {made['id']}", soft_wrap=True)
    else:
        named = f", {escape(', '.join(version['aliases']))}" if version["aliases"] else ""
        console.print(f"{escape(model)}@{version['number']}{named}: step {step} of {escape(original['name'])}")


def _step_of(client: Client, job_id: str, checkpoint: str) -> int:
    """Return the step of a checkpoint that is named by its step or as the newest."""
    if checkpoint.isascii() and checkpoint.isdigit():
        return int(checkpoint)
    if checkpoint != NEWEST:
        raise CliError(ExitCode.USAGE, f"--checkpoint {checkpoint}: give the step of a checkpoint, or {NEWEST}")
    rows = client.pages(f"/jobs/{job_id}/checkpoints")
    intact = next((row for row in rows if row["state"] == "intact"), None)
    if intact is None:
        raise CliError(ExitCode.USAGE, f"{job_id} has no intact stored checkpoint: athanor checkpoint list {job_id}")
    return int(intact["step"])
