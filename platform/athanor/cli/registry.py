"""`athanor model`: the model registry, with its versions and aliases."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.checkpoint_exports import register_checkpoint
from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamOption, find_row
from athanor.cli.options import AsJson, connect, find_job
from athanor.cli.plain import plain
from athanor.cli.render import columns, console, print_json, size
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
LISTING = "athanor model list"
ModelName = Annotated[
    str, typer.Argument(help="Name or id of the model, or OWNER/NAME of one that team OWNER shares.", metavar="MODEL")
]
TeamName = Annotated[str | None, typer.Option("--team", help="Name of the team; needed if several have the model.")]


@app.command("list")
@reports_errors
def list_models(team: TeamName = None, as_json: AsJson = False) -> None:
    """List the registered models of your teams and, as OWNER/NAME, those that other teams share, newest first."""
    found = list(connect().pages("/models", team=team))
    if as_json:
        print_json(found)
        return
    table = columns("name", "team", "versions", "aliases", "tags", "created")
    for row in found:
        table.add_row(
            escape(_name(row)), escape(row["team"]["name"]), str(row["versions"]), escape(_aliases(row)),
            escape(", ".join(row["tags"])), moment(row["created_at"]),
        )  # fmt: skip
    console.print(table if found else "No models. Register one: athanor model register NAME JOB")


@app.command("show")
@reports_errors
def show(model: ModelName, team: TeamName = None, as_json: AsJson = False) -> None:
    """Show a model: its versions, aliases and card."""
    client = connect()
    found = find_model(client, model, team)
    versions = list(client.pages(f"/models/{found['id']}/versions"))
    if as_json:
        print_json({**found, "versions": versions})
        return
    console.print(f"{escape(found['name'])} of team {escape(found['team']['name'])}  {found['id']}")
    if found.get("is_shared"):
        console.print(f"shared for reading, as [bold]model:{escape(_name(found))}@ALIAS[/bold]", soft_wrap=True)
    elif grants := list(client.pages(f"/models/{found['id']}/grants")):
        console.print(f"shared with: {escape(', '.join(grant['team']['name'] for grant in grants))}", soft_wrap=True)
    if found["tags"]:
        console.print(f"tags: {escape(', '.join(found['tags']))}")
    table = columns("version", "aliases", "job", "attempt", "step", "size", "registered", "by", "artifact")
    for row in versions:
        table.add_row(
            str(row["number"]), escape(", ".join(row["aliases"])),
            escape(row["job"]["name"]) if row["job"] else "imported",
            "" if row["attempt"] is None else str(row["attempt"]),
            str(row["step"]) if row["job"] else "", size(row["size_bytes"]), moment(row["created_at"]),
            escape(row["created_by"] or ""), row["artifact"],
        )  # fmt: skip
    console.print(table if versions else "No versions.")
    if any(row["evaluations"] for row in versions):
        console.print(f"Its evaluations: athanor model evaluations {escape(found['name'])}")
    if found["card"]:
        print(f"\n{plain(found['card'])}")


@app.command("register")
@reports_errors
def register(
    name: Annotated[str, typer.Argument(help="Name of the model. It is created if the team has none of this name.")],
    reference: Annotated[str, typer.Argument(help="A job (its newest model) or an artifact, art_...", metavar="JOB")],
    alias: Annotated[str | None, typer.Option(help="Alias to point to the version, such as candidate.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Submit a job that exports this stored checkpoint of JOB, by its step or newest, and registers it.",
            metavar="STEP|newest",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --checkpoint: show progress until the job ends, and the version.")
    ] = False,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Register the export of a job, or a stored checkpoint of it, as the next version of a model.

    Safe to repeat without --checkpoint, which submits a job that exports the checkpoint first.
    """
    if wait and checkpoint is None:
        raise CliError(ExitCode.USAGE, "--wait belongs to --checkpoint: an export is registered immediately")
    client = connect()
    if checkpoint is not None:
        register_checkpoint(client, name, reference, checkpoint, alias, team, wait=wait, as_json=as_json)
        return
    body = {"artifact": reference} if reference.startswith("art_") else {"job": find_job(client, reference)}
    if alias is not None:
        body["alias"] = alias
    found = _named(client, name, team)
    if found is None:
        found = client.post("/models", {"name": name, **({"team": team} if team else {}), **body})
        made = client.get(f"/models/{found['id']}/versions/1")
    else:
        made = client.post(f"/models/{found['id']}/versions", body)
    if as_json:
        print_json(made)
        return
    named = f", {escape(', '.join(made['aliases']))}" if made["aliases"] else ""
    origin = f"the model of {escape(made['job']['name'])}" if made["job"] else "imported"
    console.print(f"{escape(name)}@{made['number']}{named}: {origin}")


@app.command("alias")
@reports_errors
def set_alias(
    model: ModelName,
    alias: Annotated[str, typer.Argument(help="Name of the alias, such as production.")],
    version: Annotated[int | None, typer.Argument(min=1, help="Number of the version.", metavar="[VERSION]")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias. The version stays.")] = False,
    team: TeamName = None,
    as_json: AsJson = False,
) -> None:
    """Point an alias to a version of a model, or remove it."""
    if remove == (version is not None):
        raise CliError(ExitCode.USAGE, "give the number of a version, or --remove")
    client = connect()
    found = find_model(client, model, team)
    path = f"/models/{found['id']}/aliases/{alias}"
    if remove:
        client.delete(path)
        if not as_json:
            console.print(f"{escape(found['name'])}@{escape(alias)} is removed")
        return
    made = client.put(path, {"version": version})
    if as_json:
        print_json(made)
    else:
        console.print(f"{escape(found['name'])}@{escape(alias)} is version {made['version']}")


@app.command("share")
@reports_errors
def share(
    model: ModelName,
    with_team: Annotated[str, typer.Argument(help="Name of the other team.", metavar="TEAM")],
    remove: Annotated[bool, typer.Option("--remove", help="Stop sharing it with the team.")] = False,
    team: TeamName = None,
    as_json: AsJson = False,
) -> None:
    """Let another team read a model: see, download and start from all versions, also later ones.

    For administrators of the team that owns it.
    """
    client = connect()
    found = find_model(client, model, team)
    path = f"/models/{found['id']}/grants/{with_team}"
    if remove:
        client.delete(path)
        if not as_json:
            console.print(f"{escape(found['name'])} is no longer shared with {escape(with_team)}")
        return
    made = client.put(path, {})
    if as_json:
        print_json(made)
    else:
        reference = f"model:{found['team']['name']}/{found['name']}@ALIAS"
        console.print(f"{escape(made['team']['name'])} can read it as {escape(reference)}", soft_wrap=True)


@app.command("promote")
@reports_errors
def promote(
    reference: Annotated[str, typer.Argument(help="NAME@ALIAS or NAME@NUMBER.", metavar="VERSION")],
    to: Annotated[str, typer.Option("--to", help="Alias to point to the version, such as production.")],
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="What its newest results must meet: METRIC or EVALUATION.METRIC, then >=, <=, > or <, and a number, "
            "such as 'accuracy>=0.8'. Repeatable."
        ),
    ] = None,
    team: TeamName = None,
    as_json: AsJson = False,
) -> None:
    """Point an alias to a version if its stored evaluations meet all requirements; else change nothing."""
    client = connect()
    version = find_version(client, reference, team)
    name, warned = version["model"]["name"], [row for row in version["evaluations"] if row["trained_on"]]
    body = {"version": version["number"], "require": require or []}
    made = client.put(f"/models/{version['model']['id']}/aliases/{to}", body)
    if as_json:
        print_json(made)
        return
    console.print(f"{escape(name)}@{escape(to)} is version {made['version']}")
    _show_warnings(warned)


@app.command("evaluations")
@reports_errors
def show_evaluations(
    model: ModelName,
    against: Annotated[
        str | None,
        typer.Option(help="Alias or number of the version to compare with. Default: production, if there is one."),
    ] = None,
    team: TeamName = None,
    as_json: AsJson = False,
) -> None:
    """Compare the evaluations of the versions of a model, with 95 % confidence intervals."""
    client = connect()
    found = find_model(client, model, team)
    compared = client.get(f"/models/{found['id']}/evaluations", against=against)
    if as_json:
        print_json(compared)
        return
    if not compared["items"]:
        console.print(f"No evaluations. Run a job with `evaluation.model: model:{escape(_name(found))}@ALIAS`.")
        return
    difference = "difference" if compared["against"] is None else f"difference to {compared['against']}"
    table = columns("evaluation", "metric", "version", "aliases", "value", "95 % interval", "n", difference, "job")
    for row in compared["items"]:
        result = row["result"]
        table.add_row(
            escape(result["evaluation"]), result["metric"], str(row["version"]), escape(", ".join(row["aliases"])),
            f"{result['value']:.4g}", _interval(result), str(result["n"]), _difference(row["difference"]),
            escape(result["job"]["name"]),
        )  # fmt: skip
    console.print(table)
    _show_warnings(
        [{**row["result"], "version": row["version"]} for row in compared["items"] if row["result"]["trained_on"]]
    )


@app.command("describe")
@reports_errors
def describe(
    model: ModelName,
    card: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File with the model card, in Markdown.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag; replaces the tags there are. Repeatable.")] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    team: TeamName = None,
    as_json: AsJson = False,
) -> None:
    """Replace the card or the tags of a model."""
    if tag and no_tags:
        raise CliError(ExitCode.USAGE, "give either --tag or --no-tags")
    changes: dict[str, Any] = {}
    if card is not None:
        try:
            changes["card"] = card.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CliError(ExitCode.USAGE, f"{card} is not text in UTF-8: {error}") from error
    if tag or no_tags:
        changes["tags"] = tag or []
    if not changes:
        raise CliError(ExitCode.USAGE, "nothing to change: give --card, --tag or --no-tags")
    client = connect()
    changed = client.patch(f"/models/{find_model(client, model, team)['id']}", changes)
    if as_json:
        print_json(changed)
    else:
        console.print(f"{escape(changed['name'])}: changed {' and '.join(changes)}")


@app.command("delete")
@reports_errors
def delete(
    model: ModelName,
    version: Annotated[
        int | None, typer.Argument(min=1, help="Only this version. Default: the model.", metavar="[VERSION]")
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what it would remove.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    team: TeamName = None,
    as_json: AsJson = False,
) -> None:
    """Delete a model with its versions, or one version. The files stay with their jobs; `athanor delete` removes them.

    Refused while an alias names it or an unfinished job starts from it.
    """
    client = connect()
    found = find_model(client, model, team)
    path = f"/models/{found['id']}" + ("" if version is None else f"/versions/{version}")
    name = found["name"] if version is None else f"{found['name']}@{version}"
    depends = client.get(f"{path}/deletion")
    if preview and as_json:
        print_json(depends)
        return
    if not as_json:
        _show_preview(depends)
    if preview:
        return
    if not yes and not as_json:
        typer.confirm(f"This cannot be undone. Delete {name}?", abort=True)
    client.delete(path)
    if as_json:
        print_json(depends)
    else:
        console.print(f"{escape(name)} is deleted", soft_wrap=True)


def find_model(client: Client, text: str, team: str | None = None) -> Any:
    """Return the registered model with this name or id, or, of `OWNER/NAME`, that of team OWNER. Raises CliError for
    none or several. Shared models are found by their owner or id alone, so that a name means what it did before."""
    owner, _, name = text.rpartition("/")
    is_id = text.startswith("mdl_")
    rows = client.pages("/models", team=owner or team, name=None if is_id else name)
    is_any = is_id or owner or team
    return find_row((row for row in rows if is_any or not row.get("is_shared")), name, ["name"], "model", LISTING)


def find_version(client: Client, reference: str, team: str | None = None) -> Any:
    """Return the version of `NAME@ALIAS` or `NAME@NUMBER`. Raises CliError naming what the model has."""
    name, _, which = reference.partition("@")
    model = find_model(client, name, team)
    if which.isdecimal():
        return client.get(f"/models/{model['id']}/versions/{which}")
    found = [alias for alias in model["aliases"] if alias["name"] == which]
    if not found:
        known = ", ".join(alias["name"] for alias in model["aliases"]) or "none"
        raise CliError(
            ExitCode.NOT_FOUND,
            f"model {name!r} has no alias {which!r} (its aliases: {known}); `athanor model show {name}` lists versions",
        )
    return client.get(f"/models/{model['id']}/versions/{found[0]['version']}")


def _named(client: Client, name: str, team: str | None) -> Any:
    """Return the model of this name in the team, None if there is none. Raises CliError for several."""
    rows = [row for row in client.pages("/models", name=name) if not row.get("is_shared")]
    found = [row for row in rows if team in (None, row["team"]["name"], row["team"]["id"])]
    return find_row(found, name, ["name"], "model", LISTING) if found else None


def _name(row: dict[str, Any]) -> str:
    """Return what a spec names a model by: of a shared one, with the team that owns it."""
    return f"{row['team']['name']}/{row['name']}" if row.get("is_shared") else str(row["name"])


def _aliases(row: dict[str, Any]) -> str:
    return ", ".join(f"{alias['name']}={alias['version']}" for alias in row["aliases"])


def _interval(result: dict[str, Any]) -> str:
    return "" if result["low"] is None else f"{result['low']:.4g} to {result['high']:.4g}"


def _difference(found: dict[str, Any] | None) -> str:
    """Return a difference with what it means, such as `+0.1, better`; empty if there is none to show."""
    if found is None:
        return ""
    if not found["is_significant"]:
        verdict = "not significant" if found["is_significant"] is False else "significance unknown"
    else:
        verdict = "better" if found["is_better"] else "worse"
    p_value = "" if found.get("p_value") is None else f" (p {found['p_value']:.2g})"
    return f"{found['value']:+.4g}, {verdict}{p_value}"


def _show_warnings(results: list[dict[str, Any]]) -> None:
    """Show which results are on data that the model was trained on."""
    for row in results:
        version = f" of version {row['version']}" if "version" in row else ""
        jobs = ", ".join(row["trained_on"])
        console.print(
            f"warning: {row['evaluation']}.{row['metric']}{version} is on {row['data_source']}, which the model was "
            f"trained on ({jobs}): it says little about other data",
            soft_wrap=True, markup=False,
        )  # fmt: skip


def _show_preview(found: dict[str, Any]) -> None:
    for row in found["versions"]:
        console.print(
            f"{found['model']['name']}@{row['number']}: {row['artifact']} of {row['job']['name']}, which stays",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    for alias in found["aliases"]:
        console.print(f"  named by alias {alias['name']}: remove it first", soft_wrap=True, markup=False)
    for job in found["blocked_by"]:
        text = f"  base model of {job['name']} ({job['id']}, {job['status']}): it cannot be deleted yet"
        console.print(text, soft_wrap=True, markup=False)
    for grant in found["grants"]:
        text = f"  shared with team {grant['team']['name']}, which loses it, also for its jobs"
        console.print(text, soft_wrap=True, markup=False)
    for job in found["used_by"]:
        text = f"  base model of {job['name']} ({job['id']}, {job['status']}), the record of which stays"
        console.print(text, soft_wrap=True, markup=False)
