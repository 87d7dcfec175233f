"""`athanor model merge`: one model from the weights of several downloaded ones, made on this machine."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from athanor.cli.conversion import check_torch, run_standalone, show_size
from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson
from athanor.cli.render import console, print_json
from athanor.cli.signatures import read_key_file, verified


class Method(StrEnum):
    """How weights are merged."""

    LINEAR = "linear"
    SLERP = "slerp"
    TIES = "ties"


@reports_errors
def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(exists=True, file_okay=False, help="Folders of two or more models.", metavar="DIR DIR..."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    method: Annotated[
        Method,
        typer.Option(
            help="linear: weighted mean. slerp: spherical interpolation of two models. ties: TIES-Merging of their "
            "differences from --base."
        ),
    ] = Method.LINEAR,
    weight: Annotated[
        list[float] | None,
        typer.Option(help="Weight of each model in turn, above 0; given once for each. Default: all equal."),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="With ties, folder of the model that all were trained from."),
    ] = None,
    density: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With ties, share of the largest differences that is retained.")
    ] = 0.2,
    scale: Annotated[float, typer.Option(help="With ties, factor of the merged differences.")] = 1.0,
    key: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Verify the signatures of all folders first, by the public keys in this PEM file.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Merge downloaded models of the same shape and tokenizer, on the CPU. Needs torch and no server.

    The result is not signed. Import it to make it a version of a model: athanor model import.
    """
    check_torch("merge", "trainer")
    sources = [*folders, *([] if base is None else [base])]
    keys = {} if key is None else read_key_file(key)
    signed = [verified(folder, keys, {}) for folder in sources] if key is not None else []
    arguments = [
        *map(str, folders), "--output", str(output), "--method", method, "--density", str(density), "--scale",
        str(scale), *(f"--weight={each}" for each in weight or ()), *([] if base is None else ["--base", str(base)]),
    ]  # fmt: skip
    result = run_standalone("merge", arguments, f"{output} was not written")
    if as_json:
        print_json({**result, "sources_signed_by": [each.fingerprint for each in signed]})
        return
    show_size(result)
    for each in signed:
        console.print(f"made from {escape(str(each))}, as signed by the key {each.fingerprint}", soft_wrap=True)
    about = "" if signed else "; the signatures of the sources were not verified (--key does)"
    console.print(f"the result is not signed{about}", soft_wrap=True)
