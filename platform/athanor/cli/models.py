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

from athanor.cli.downloading import Download, choose_artifact
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.plain import plain
from athanor.cli.render import console, print_json, size


@reports_errors
def download(
    reference: Annotated[str, typer.Argument(help="A job (its model) or an artifact, art_...", metavar="JOB")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder. Default: the model's name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download, verify and decrypt a model. Run it again to resume after an interruption."""
    client = connect()
    artifact = choose_artifact(client, reference)
    folder = output or Path(re.sub(r"[^\w.-]+", "-", f"{artifact['name']}-{artifact['id'][-6:].lower()}"))
    work = Download(client, artifact, folder)
    started = time.monotonic()
    fresh = not work.is_complete()
    if fresh:
        columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, disable=as_json or not console.is_terminal) as progress:
            task = progress.add_task("", total=artifact["size_bytes"])
            work.run(lambda count: progress.advance(task, count))
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "artifact": artifact["id"],
                "folder": str(folder),
                "size_bytes": artifact["size_bytes"],
                "files": [{"path": file["path"], "size": file["size"]} for file in artifact["files"]],
                "seconds": round(seconds, 3),
                "already_there": not fresh,
            }
        )
    elif fresh:
        console.print(f"{folder}: {size(artifact['size_bytes'])} in {seconds:.1f} s, checked and decrypted")
    else:
        console.print(f"{folder} holds this model already")


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
