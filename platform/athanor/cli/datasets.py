"""`athanor dataset`: add, prepare, report on, show, list, and name versions."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import find_dataset, find_versions
from athanor.cli.options import AsJson, connect
from athanor.cli.plain import plain
from athanor.cli.render import columns, console, print_json, size
from athanor.cli.tar_stream import TarStream
from athanor.cli.times import moment
from athanor.cli.watching import exit_code, watch
from trainer.contract.data_report import DataReport, format_report

app = typer.Typer(rich_markup_mode=None)
FORMATS = {"auto", "text", "jsonl", "chat", "preference", "unpaired", "parquet"}
# Formats that are not tokenised by default, with the reason.
NOT_PREPARED = {
    "chat": "It is tokenised by the first job that trains on it, with the chat template of its model.",
    "preference": "training.preference trains on pairs; to train on one field, set format to jsonl, and text_field.",
    "unpaired": "training.preference with loss kto trains on the labels; to train on one field, set format to jsonl.",
}
PREFERENCE_DATA = {"packing": "documents", "long_documents": "drop"}
"""How `training.preference` reads its data."""
MAX_LISTED_FILES = 10
STATES = {"none": "not yet", "running": "running", "ready": "ready", "failed": "failed"}
TeamOption = Annotated[str | None, typer.Option("--team", help="Required if you are in several teams.")]
Reference = Annotated[
    str, typer.Argument(help="NAME of a data set (its newest version), NAME@NUMBER or NAME@ALIAS.", metavar="NAME")
]
TextField = Annotated[
    str | None, typer.Option("--text-field", help="Field or column with the text. Default: the detected one.")
]
VocabSize = Annotated[int, typer.Option("--tokenizer", help="Vocabulary size of the tokenizer trained on it.")]
ValidationFraction = Annotated[
    float, typer.Option("--validation-fraction", help="Share of documents held out for validation.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")]


@app.command("add")
@reports_errors
def add(
    name: Annotated[str, typer.Argument(help="Name used in specs: dataset:NAME.")],
    paths: Annotated[
        list[Path], typer.Argument(help="UTF-8 text, JSON lines or parquet; several files make one data set.")
    ],
    team: TeamOption = None,
    form: Annotated[
        str, typer.Option("--format", help="auto (detected), text, jsonl, chat, preference, unpaired, parquet.")
    ] = "auto",
    text_field: TextField = None,
    vocab_size: VocabSize = 2048,
    validation_fraction: ValidationFraction = 0.02,
    prepare: Annotated[
        bool | None,
        typer.Option(
            help="Tokenise it now with a job of its own, or by the first job that needs it. Default: now, except "
            "conversations."
        ),
    ] = None,
    new_version: Annotated[
        bool, typer.Option("--new-version", help="Add the next version to the data set of this name.")
    ] = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Upload a data set and submit the job that tokenises it; train on it with training.data.source=dataset:NAME.

    Without --new-version a name that the team has used already is refused.
    """
    if form not in FORMATS:
        raise CliError(ExitCode.USAGE, f"--format {form!r}: choose one of {', '.join(sorted(FORMATS))}")
    for path in paths:
        if not path.is_file():
            raise CliError(ExitCode.USAGE, f"{path} is no file")
    client = connect()
    archive = TarStream(paths)
    made = client.post(
        "/datasets",
        content=archive,
        params={
            "name": name,
            "format": form,
            **_given(team=team, text_field=text_field, new_version="true" if new_version else None),
        },
        headers=archive.headers,
    )
    if not as_json:
        console.print(f"data set {_label(made)}: {_content(made)}; use it as dataset:{made['name']}")
    made["job"] = None
    if prepare is None:
        prepare = made["format"] not in NOT_PREPARED
        if not prepare and not as_json:
            console.print(NOT_PREPARED[made["format"]])
    if prepare:
        task = _task(_label(made), text_field, validation_fraction, vocab_size)
        made["job"] = _prepare(client, _label(made), team, task, wait=wait, as_json=as_json)
    if as_json:
        print_json(made, one_line=wait)
    if prepare and wait:
        raise typer.Exit(exit_code(made["job"]))


@app.command("prepare")
@reports_errors
def prepare(
    name: Reference,
    again: Annotated[
        bool, typer.Option("--again", "--anew", help="Discard earlier results (--anew: deprecated name).")
    ] = False,
    team: TeamOption = None,
    text_field: TextField = None,
    vocab_size: VocabSize = 2048,
    validation_fraction: ValidationFraction = 0.02,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Submit the job that tokenises a data set; --again replaces an earlier result, such as a damaged one."""
    client = connect()
    if again:
        found = find_dataset(client, name, team)
        team = team or found["team"]["name"]
        client.delete(f"/datasets/{found['id']}/preparations")
    job = _prepare(
        client, name, team, _task(name, text_field, validation_fraction, vocab_size), wait=wait, as_json=as_json
    )
    if as_json:
        print_json(job, one_line=wait)
    if wait:
        raise typer.Exit(exit_code(job))


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _label(dataset: Any) -> str:
    """Return the name of a data set, of a version after the first with its number."""
    return _exact(dataset) if dataset["version"] > 1 else str(dataset["name"])


def _exact(dataset: Any) -> str:
    """Return the name of a version with its number."""
    return f"{dataset['name']}@{dataset['version']}"


def _in_job_name(reference: str) -> str:
    """Return a reference of a data set without what a name of a job cannot contain."""
    return reference.replace("@", "-")


def _content(dataset: Any) -> str:
    """Return the size and format of a data set, and the field that is trained on."""
    field = f" in {dataset['text_field']!r}" if dataset["text_field"] else ""
    form = "several formats" if dataset["format"] == "auto" else dataset["format"]
    return f"{size(dataset['size_bytes'])}, {form}{field}"


def _task(name: str, text_field: str | None, validation_fraction: float, vocab_size: int) -> dict[str, Any]:
    data = {
        "source": f"dataset:{name}",
        "validation_fraction": validation_fraction,
        **_given(text_field=text_field),
    }
    return {"data": data, "tokenizer": {"vocab_size": vocab_size}}


def _prepare(client: Client, name: str, team: str | None, task: dict[str, Any], *, wait: bool, as_json: bool) -> Any:
    """Return the job that tokenises a data set; with `wait`, after it has ended."""
    return _submit(client, f"prepare-{_in_job_name(name)}", team, task, "tokenises it", wait=wait, as_json=as_json)


def _submit(
    client: Client, job_name: str, team: str | None, task: dict[str, Any], what: str, *, wait: bool, as_json: bool
) -> Any:
    spec = {"version": 1, "name": job_name[:100], "prepare": task, **({"team": team} if team else {})}
    job = client.post("/jobs", spec)
    if not as_json:
        console.print(f"{job['id']} {what}  {client.url}/jobs/{job['id']}", soft_wrap=True)
    return watch(client, job["id"], as_json=as_json) if wait else job


@app.command("list")
@reports_errors
def list_datasets(team: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False) -> None:
    """List the data sets of your teams, with the newest version of each."""
    found = list(connect().pages("/datasets", team=team))
    if as_json:
        print_json(found)
        return
    table = columns("name", "version", "team", "format", "size", "tokenised")
    for each in found:
        is_upload = each["origin"] == "sealed"
        content = (each["format"], size(each["size_bytes"])) if is_upload else (each["origin"], "-")
        version = str(each["version"]) if is_upload else "-"
        table.add_row(
            escape(each["name"]), version, escape(each["team"]["name"]), *content, STATES[each["preparation"]["state"]]
        )
    console.print(table)


@app.command("versions")
@reports_errors
def list_versions(
    name: Annotated[str, typer.Argument(help="Name of an uploaded data set.")],
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """List the versions of a data set, newest first."""
    found = find_versions(connect(), name, team)
    if as_json:
        print_json(found)
        return
    table = columns("version", "aliases", "format", "rows", "size", "tokenised", "uploaded", "id")
    for each in found:
        rows = "-" if each["documents"] is None else str(each["documents"])
        table.add_row(
            str(each["version"]), escape(", ".join(each["aliases"])), each["format"], rows, size(each["size_bytes"]),
            STATES[each["preparation"]["state"]], moment(each["created_at"]), each["id"],
        )  # fmt: skip
    console.print(table)


@app.command("alias")
@reports_errors
def set_alias(
    name: Annotated[str, typer.Argument(help="Name of an uploaded data set.")],
    alias: Annotated[str, typer.Argument(help="Name of the alias, such as reviewed.")],
    version: Annotated[int | None, typer.Argument(min=1, help="Number of the version.", metavar="[VERSION]")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias. The version stays.")] = False,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Point an alias to a version of a data set, or remove it. Specs name the version by it: dataset:NAME@ALIAS."""
    if remove == (version is not None):
        raise CliError(ExitCode.USAGE, "give the number of a version, or --remove")
    client = connect()
    found = find_dataset(client, f"{name}@{alias if remove else version}", team)
    path = f"/datasets/{found['id']}/aliases/{alias}"
    if remove:
        client.delete(path)
        if not as_json:
            console.print(f"{escape(name)}@{escape(alias)} is removed")
        return
    made = client.put(path, None)
    if as_json:
        print_json(made)
    else:
        console.print(f"{escape(name)}@{escape(alias)} is version {made['version']}")


@app.command("diff")
@reports_errors
def diff(
    before: Annotated[str, typer.Argument(help="A version, as NAME@NUMBER or NAME@ALIAS.")],
    after: Annotated[str, typer.Argument(help="The version to compare it with, such as NAME (the newest).")],
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions of a data set: their files, and their rows if they are not large."""
    client = connect()
    first, second = (find_dataset(client, reference, team) for reference in (before, after))
    found = client.get(f"/datasets/{second['id']}/diff", **{"from": first["id"]})
    if as_json:
        print_json(found)
        return
    sides = [found["before"], found["after"]]
    names, sizes = ([text(side) for side in sides] for text in (_exact, lambda side: size(side["size_bytes"])))
    documents = ["unknown" if side["documents"] is None else str(side["documents"]) for side in sides]
    console.print(escape(f"{names[0]} -> {names[1]}"), soft_wrap=True)
    console.print(f"size       {sizes[0]} -> {sizes[1]}")
    console.print(f"documents  {documents[0]} -> {documents[1]}")
    for state in ("added", "removed", "changed", "same", "unknown"):
        if found[state]:
            what = "not compared" if state == "unknown" else state
            listed = ", ".join(found[state][:MAX_LISTED_FILES]) + (
                ", ..." if len(found[state]) > MAX_LISTED_FILES else ""
            )
            console.print(escape(f"files      {len(found[state])} {what}: {plain(listed)}"), soft_wrap=True)
    if found["rows"]:
        rows = found["rows"]
        console.print(f"rows       {rows['added']} added, {rows['removed']} removed, {rows['common']} common")
    if found["note"]:
        console.print(escape(found["note"]), soft_wrap=True)


@app.command("show")
@reports_errors
def show(
    name: Reference,
    team: TeamOption = None,
    rows: Annotated[int, typer.Option(min=1, max=100, help="Number of rows to print.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show a data set: its first rows, its tokenised forms, and the jobs that read it."""
    client = connect()
    path = f"/datasets/{find_dataset(client, name, team)['id']}"
    found = client.get(path)
    found["preview"] = client.get(f"{path}/preview", rows=rows) if found["origin"] == "sealed" else None
    found["jobs"] = client.get("/jobs", dataset=found["id"], limit=20)["items"]
    if as_json:
        print_json(found)
        return
    console.print(escape(f"{found['spec_source']}: {_content(found)}, {len(found['files'])} files"))
    if found["aliases"]:
        console.print(escape(f"aliases    {', '.join(found['aliases'])}"), soft_wrap=True)
    console.print(escape(f"digest     {found['digest']}"), soft_wrap=True)
    preparation = found["preparation"]
    console.print(f"tokenised  {STATES[preparation['state']]}")
    if preparation["state"] == "failed":
        reason = preparation["job"]["reason"] or {"message": "", "remedy": ""}
        console.print(escape(f"  {preparation['job']['id']}: {reason['message']} {reason['remedy']}"), soft_wrap=True)
    for form in found["tokenised_forms"]:
        console.print(
            f"  {form['train_tokens']} + {form['validation_tokens']} tokens, vocabulary {form['vocab_size']}, "
            f"{size(form['size_bytes'])}, by {form['job_id']}"
        )
    for job in found["jobs"]:
        console.print(escape(f"read by    {job['id']}  {job['status']:<10} {job['name']}"), soft_wrap=True)
    if found["preview"]:
        _print_preview(found["preview"])


@app.command("report")
@reports_errors
def report(
    name: Reference,
    make: Annotated[
        bool, typer.Option("--make", help="Submit a job that makes a report, instead of showing the newest.")
    ] = False,
    sequence_length: Annotated[
        int, typer.Option(min=8, max=1_048_576, help="With --make: length of a training sequence, in tokens.")
    ] = 1024,
    base: Annotated[
        str | None,
        typer.Option("--base", help="With --make: model to train on the data; its tokenizer is used."),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option("--evaluation", help="With --make: a data set that the data must not contain. Can be repeated."),
    ] = None,
    team: TeamOption = None,
    text_field: TextField = None,
    vocab_size: VocabSize = 2048,
    validation_fraction: ValidationFraction = 0.02,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Show the newest data report of a data set: what a model would see of it, and what is wrong with it."""
    client = connect()
    dataset = find_dataset(client, name, team)
    if not make:
        found = client.get(f"/datasets/{dataset['id']}/report")
        if as_json:
            print_json(found)
            return
        console.print(f"made by {found['job_id']}, {moment(found['created_at'])}")
        for line in format_report(DataReport.model_validate(found["report"])):
            console.print(escape(line), soft_wrap=True, highlight=False)
        return
    task = _task(name, text_field, validation_fraction, vocab_size)
    if dataset["format"] in ("preference", "unpaired"):
        task["data"] |= {"format": dataset["format"], **PREFERENCE_DATA}
    task["report"] = {"sequence_length": sequence_length, **_given(base=base)}
    if evaluation:
        task["report"]["evaluation"] = [each if ":" in each else f"dataset:{each}" for each in evaluation]
    if base is not None:
        del task["tokenizer"]
    job = _submit(client, f"report-{_in_job_name(name)}", team, task, "reports on it", wait=wait, as_json=as_json)
    if as_json:
        print_json(job, one_line=wait)
    if wait:
        raise typer.Exit(exit_code(job))


def _print_preview(preview: Any) -> None:
    for text in (preview["note"], "first rows" if preview["rows"] else ""):
        if text:
            console.print(escape(text), soft_wrap=True)
    for row in preview["rows"]:
        text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
        console.print(escape(f"  {plain(text)}"), soft_wrap=True)
