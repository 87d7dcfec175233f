"""`athanor model document`: technical documentation of a version, its bill of materials, or its signed provenance."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.plain import plain
from athanor.cli.registry import find_version
from athanor.cli.render import note

PREFIX = "model:"


@reports_errors
def document(
    reference: Annotated[str, typer.Argument(help="NAME@ALIAS or NAME@NUMBER.", metavar="VERSION")],
    bom: Annotated[
        bool, typer.Option("--bom", help="Write the bill of materials instead: CycloneDX 1.6, in JSON.")
    ] = False,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance", help="Write how it was made instead: a SLSA provenance, signed by the key of the team."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write to. Default: standard output.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the technical documentation of a version, as Annex XI of the EU AI Act demands it, in Markdown.

    What the platform has on record is filled in. Sections of the model's card are the rest; standard error names those
    that the card lacks.
    """
    if bom and provenance:
        raise CliError(ExitCode.USAGE, "--bom and --provenance are two documents: give one of them at a time")
    client = connect()
    version = find_version(client, reference.removeprefix(PREFIX))
    path = f"/models/{version['model']['id']}/versions/{version['number']}"
    if provenance:
        found = client.post(f"{path}/provenance")
    else:
        found = client.get(f"{path}/bom" if bom else f"{path}/documentation")
    is_json = bom or provenance or as_json
    text = json.dumps(found, indent=2) if is_json else plain("\n".join(as_markdown(found)))
    if out is None:
        print(text)
    else:
        try:
            out.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise CliError(ExitCode.USAGE, f"{out} cannot be written: {error.strerror}") from error
    missing = [] if is_json else [item["heading"] for item in found["items"] if item["missing"]]
    if missing:
        headings = ", ".join(missing)
        note(f"left to be written, as sections of the model's card with these headings: {headings}")


def as_markdown(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the documentation."""
    yield f"# Technical documentation of {found['model']}@{found['version']}"
    yield ""
    yield f"{found['regulation']}. SHA-256 of the version's manifest: `{found['digest']}`."
    for limit in found["limits"]:
        yield f"\n**Not on record**: {limit}"
    for item in found["items"]:
        yield f"\n## {item['number']} {item['title']}"
        if item["statement"]:
            yield f"\n{item['statement']}"
        elif item["missing"]:
            yield f'\n*To be written: section "{item["heading"]}" of the model\'s card.*'
        if item["facts"]:
            yield "\n| fact | value | of | record |\n|---|---|---|---|"
        for fact in item["facts"]:
            value = "not known" if fact["value"] is None else _cell(fact["value"])
            yield f"| {_cell(fact['name'])} | {value} | {_cell(fact['of'])} | `/api/v1{fact['record']}` |"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
