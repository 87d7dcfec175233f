"""`athanor checkpoint`: list, mark-damaged, mark-intact, retire."""

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.markup import escape

from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson, JobId, connect, find_job
from athanor.cli.render import columns, console, print_json, size
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
CheckpointId = Annotated[str, typer.Argument(help="A checkpoint, ckp_...", metavar="CHECKPOINT")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for others to read.")]


@app.command("list")
@reports_errors
def list_checkpoints(job: JobId, as_json: AsJson = False) -> None:
    """List the stored checkpoints of a job, newest first."""
    client = connect()
    found = list(client.pages(f"/jobs/{find_job(client, job)}/checkpoints"))
    if as_json:
        print_json(found)
        return
    table = columns("id", "step", "state", "validation loss", "size", "created", "verified", "damage")
    for row in found:
        table.add_row(
            row["id"], str(row["step"]), row["state"], validation_loss(row.get("metrics") or {}),
            size(row["size_bytes"]), moment(row["created_at"]), moment(row.get("verified_at")),
            escape(row.get("damage", "")),
        )  # fmt: skip
    console.print(table)


def validation_loss(metrics: Mapping[str, float | None]) -> str:
    """Return the newest validation loss of a checkpoint, with the step at which it was measured if that is recorded;
    empty before the first evaluation."""
    loss, step = metrics.get("evaluation/loss"), metrics.get("evaluation/step")
    if loss is None:
        return ""
    return f"{loss:.4f}" if step is None else f"{loss:.4f} (step {step:.0f})"


@app.command("mark-damaged")
@reports_errors
def mark_damaged(checkpoint: CheckpointId, reason: Reason, as_json: AsJson = False) -> None:
    """Mark a checkpoint as damaged: nothing resumes from it. For administrators of the team."""
    _act(checkpoint, "mark_damaged", reason, "is marked as damaged", as_json=as_json)


@app.command("mark-intact")
@reports_errors
def mark_intact(checkpoint: CheckpointId, reason: Reason, as_json: AsJson = False) -> None:
    """Revoke a finding of damage: resumes use the checkpoint again, and verify it. For administrators of the team."""
    _act(checkpoint, "mark_intact", reason, "is marked as intact", as_json=as_json)


@app.command("retire")
@reports_errors
def retire(
    checkpoint: CheckpointId,
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a checkpoint up: its objects are deleted, which cannot be undone. For administrators of the team."""
    if not yes and not as_json:
        typer.confirm(f"This cannot be undone. Retire {checkpoint}?", abort=True)
    _act(checkpoint, "retire", reason, "is retired; its objects are deleted", as_json=as_json)


def _act(checkpoint: str, verb: str, reason: str, outcome: str, *, as_json: bool) -> None:
    made = connect().post(f"/checkpoints/{checkpoint}:{verb}", {"reason": reason})
    if as_json:
        print_json(made)
        return
    console.print(f"{made['id']} of step {made['step']} {outcome}", soft_wrap=True)
    console.print(escape(made["notice"]), soft_wrap=True)
