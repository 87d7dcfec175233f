"""`athanor quota` and `athanor queue`.

Changes need a platform administrator's token with the scope `platform:quotas`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect, read_duration
from athanor.cli.plain import plain
from athanor.cli.render import columns, console, number, print_json
from athanor.cli.spec_file import read_spec
from trainer.contract.units import duration_text, parse_duration, parse_size, size_text

app = typer.Typer(rich_markup_mode=None)
TreeFile = Annotated[Path, typer.Argument(help="YAML or JSON, as `athanor quota show --yaml` prints it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LABELS = {
    "max_running_jobs": "running jobs",
    "max_queued_jobs": "waiting jobs",
    "max_slots": "total slots",
    "max_slots_per_job": "slots per job",
    "max_run_seconds": "longest run",
    "max_storage_bytes": "stored data",
    "idle_warning_seconds": "idle warning after",
    "idle_pause_seconds": "idle pause after",
}
# How a limit is written and read; others are whole numbers.
DURATIONS = ("max_run_seconds", "idle_warning_seconds", "idle_pause_seconds")
WRITTEN: dict[str, Callable[[int], str]] = {**dict.fromkeys(DURATIONS, duration_text), "max_storage_bytes": size_text}
READ: dict[str, Callable[[str], int]] = {**dict.fromkeys(DURATIONS, parse_duration), "max_storage_bytes": parse_size}
GRANT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)=(none|\d+(?::(?:\d+|-)?){0,2})$")
NONE = "none"


@app.command("show")
@reports_errors
def show(
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML for `athanor quota apply`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the quota tree with usage; members of teams see their own path."""
    client = connect()
    if as_yaml:
        sys.stdout.write(plain(yaml.safe_dump(client.get("/quotas/document"), sort_keys=False, allow_unicode=True)))
        return
    found = client.get("/quotas")
    if as_json:
        print_json(found)
        return
    table = columns("node", "accelerator", "used", "own", "borrowed", "lent", "can use", "jobs", "waiting", "limits")
    for node in found["nodes"]:
        _rows_of(table, node)
    console.print(table)


@app.command("set")
@reports_errors
def set_node(
    node: Annotated[str, typer.Argument(help="Path (research/vision), team or id; organisation is the root.")],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="h100=8, or h100=8:4:2 for nominal quota, borrow limit, lend limit (- for none); h100=none removes it."
        ),
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Fair-share weight among its siblings.")] = None,
    parent: Annotated[str | None, typer.Option(help="Move the node below this one.")] = None,
    name: Annotated[str | None, typer.Option(help="Rename a group.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create a group with this path.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete an empty group.")] = False,
    max_running_jobs: Annotated[str | None, typer.Option(help="A number, or none.")] = None,
    max_queued_jobs: Annotated[str | None, typer.Option(help="A number, or none.")] = None,
    max_slots: Annotated[str | None, typer.Option(help="A number, or none.")] = None,
    max_slots_per_job: Annotated[str | None, typer.Option(help="A number, or none.")] = None,
    max_run_seconds: Annotated[
        str | None, typer.Option("--max-run-time", "--max-run-seconds", help="Such as 12h, or none.")
    ] = None,
    max_storage_bytes: Annotated[
        str | None, typer.Option("--max-storage", "--max-storage-bytes", help="Such as 40GiB, or none.")
    ] = None,
    idle_warning_seconds: Annotated[
        str | None,
        typer.Option("--idle-warning", help="Warn of running jobs without progress for so long: 30m, or none."),
    ] = None,
    idle_pause_seconds: Annotated[
        str | None,
        typer.Option("--idle-pause", help="Pause running jobs without progress for so long: 1h, or none."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the effect.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change a node of the tree. Omitted options are unchanged; takes effect immediately."""
    if create and delete:
        raise CliError(ExitCode.USAGE, "--create and --delete: give one of them")
    limits = {
        "max_running_jobs": max_running_jobs,
        "max_queued_jobs": max_queued_jobs,
        "max_slots": max_slots,
        "max_slots_per_job": max_slots_per_job,
        "max_run_seconds": max_run_seconds,
        "max_storage_bytes": max_storage_bytes,
        "idle_warning_seconds": idle_warning_seconds,
        "idle_pause_seconds": idle_pause_seconds,
    }
    said = {"weight": weight, "parent": parent, "name": name}
    change: dict[str, Any] = {
        "node": node,
        "action": "create" if create else "delete" if delete else "change",
        **{key: value for key, value in said.items() if value is not None},
        **{key: _limit(key, value) for key, value in limits.items() if value is not None},
        **({"grants": dict(_grant(text) for text in grant)} if grant else {}),
    }
    client = connect()
    seen = client.post("/quotas:preview", {"changes": [change]})
    if not dry_run:
        client.patch("/quotas", {"changes": [change]}, headers=_if_match(seen))
    if as_json:
        print_json(seen)
    else:
        _print_preview(seen)


@app.command("preview")
@reports_errors
def preview(file: TreeFile, as_json: AsJson = False) -> None:
    """Show what a file would change: limits exceeded, jobs that would stop or start."""
    seen = connect().post("/quotas:preview", _tree(file))
    if as_json:
        print_json(seen)
    else:
        _print_preview(seen)


@app.command("apply")
@reports_errors
def apply(file: TreeFile, yes: Yes = False, as_json: AsJson = False) -> None:
    """Apply a file to the tree in one transaction. Groups missing from the file are deleted, teams stay."""
    client, document = connect(), _tree(file)
    seen = client.post("/quotas:preview", document)
    if not as_json:
        _print_preview(seen)
    if seen["differences"]:
        if not yes and not as_json:
            typer.confirm("Change the tree?", abort=True)
        client.put("/quotas", document, headers=_if_match(seen))
    if as_json:
        print_json(seen)
    elif seen["differences"]:
        console.print("[green]The tree is as the file says.[/green]")


@app.command("settings")
@reports_errors
def admission_settings(
    fair_share: Annotated[bool | None, typer.Option(help="Rank teams by past usage (fair share).")] = None,
    backfill: Annotated[
        bool | None, typer.Option(help="Start small jobs early where they delay no other job (backfill).")
    ] = None,
    preempt: Annotated[bool | None, typer.Option(help="Reclaim lent slots; the borrower checkpoints first.")] = None,
    half_life_seconds: Annotated[
        str | None,
        typer.Option(
            "--half-life", "--half-life-seconds", help="Half-life of past usage in fair-share ranking, as 7d."
        ),
    ] = None,
    age_step_seconds: Annotated[
        str | None,
        typer.Option(
            "--age-step",
            "--age-step-seconds",
            help="Waiting time that raises a job one priority class; 0: none.",
        ),
    ] = None,
    protected_seconds: Annotated[
        str | None,
        typer.Option("--protected", "--protected-seconds", help="Minimum run time before a job can be preempted."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or change the admission settings. Changes take effect immediately."""
    asked = {
        "fair_share": fair_share,
        "backfill": backfill,
        "preempt": preempt,
        "half_life_seconds": read_duration("--half-life", half_life_seconds),
        "age_step_seconds": read_duration("--age-step", age_step_seconds),
        "protected_seconds": read_duration("--protected", protected_seconds),
    }
    change = {name: value for name, value in asked.items() if value is not None}
    client = connect()
    found = client.put("/quotas/settings", change) if change else client.get("/quotas/settings")
    if as_json:
        print_json(found)
        return
    for name in asked:
        value = found[name]
        said = ("yes" if value else "no") if isinstance(value, bool) else _span(value)
        console.print(f"{name.removesuffix('_seconds').replace('_', ' ')}: {said}")


@reports_errors
def queue(
    pool: Annotated[str | None, typer.Option(help="Only this pool (CLUSTER/POOL) or cluster.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Number of jobs per pool.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the queue of each pool, with reasons and estimated starts."""
    found = connect().get("/queue", pool=pool, limit=limit)["items"]
    if as_json:
        print_json(found)
        return
    for each in found:
        used = f"{each['slots_used']} of {each['slots']} {escape(each['accelerator'])} slots used"
        if each.get("spare_slots"):  # absent from older servers
            used += f" ({each['spare_slots']} spare)"
        wait = f"{each['waiting_jobs']} jobs of {each['waiting_teams']} teams wait for {each['waiting_slots']}"
        console.print(f"[bold]{escape(each['pool'])}[/bold]  {used}, {wait}")
        if each["jobs"]:
            console.print(_queue_table(each["jobs"]))


def _queue_table(jobs: list[Any]) -> Table:
    table = columns("#", "job", "name", "team", "priority", "slots", "starts in", "why it waits")
    for job in jobs:
        wait, reason = job["wait"] or {}, job["reason"] or {}
        why = " ".join(part for part in (reason.get("message"), wait.get("unblocks")) if part)
        table.add_row(
            str(wait.get("position") or "-"), job["id"], escape(job["name"] or "-"), escape(job["team"]["name"]),
            job["priority"], str(job["slots"]), _expected(wait), escape(why),
        )  # fmt: skip
    return table


def _expected(wait: dict[str, Any]) -> str:
    likely, late = wait.get("p50_seconds"), wait.get("p90_seconds")
    if likely is None:
        latest = wait.get("starts_in_seconds")
        return "-" if latest is None else f"at most {_span(latest)}"
    return f"{_span(likely)} to {_span(late)}" if late is not None else _span(likely)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _rows_of(table: Table, node: Any) -> None:
    limits = [
        f"{label} {WRITTEN[name](node[name]) if name in WRITTEN else node[name]}"
        for name, label in LABELS.items()
        if node[name] is not None
    ]
    if node["weight"] != 1:
        limits.append(f"weight {node['weight']:g}")
    name = f"{'  ' * node['depth']}{escape(node['name'])}"
    shares = [each for each in node["shares"] if each["governed"] or each["used"]] or [None]
    for place, share in enumerate(shares):
        first = place == 0
        figures = ["", "", "", "", "", ""]
        if share:
            figures = [
                escape(share["accelerator"]), str(share["used"]), str(share["nominal"]) if share["governed"] else "any",
                str(share["borrowed"] or ""), str(share["lent"] or ""), number(share["available"], "d"),
            ]  # fmt: skip
        table.add_row(
            name if first else "", *figures, str(node["running_jobs"]) if first else "",
            str(node["queued_jobs"]) if first else "", ", ".join(limits) if first else "",
        )  # fmt: skip


def _print_preview(seen: Any) -> None:
    if not seen["differences"]:
        console.print("Nothing would change." if not seen["over"] else "Nothing would change; as it is:")
    for line in seen["differences"]:
        colour = {"+": "green", "-": "red"}.get(line[0], "default")
        console.print(f"[{colour}]{escape(line)}[/{colour}]")
    for note in seen["notes"]:
        console.print(f"[yellow]note[/yellow] {escape(note)}")
    for over in seen["over"]:
        console.print(f"[yellow]over[/yellow] {escape(over['detail'])}")
    for key, said in (
        ("preempted", "[red]saves a checkpoint and waits[/red]"),
        ("started", "[green]starts immediately[/green]"),
        ("not_started", "[yellow]waits, and would start now[/yellow]"),
    ):
        for job in seen[key]:
            why = f": {escape(job['why'])}" if job["why"] else ""
            console.print(f"{said} {job['id']} of {escape(job['team'])}, {job['slots']} {job['accelerator']}{why}")


def _tree(file: Path) -> dict[str, Any]:
    document = read_spec(file)
    if "organisation" not in document:
        raise CliError(ExitCode.USAGE, f"{file} has no organisation: see `athanor quota show --yaml` for one")
    return document


def _limit(name: str, text: str) -> int | None:
    if text == NONE:
        return None
    read = READ.get(name)
    if read is None and not text.isdigit():
        raise CliError(ExitCode.USAGE, f"--{name.replace('_', '-')} {text!r}: give a whole number, or none")
    try:
        return read(text) if read else int(text)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{LABELS[name]}: {error}, or none") from error


def _grant(text: str) -> tuple[str, dict[str, int | None] | None]:
    found = GRANT.match(text)
    if found is None:
        raise CliError(ExitCode.USAGE, f"--grant {text!r}: write it like h100=8, h100=8:4:2, h100=8:-:2 or h100=none")
    accelerator, values = found.groups()
    if values == NONE:
        return accelerator, None
    parts = [int(part) if part.isdigit() else None for part in [*values.split(":"), "", ""][:3]]
    return accelerator, {"nominal": parts[0] or 0, "borrow_limit": parts[1], "lend_limit": parts[2]}


def _if_match(seen: Any) -> dict[str, str]:
    """Return the If-Match header for the previewed version of the tree."""
    return {"If-Match": f'W/"{seen["version"]}-"'}
