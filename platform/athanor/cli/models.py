"""`athanor download` and `athanor generate`."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from athanor.cli.downloading import CHECKPOINT, Download, choose_artifact, choose_checkpoint, kind_of
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.plain import plain
from athanor.cli.render import console, print_json, size
from athanor.cli.schema_gen import Artifact, Checkpoint
from athanor.cli.signatures import KeyFile
from trainer.contract.model_signature import SignedModel

Reference = Annotated[
    str,
    typer.Argument(
        help="A job (its model), an artifact (art_...), or a registered version: model:NAME@ALIAS, "
        "model:NAME@NUMBER or, of a model that another team shares, model:OWNER/NAME@ALIAS.",
        metavar="JOB",
    ),
]


@reports_errors
def download(
    reference: Reference,
    folder: Annotated[
        Path | None, typer.Argument(help="A new folder. Default: by the name of what is downloaded.", metavar="[DIR]")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The same as DIR.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A checkpoint of the job instead of its model.", metavar="STEP|latest")
    ] = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Download, verify and decrypt a model or a checkpoint. Run it again to resume after an interruption.

    The signature of a model is verified and written to `model.sig` in the folder.
    """
    if folder is not None and output is not None:
        raise CliError(ExitCode.USAGE, f"two folders are given, {folder} and --output {output}: leave one out")
    client = connect()
    stored: Artifact | Checkpoint
    if checkpoint is None:
        stored = choose_artifact(client, reference)
    else:
        stored = choose_checkpoint(client, reference, checkpoint)
    kind = kind_of(stored)
    if key is not None and kind != "model":
        raise CliError(ExitCode.USAGE, f"--key is for models, which are signed; {stored['id']} is a {kind}")
    folder = folder or output or Path(_folder_name(stored))
    work = Download(client, stored, folder, key)
    started = time.monotonic()
    fresh = not work.is_complete()
    if fresh:
        columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, disable=as_json or not console.is_terminal) as progress:
            task = progress.add_task("", total=stored["size_bytes"])
            signed = work.run(lambda count: progress.advance(task, count))
    else:
        signed = _verify_again(work, folder)
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                CHECKPOINT if kind == CHECKPOINT else "artifact": stored["id"],
                "folder": str(folder),
                "size_bytes": stored["size_bytes"],
                "files": [{"path": file["path"], "size": file["size"]} for file in stored["files"]],
                "seconds": round(seconds, 3),
                "already_there": not fresh,
                "signed_by": None if signed is None else signed.fingerprint,
            }
        )
        return
    if fresh:
        console.print(f"{folder}: {size(stored['size_bytes'])} in {seconds:.1f} s, checked and decrypted")
    else:
        console.print(f"{folder} holds this {kind} already")
    if signed is not None:
        console.print(f"its files are as signed by the key {signed.fingerprint}", soft_wrap=True)
    elif kind == "model":
        console.print("not signed: it was exported before models were signed", soft_wrap=True)


def _verify_again(work: Download, folder: Path) -> SignedModel | None:
    """Return what is signed in a folder that was downloaded before. Raise CliError with the remedy if it is refused."""
    try:
        return work.verify(folder)
    except CliError as error:
        remedy = f"download it again into another folder with --output, or remove {folder} first"
        raise CliError(error.exit_code, str(error), [*error.details, remedy]) from error


@reports_errors
def sign(
    reference: Reference,
) -> None:
    """Print a new signature of a model, the content of `model.sig`, for a folder that was downloaded before."""
    client = connect()
    print_json(client.post(f"/artifacts/{choose_artifact(client, reference)['id']}:sign"))


def _folder_name(stored: Artifact | Checkpoint) -> str:
    name = stored.get("name", f"{CHECKPOINT}-{stored['step']}")
    return re.sub(r"[^\w.-]+", "-", f"{name}-{stored['id'][-6:].lower()}")


@reports_errors
def generate(
    folder: Annotated[Path, typer.Argument(help="A downloaded model.")],
    prompt: Annotated[str, typer.Option(help="Prompt.")] = "def ",
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to generate.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.8,
    seed: Annotated[int, typer.Option()] = 1,
    as_json: AsJson = False,
) -> None:
    """Sample text from a downloaded model on this machine. Needs torch."""
    if (folder / "adapter_config.json").is_file():
        raise CliError(
            ExitCode.USAGE,
            f"{folder} holds an adapter without its model: load both with peft, or train it with lora.export: merged",
        )
    if not (folder / "config.json").is_file():
        raise CliError(ExitCode.USAGE, f"{folder} holds no model (config.json): fetch one with `athanor download JOB`")
    if importlib.util.find_spec("torch") is None:
        raise CliError(ExitCode.USAGE, "generate needs torch, which is not installed: pip install 'athanor[trainer]'")
    command = [
        sys.executable, "-m", "trainer.export.generate", str(folder), "--prompt", prompt,
        "--tokens", str(tokens), "--temperature", str(temperature), "--seed", str(seed),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        raise CliError(ExitCode.JOB_FAILED, f"no text could be generated from {folder}: {lines[-1]}")
    if as_json:
        print_json({"folder": str(folder), "prompt": prompt, "text": result.stdout.rstrip("\n")})
    else:
        print(plain(result.stdout), end="")
