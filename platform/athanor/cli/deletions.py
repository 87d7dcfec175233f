"""`athanor delete` and `athanor trash`."""

from typing import Annotated, Any

import typer

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import find_dataset, find_versions
from athanor.cli.options import AsJson, connect
from athanor.cli.render import console, print_json, size
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
COLLECTIONS = {
    "job": "jobs", "art": "artifacts", "ckp": "checkpoints", "dset": "datasets", "proj": "projects", "team": "teams",
}  # fmt: skip
# What can be named: its collection, the plural, and how its ids begin.
NAMED = {
    "dataset": ("datasets", "data sets", "dset"),
    "project": ("projects", "projects", "proj"),
    "team": ("teams", "teams", "team"),
}
DeletionId = Annotated[str, typer.Argument(help="A deletion, del_...", metavar="DELETION")]


@reports_errors
def delete(
    reference: Annotated[
        str,
        typer.Argument(
            help="A finished job, artifact (art_...), checkpoint (ckp_...) or data set (dataset:NAME, "
            "or dataset:NAME@NUMBER if it has several versions); or `project NAME`, `team NAME`."
        ),
    ],
    name: Annotated[str | None, typer.Argument(help="Of a project or team.")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what it would remove.")] = False,
    permanently: Annotated[
        bool, typer.Option("--permanently", help="Without a window for undoing it; for administrators of the team.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete what a finished job stored, an artifact, a checkpoint, a data set, a project or a team.

    Undo it with `athanor trash`. Teams are for platform administrators; after the undo window a team is erased.
    """
    client = connect()
    address = _address(client, _joined(reference, name))
    found = client.get(f"{address}/deletion")
    if preview and as_json:
        print_json(found)
        return
    if not as_json:
        _show(found)
    if preview:
        return
    if not yes and not as_json:
        until = "This cannot be undone" if permanently else f"It can be restored for {found['undo_days']} days"
        typer.confirm(f"{until}. Delete {found['name']}?", abort=True)
    made = client.delete(f"{address}?permanently=true" if permanently else address)
    if as_json:
        print_json(made)
        return
    undo = "its objects go now" if permanently else f"undo with `athanor trash restore {made['id']}`"
    console.print(f"{made['name']} is deleted; {undo}", soft_wrap=True)


@app.command("list")
@reports_errors
def list_deletions(as_json: AsJson = False) -> None:
    """List what was deleted, newest first."""
    found = list(connect().pages("/deletions"))
    if as_json:
        print_json(found)
        return
    for row in found:
        until = f"until {moment(row['purge_after'])}" if row["state"] == "pending" else ""
        console.print(
            f"{row['id']}  {row['state']:<9} {row['kind']:<10} {size(row['size_bytes']):>9}  {row['name']}  {until}",
            soft_wrap=True,
        )


@app.command("restore")
@reports_errors
def restore(deletion: DeletionId, as_json: AsJson = False) -> None:
    """Undo a deletion whose objects have not been purged yet."""
    _act(deletion, "restore", "is restored", as_json=as_json)


@app.command("purge")
@reports_errors
def purge(deletion: DeletionId, as_json: AsJson = False) -> None:
    """Delete the objects now, for administrators of the team. This cannot be undone."""
    _act(deletion, "purge", "goes now; its storage returns to the quota", as_json=as_json)


@app.command("certificate")
@reports_errors
def certificate(deletion: DeletionId) -> None:
    """Print the certificate of a team's erasure, which `manage.py verify_erasure` checks."""
    print_json(connect().get(f"/deletions/{deletion}/certificate"))


def _act(deletion: str, verb: str, outcome: str, *, as_json: bool) -> None:
    made = connect().post(f"/deletions/{deletion}:{verb}")
    if as_json:
        print_json(made)
    else:
        console.print(f"{made['name']} {outcome}")


def _joined(reference: str, name: str | None) -> str:
    """Return `project:NAME` for `project NAME`, and likewise for teams and data sets."""
    if name is None:
        return reference
    if reference not in NAMED:
        raise CliError(ExitCode.USAGE, f"{reference!r} takes no name; write one of {', '.join(NAMED)} before {name!r}")
    return f"{reference}:{name}"


def _address(client: Client, reference: str) -> str:
    kind, separator, name = reference.partition(":")
    if separator and kind == "dataset":
        return f"/datasets/{_version_to_delete(client, name)['id']}"
    if separator and kind in NAMED:
        plural, what, prefix = NAMED[kind]
        named = [each for each in client.pages(f"/{plural}") if each["name"] == name]
        if len(named) != 1:
            remedy = "check the name" if not named else f"give its id, {prefix}_..."
            raise CliError(ExitCode.NOT_FOUND, f"{len(named)} {what} are called {name!r}; {remedy}")
        return f"/{plural}/{named[0]['id']}"
    collection = COLLECTIONS.get(reference.partition("_")[0])
    if collection is None:
        raise CliError(
            ExitCode.USAGE,
            f"{reference!r} is no id: give job_..., art_..., ckp_..., dset_..., dataset:NAME, project NAME, team NAME",
        )
    return f"/{collection}/{reference}"


def _version_to_delete(client: Client, reference: str) -> Any:
    """Return the version that a reference names. Raises CliError for the name alone of a data set with several."""
    if "@" in reference:
        return find_dataset(client, reference)
    newest, *others = find_versions(client, reference)
    if others:
        detail = f"data set {reference!r} has {len(others) + 1} versions; name the one to delete, such as "
        raise CliError(ExitCode.USAGE, f"{detail}dataset:{reference}@{newest['version']}")
    return newest


def _show(found: dict[str, Any]) -> None:
    parts = [f"{found[name]} {name}" for name in ("artifacts", "checkpoints", "preparations") if found[name]]
    parts += [f"{count} {kind.replace('_', ' ')}" for kind, count in found.get("contents", {}).items() if count]
    console.print(f"{found['kind']} {found['name']}: {size(found['size_bytes'])}  {', '.join(parts)}", soft_wrap=True)
    for version in found.get("registered", []):
        console.print(f"  {version} is a registered model: its files stay", soft_wrap=True, markup=False)
    for alias in found.get("aliases", []):
        console.print(f"  the alias {alias} names it: it cannot be deleted yet", soft_wrap=True, markup=False)
    for job in found["blocked_by"]:
        console.print(f"  needed by {job['name']} ({job['id']}, {job['status']}): it cannot be deleted yet")
    for job in found["used_by"]:
        console.print(f"  used by {job['name']} ({job['id']}, {job['status']}), whose record stays")
