"""`athanor model import`: a folder in Hugging Face's layout as a version of a registered model."""

import stat
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamOption
from athanor.cli.options import AsJson, connect
from athanor.cli.render import console, note, print_json, size
from athanor.cli.tar_stream import TarStream
from trainer.contract.model_folder import (
    HEADER_LENGTH,
    READ_WHOLE,
    WEIGHTS,
    FolderFacts,
    check_folder,
    check_name,
    header_size,
    read_header,
)


@reports_errors
def import_folder(
    name: Annotated[str, typer.Argument(help="Name of the model. It is created if the team has none of this name.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder in Hugging Face's layout, with config.json and safetensors.", metavar="DIR")
    ],
    alias: Annotated[str | None, typer.Option(help="Alias to point to the version, such as candidate.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag to add to the model. Repeatable.")] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Upload a folder in Hugging Face's layout as the next version of a model.

    It is checked before anything is sent. Files and folders that begin with a dot are left out.
    """
    paths = _files(folder)
    try:
        facts = _check(paths)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{folder} is not imported: {error}") from error
    archive = TarStream(paths)
    if not as_json:
        console.print(f"{len(paths)} files, {size(archive.size)}, {facts.num_parameters:,} parameters: uploading")
    made = connect().post(
        "/models:import",
        content=archive,
        params={
            "name": name,
            **({"team": team} if team else {}),
            **({"alias": alias} if alias is not None else {}),
            **({"tag": tag} if tag else {}),
        },
        headers=archive.headers,
    )
    if as_json:
        print_json(made)
        return
    named = f", {escape(', '.join(made['aliases']))}" if made["aliases"] else ""
    console.print(f"{escape(name)}@{made['number']}{named}: imported, {made['artifact']}", soft_wrap=True)
    if made["not_trainable"]:
        note(f"No job can start from it: {made['not_trainable']}")


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, by name. Raise CliError for a link, a subfolder or no folder."""
    if not folder.is_dir():
        raise CliError(ExitCode.USAGE, f"{folder} is no folder")
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in found:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            remedy = f"copy the folder with what its links name: cp -rL {folder} COPY, and import the copy"
            raise CliError(ExitCode.USAGE, f"{path} is a symbolic link to {path.readlink()}; {remedy}")
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
            raise CliError(ExitCode.USAGE, f"{path} is {kind}; import a folder with the files of the model alone")
    return found


def _check(paths: list[Path]) -> FolderFacts:
    """Return what a folder is. Raise ValueError, with the remedy, for what is no complete model."""
    headers, texts = {}, {}
    for path in paths:
        check_name(path.name)
        if path.name.endswith(WEIGHTS):
            with path.open("rb") as file:
                first = file.read(HEADER_LENGTH)
                content = first + file.read(header_size(path.name, first))
            headers[path.name] = read_header(path.name, content, path.stat().st_size)
        elif path.name in READ_WHOLE:
            texts[path.name] = path.read_bytes()
    return check_folder([path.name for path in paths], headers, texts)
