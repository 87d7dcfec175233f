"""dataset add and list."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.render import console, print_json, size

app = typer.Typer(rich_markup_mode=None)
FORMATS = {"auto", "text", "jsonl"}


@app.command("add")
@reports_errors
def add(
    file: Annotated[Path, typer.Argument(help="UTF-8 text, or JSON lines with a text field.")],
    name: Annotated[str | None, typer.Option(help="Default: the file's name.")] = None,
    team: Annotated[str | None, typer.Option(help="Needed with several teams.")] = None,
    form: Annotated[str, typer.Option("--format", help="auto, text or jsonl.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Upload a data set; train on it with training.data.source=dataset:NAME."""
    if form not in FORMATS:
        raise CliError(ExitCode.USAGE, f"--format {form!r}: choose one of {', '.join(sorted(FORMATS))}")
    if not file.is_file():
        raise CliError(ExitCode.USAGE, f"{file} is no file")
    is_jsonl = form == "jsonl" or (form == "auto" and file.suffix in (".jsonl", ".ndjson"))
    params = {"name": name or file.stem, "format": form, **({"team": team} if team else {})}
    made = connect().post(
        "/datasets",
        content=_Blocks(file),
        params=params,
        headers={
            "Content-Type": "application/jsonl" if is_jsonl else "text/plain; charset=utf-8",
            "Content-Length": str(file.stat().st_size),
        },
    )
    if as_json:
        print_json(made)
    else:
        console.print(f"data set {made['name']}: {size(made['size_bytes'])}; use it as dataset:{made['name']}")


@app.command("list")
@reports_errors
def list_datasets(team: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False) -> None:
    """List the data sets of your teams."""
    found = list(connect().pages("/datasets", team=team))
    if as_json:
        print_json(found)
        return
    for dataset in found:
        state = dataset.get("status") or dataset.get("origin", "")
        console.print(f"{dataset['name']:<30} {state:<10} {size(dataset['size_bytes'])}")


class _Blocks:
    """A file as blocks of 1 MiB, from its beginning each time it is sent: a retry must not send half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as handle:
            while block := handle.read(1024 * 1024):
                yield block
