"""`athanor model convert`: other forms of a downloaded model, made on this machine."""

import importlib.util
import json
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson
from athanor.cli.render import console, print_json, size
from athanor.cli.signatures import read_key_file, verified
from trainer.contract.model_signature import SIGNATURE_NAME, SignedModel


class Form(StrEnum):
    """Forms of a model beside safetensors in full precision."""

    GGUF = "gguf"
    INT8 = "int8"
    INT4 = "int4"
    SAFETENSORS = "safetensors"


class Precision(StrEnum):
    """How GGUF stores the matrices of a model."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


@reports_errors
def convert(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of a model.", metavar="DIR")],
    output: Annotated[Path, typer.Argument(help="A new file for gguf, otherwise a new folder.", metavar="OUT")],
    form: Annotated[
        Form,
        typer.Option(
            "--to",
            help="gguf: for llama.cpp. int8, int4: quantized by torchao, for transformers. safetensors: in Hugging "
            "Face's layout, from weights in DIR that torch.distributed.checkpoint saved.",
        ),
    ],
    precision: Annotated[
        Precision | None, typer.Option(help="How gguf stores matrices. Default: f16.", show_default=False)
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File of held-out text to report the difference of the loss on. Can be given several times.",
        ),
    ] = None,
    data_format: Annotated[
        str, typer.Option("--format", help="Format of the data: auto, text, jsonl, parquet or chat.")
    ] = "auto",
    text_field: Annotated[str, typer.Option(help="Field of the data that has the text.")] = "text",
    sequence_length: Annotated[int, typer.Option(min=2, help="Longest window of the data, in tokens.")] = 1024,
    key: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Verify the signature of DIR first, by the public keys in this PEM file."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a downloaded model to another form, on the CPU. Needs torch and no server.

    The result is not signed: the signature of DIR covers the files of DIR alone.
    """
    if precision is not None and form is not Form.GGUF:
        raise CliError(ExitCode.USAGE, f"--precision is for --to gguf; {form} has one precision: leave it out")
    check_torch("convert", "trainer,convert")
    signed = None if key is None else verified(folder, read_key_file(key), {})
    arguments = [
        str(folder), str(output), "--to", form, "--precision", precision or Precision.F16, "--format", data_format,
        "--text-field", text_field, "--sequence-length", str(sequence_length),
        *(f"--data={path}" for path in data or ()),
    ]  # fmt: skip
    result = run_standalone("convert", arguments, f"{folder} was not converted")
    if as_json:
        print_json({**result, "source_signed_by": None if signed is None else signed.fingerprint})
        return
    _show(result)
    console.print(_about_signature(folder, signed), soft_wrap=True)


def check_torch(command: str, extras: str) -> None:
    """Raise CliError if torch is not installed, with the extras to install."""
    if importlib.util.find_spec("torch") is None:
        raise CliError(
            ExitCode.USAGE, f"{command} needs torch, which is not installed: pip install 'athanor[{extras}]'"
        )


def run_standalone(module: str, arguments: list[str], failure: str) -> dict[str, Any]:
    """Run a module of `trainer.standalone` in a process of its own, and return its result. Raise CliError that begins
    with `failure`."""
    command = [sys.executable, "-m", f"trainer.standalone.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CliError(ExitCode.JOB_FAILED, f"{failure}: {lines[-1]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def show_size(result: dict[str, Any]) -> None:
    """Print what was written."""
    described = f"{result['parameters']:,} parameters, {result['precision']}, {size(result['size_bytes'])}"
    console.print(f"{escape(result['output'])}: {described}", soft_wrap=True)


def _show(result: dict[str, Any]) -> None:
    show_size(result)
    if result.get("ignored"):
        console.print(f"not part of the model: {escape(', '.join(result['ignored'][:5]))}", soft_wrap=True)
    loss = result["loss"]
    if loss is None:
        return
    difference = loss["difference"]
    interval = ""
    if difference["low"] is not None:
        interval = f" (95 % confidence interval {difference['low']:+.5f} to {difference['high']:+.5f})"
    console.print(
        f"held-out loss: {loss['original']['value']:.5f} before, {loss['converted']['value']:.5f} after, difference "
        f"{difference['value']:+.5f}{interval}, n = {loss['documents']} documents, {loss['tokens']:,} tokens",
        soft_wrap=True,
    )


def _about_signature(folder: Path, signed: SignedModel | None) -> str:
    """Return what is signed of the source and the result."""
    if signed is not None:
        return f"made from {escape(str(signed))}, as signed by the key {signed.fingerprint}; the result is not signed"
    if (folder / SIGNATURE_NAME).is_file():
        return f"the signature of {escape(str(folder))} was not verified (--key does), and the result is not signed"
    return "neither the source nor the result is signed"
