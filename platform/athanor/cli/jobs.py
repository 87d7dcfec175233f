"""Submit, list, show, cancel, pause, resume, retry, fork; presets."""

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.job_columns import COLUMNS, chosen_table, read_columns, reads_spec
from athanor.cli.options import AsJson, JobId, JobIds, connect, find_job
from athanor.cli.plain import plain
from athanor.cli.render import console, job_lines, jobs_table, outlook_lines, print_json, time_lines
from athanor.cli.schema_gen import Job, JobSummary, Plan, Preset
from athanor.cli.spec_file import apply_settings, read_preset, read_spec, with_name
from athanor.cli.watching import exit_code, watch


@reports_errors
def submit(
    file: Annotated[Path | None, typer.Argument(help="A job spec, YAML or JSON.")] = None,
    preset: Annotated[str | None, typer.Option(help="Start from a preset (`athanor presets`).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: training.steps=50. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The job's name.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the job ends.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would run and its cost.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key never creates a second job. Default: random.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job from a file or a preset."""
    if (file is None) == (preset is None):
        raise CliError(ExitCode.USAGE, "give either a FILE or --preset NAME")
    client = connect()
    spec = read_spec(file) if file is not None else read_preset(client, str(preset))
    spec = apply_settings(spec, with_name(settings, name))
    if plan:
        _show_plan(client.post("/jobs:plan", spec), as_json=as_json)
        return
    key = idempotency_key or f"cli-{uuid.uuid4()}"
    try:
        job: Job = client.post("/jobs", spec, headers={"Idempotency-Key": key})
    except CliError as error:
        if error.exit_code == ExitCode.SERVER:  # the server may have taken it all the same
            error.details.append(f"to repeat without making a second job: --idempotency-key {key}")
        raise
    if not as_json:
        console.print(f"submitted {job['id']}  {client.url}/jobs/{job['id']}", soft_wrap=True)
        for warning in job.get("warnings") or []:
            console.print(f"warning: {warning['detail']}", markup=False, soft_wrap=True)
    if wait:
        job = watch(client, job["id"], as_json=as_json)
    if as_json:
        print_json(job, one_line=wait)
    elif wait:
        _print_job(job, client.url)
    if wait:
        raise typer.Exit(exit_code(job))


@reports_errors
def list_jobs(
    status: Annotated[str | None, typer.Option(help="Comma-separated: running,queued.")] = None,
    team: Annotated[str | None, typer.Option(help="Name or id of a team.")] = None,
    project: Annotated[str | None, typer.Option(help="Name of a project.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Part of a name or id.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; repeatable.")] = None,
    by: Annotated[str | None, typer.Option(help="Username of who submitted them.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Those that you submitted.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(help="name, loss, validation_loss, mean_tokens_per_second …; -loss for the largest first."),
    ] = None,
    chosen: Annotated[
        str | None,
        typer.Option("--columns", help=f"Comma-separated: {', '.join(COLUMNS)}, or spec.PATH: spec.training.steps."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first unless --sort says otherwise."""
    if mine and by:
        raise CliError(ExitCode.USAGE, f"--mine and --by {by}: give one of them")
    filters: dict[str, Any] = {"status": status, "team": team, "project": project, "q": search, "limit": limit}
    shown = read_columns(chosen)
    filters |= {"created_by": "@me" if mine else by, "sort": sort}
    filters |= {"expand": "resolved_spec" if reads_spec(shown) else None}
    for pair in label or []:
        key, separator, value = pair.partition("=")
        if not separator:
            raise CliError(ExitCode.USAGE, f"--label {pair!r}: write KEY=VALUE")
        filters[f"label.{key}"] = value
    page = connect().get("/jobs", **filters)
    if as_json:
        print_json(page)
    elif page["items"]:
        console.print(chosen_table(page["items"], shown) if shown else jobs_table(page["items"]))
    else:
        console.print("no jobs")


@reports_errors
def show(job: JobId, as_json: AsJson = False) -> None:
    """Show one job, and where its time went."""
    client = connect()
    found = client.get(f"/jobs/{find_job(client, job)}")
    if as_json:
        print_json(found)
    else:
        _print_job(found, client.url)
        for line in time_lines(found):
            console.print(line)


@reports_errors
def cancel(jobs: JobIds, as_json: AsJson = False) -> None:
    """Cancel jobs. A job that has already ended is unchanged."""
    _act(jobs, "cancel", as_json)


@reports_errors
def pause(jobs: JobIds, as_json: AsJson = False) -> None:
    """Pause jobs: running ones checkpoint and release their slots, queued ones are held."""
    _act(jobs, "pause", as_json)


@reports_errors
def resume(jobs: JobIds, as_json: AsJson = False) -> None:
    """Resume paused or held jobs from their newest checkpoints."""
    _act(jobs, "resume", as_json)


@reports_errors
def retry(
    job: JobId,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key never creates a second job. Default: random.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit the spec of an ended job again."""
    _submit_like(job, "retry", None, idempotency_key, as_json=as_json)


@reports_errors
def fork(
    job: JobId,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a field: training.steps=50; `null` removes it. Repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The new job's name.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key never creates a second job. Default: random.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit the spec of a job again, with changes; the job may still be running."""
    changes = apply_settings({}, with_name(settings, name))
    _submit_like(job, "fork", {"changes": changes}, idempotency_key, as_json=as_json)


def _submit_like(
    job: str, action: str, body: dict[str, Any] | None, idempotency_key: str | None, *, as_json: bool
) -> None:
    client = connect()
    key = idempotency_key or f"cli-{uuid.uuid4()}"
    found = client.post(f"/jobs/{find_job(client, job)}:{action}", body, headers={"Idempotency-Key": key})
    if as_json:
        print_json(found)
    else:
        console.print(f"submitted {found['id']}  {client.url}/jobs/{found['id']}", soft_wrap=True)


def _act(jobs: list[str], action: str, as_json: bool) -> None:
    """Print one job in full, several as one line each; any refusal makes the command fail."""
    client = connect()
    ids = [find_job(client, job) for job in jobs]
    if len(ids) == 1:
        found = client.post(f"/jobs/{ids[0]}:{action}")
        if as_json:
            print_json(found)
        else:
            console.print(_wanted(found))
        return
    items = client.post(f"/jobs:{action}", {"ids": ids})["items"]
    if as_json:
        print_json(items)
    for item in [] if as_json else items:
        console.print(
            _wanted(item["job"]) if item["job"] else f"{item['id']}: {item['problem']['detail']}", markup=False
        )
    refused = [item["id"] for item in items if item["problem"]]
    if refused:
        raise CliError(ExitCode.USAGE, f"{len(refused)} of {len(items)} refused: {', '.join(refused)}")


def _wanted(job: Job | JobSummary) -> str:
    return f"{job['id']} is {job['status']}, wanted: {job['desired']}"


@reports_errors
def presets(
    spec: Annotated[str | None, typer.Option(help="Print this preset's spec, to start a file from.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the presets."""
    found: list[Preset] = connect().get("/presets")["items"]
    if spec is not None:
        chosen = [preset for preset in found if preset["name"] == spec]
        if not chosen:
            names = ", ".join(sorted(preset["name"] for preset in found))
            raise CliError(ExitCode.USAGE, f"no preset {spec!r}: there are {names}")
        if as_json:
            print_json(chosen[0]["spec"])
        else:
            print(plain(chosen[0]["spec_yaml"]), end="")
    elif as_json:
        print_json(found)
    else:
        for preset in sorted(found, key=lambda preset: not any(preset["fits"].values())):  # those that fit come first
            fits = [cluster for cluster, fit in preset["fits"].items() if fit]
            where = f"fits {', '.join(fits)}" if fits else "fits no cluster here"
            console.print(f"[bold]{preset['name']:<12}[/bold] {preset['title']}  [dim]({where})[/dim]")


def _print_job(job: Job, server_url: str) -> None:
    for line in job_lines(job, server_url):
        console.print(line, soft_wrap=True)


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    console.print(yaml.safe_dump(plan["resolved_spec"], sort_keys=False), markup=False, end="")
    for name, value in plan["estimate"].items():
        console.print(f"{name}: {value}", markup=False)
    for warning in plan["warnings"]:
        console.print(f"warning: {warning['detail']}", markup=False, soft_wrap=True)
    for line in outlook_lines(plan):
        console.print(line, markup=False, soft_wrap=True)
