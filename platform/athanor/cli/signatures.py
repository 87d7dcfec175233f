"""Verify the signatures of exported models: `athanor model verify`, without a network, and at the end of a download."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson
from athanor.cli.render import console, print_json
from trainer.contract.model_signature import (
    SignatureRefused,
    SignedModel,
    SignedProvenance,
    read_provenance,
    read_public_keys,
    verify_folder,
)

FINGERPRINT = re.compile(r"[0-9a-f]{64}")
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        exists=True,
        dir_okay=False,
        help="Accept only signatures by the public keys in this PEM file. Default: the keys of the job's team.",
    ),
]


@reports_errors
def verify(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of a model.", metavar="DIR")],
    key: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="PEM file with the public keys that you trust: `athanor signing-key show`.",
        ),
    ],
    revoked: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Revoked keys, as `athanor signing-key list --revoked` prints them."
        ),
    ] = None,
    provenance: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Signed provenance, as `athanor model document --provenance` writes it: it must be of the same files.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify that a folder contains exactly the signed files of a model. Needs no server and no token."""
    keys, revoked_keys = read_key_file(key), {} if revoked is None else _read_revoked(revoked)
    signed = verified(folder, keys, revoked_keys)
    made = None if provenance is None else _verified_provenance(provenance, signed, keys, revoked_keys)
    if as_json:
        found = {"folder": str(folder), **signed.model_dump(exclude={"ignored"})}
        print_json(found if made is None else {**found, "provenance": made.predicate})
        return
    console.print(f"{escape(str(folder))}: {len(signed.files)} files as signed, {escape(str(signed))}", soft_wrap=True)
    by = f"signed by the key {signed.fingerprint}"
    console.print(by if signed.record is None else f"{by} at {signed.record.signed_at}", soft_wrap=True)
    if made is not None:
        line = f"{provenance} is the provenance of these files, signed by the key {made.fingerprint}"
        console.print(escape(line), soft_wrap=True)


def verified(folder: Path, keys: Mapping[str, str], revoked: Mapping[str, str]) -> SignedModel:
    """Return what is signed in a folder that contains exactly that. Raise CliError with a line for each other file."""
    try:
        return verify_folder(folder, keys, revoked)
    except SignatureRefused as refused:
        raise CliError(ExitCode.SERVER, str(refused), list(refused.problems)) from refused


def _verified_provenance(
    path: Path, signed: SignedModel, keys: Mapping[str, str], revoked: Mapping[str, str]
) -> SignedProvenance:
    """Return a provenance of exactly the files that are signed. Raise CliError for anything else."""
    try:
        made = read_provenance(path.read_bytes(), keys, revoked)
    except SignatureRefused as refused:
        raise CliError(ExitCode.SERVER, f"{path} is refused: {refused}") from refused
    differing = sorted(name for name, _ in made.files.items() ^ signed.files.items())
    if differing:
        names = ", ".join(dict.fromkeys(differing))
        raise CliError(ExitCode.SERVER, f"{path} is the provenance of other files than these: {names} differ")
    return made


def read_key_file(path: Path) -> dict[str, str]:
    """Return the public keys of a PEM file by fingerprint. Raise CliError for anything else."""
    try:
        return read_public_keys(_read_text(path))
    except SignatureRefused as refused:
        raise CliError(ExitCode.USAGE, f"{path} is no key file: {refused}") from refused


def keys_of_team(client: Client, team_id: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the public keys of a team, and why the revoked ones are, both by fingerprint."""
    found = list(client.pages(f"/teams/{team_id}/signing-keys"))
    revoked = {row["fingerprint"]: row["revocation_reason"] for row in found if row["state"] == "revoked"}
    return {row["fingerprint"]: row["public_key"] for row in found}, revoked


def _read_revoked(path: Path) -> dict[str, str]:
    """Return the reasons in a list of revoked keys by fingerprint. Raise CliError for a line that names none."""
    found = {}
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        fingerprint, _, reason = line.strip().partition(" ")
        if not fingerprint:
            continue
        if FINGERPRINT.fullmatch(fingerprint) is None:
            detail = f"line {number} of {path} does not begin with a fingerprint (64 hexadecimal digits): {line!r}"
            raise CliError(ExitCode.USAGE, detail)
        found[fingerprint] = reason.strip() or "no reason is given"
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CliError(ExitCode.USAGE, f"{path} is not text in UTF-8: {error}") from error
