"""Download an encrypted model, checkpoint, log or profile.

Its manifest is authenticated first, each part is verified and decrypted before it is written, and files get their final
names when all are complete. An interrupted download resumes where it stopped.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode
from athanor.cli.registry import find_version
from athanor.cli.schema_gen import Artifact, Checkpoint
from athanor.cli.signatures import keys_of_team, read_key_file, verified
from trainer.contract.encryption import DecryptionError, Encryptor, check_manifest
from trainer.contract.manifest import (
    CheckpointManifest,
    LogManifest,
    Manifest,
    ModelManifest,
    ProfileManifest,
    StoredFile,
    StoredPart,
)
from trainer.contract.model_signature import MARKER_NAME, SIGNATURE_NAME, SignedModel

PART_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
PART_DELAYS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CHECKPOINT = "checkpoint"
# By kind: its manifest, and the field that has its step.
MANIFESTS: dict[str, tuple[type[Manifest], str]] = {
    "model": (ModelManifest, "step"),
    "log": (LogManifest, "step"),
    "profile": (ProfileManifest, "last_step"),
    CHECKPOINT: (CheckpointManifest, "step"),
}
Advance = Callable[[int], None]


class Download:
    """Download one artifact or checkpoint into one folder. `advance` is called with the plaintext bytes written.

    `key_file`: the public keys of which one must have signed the model. Default: those of the job's team, as the
    platform lists them.
    """

    def __init__(
        self,
        client: Client,
        stored: Artifact | Checkpoint,
        output: Path,
        key_file: Path | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._id = str(stored["id"])
        self._stored = stored
        self._kind = kind_of(stored)
        self._output = output
        self._partial = output.with_name(output.name + ".partial")
        self._http = httpx.Client(timeout=PART_TIMEOUT)
        self._wait = wait
        self._urls: dict[str, str] = {}
        self._pinned = None if key_file is None else read_key_file(key_file)

    def is_complete(self) -> bool:
        """Return whether the output folder holds the complete download."""
        return _marker(self._output) == self._id

    def run(self, advance: Advance) -> SignedModel | None:
        """Download, check and decrypt all files, and verify the signature of a model. Return what is signed, None if
        nothing is. Continues an interrupted download."""
        if self._output.exists() and any(self._output.iterdir()):
            raise CliError(ExitCode.USAGE, f"{self._output} holds other files: choose another folder with --output")
        files, encryptor = self._ask()
        is_signable = self._is_signable(files)
        if self._pinned is not None and not is_signable:
            raise CliError(
                ExitCode.SERVER,
                f"{self._id} cannot be signed, as its manifest does not contain the SHA-256 of its files: leave --key "
                "out to download it unsigned, or run the job again",
            )
        if self._partial.exists() and _marker(self._partial) != self._id:
            shutil.rmtree(self._partial)
        self._partial.mkdir(parents=True, exist_ok=True)
        (self._partial / MARKER_NAME).write_text(self._id)
        for file in files:
            self._fetch_file(file, encryptor, advance)
        if is_signable:
            signature = self._client.post(f"/artifacts/{self._id}:sign")
            (self._partial / SIGNATURE_NAME).write_text(json.dumps(signature))
        try:
            signed = self.verify(self._partial) if is_signable else None
        except CliError:
            shutil.rmtree(self._partial)
            raise
        self._partial.replace(self._output)
        return signed

    def verify(self, folder: Path) -> SignedModel | None:
        """Verify the signature of a downloaded folder, and that it is of this artifact; None for what is not signed.

        Raise CliError, also if the signature of a model that is signed is not there.
        """
        must_be_signed = self._pinned is not None or (folder / SIGNATURE_NAME).exists()
        if not must_be_signed and (self._kind != "model" or not self._is_signable(self._ask()[0])):
            return None
        artifact = cast(Artifact, self._stored)  # a checkpoint has no signature
        keys, revoked = keys_of_team(self._client, artifact["team"]["id"])
        signed = verified(folder, keys if self._pinned is None else self._pinned, revoked)
        if signed.record is None or signed.record.artifact != self._id:
            raise CliError(ExitCode.SERVER, f"refused the signature of {self._id}: it is of another model, {signed}")
        return signed

    def _is_signable(self, files: list[StoredFile]) -> bool:
        """Return whether the platform signs the artifact: a model of which the manifest has all digests."""
        return self._kind == "model" and bool(files) and all(file.plaintext_sha256 for file in files)

    def _ask(self) -> tuple[list[StoredFile], Encryptor]:
        answer = self._client.post(f"/{'checkpoints' if self._kind == CHECKPOINT else 'artifacts'}/{self._id}:download")
        for file in answer["files"]:
            self._urls.update({part["key"]: part["url"] for part in file["parts"]})
        encryptor = Encryptor(answer["data_key"])
        return self._checked(answer.get("manifest"), encryptor).files, encryptor

    def _checked(self, content: Any, encryptor: Encryptor) -> Manifest:
        """Return the manifest, if it is the one that this artifact's job authenticated with its data key."""
        if not content:
            raise CliError(
                ExitCode.SERVER,
                f"the server sent no manifest of {self._id}, so the files cannot be checked: update the server",
            )
        kind, step = MANIFESTS[self._kind]
        try:
            manifest = kind.model_validate(content)
            check_manifest(manifest, encryptor, **{"job_id": self._stored["job"] or "", step: self._stored["step"]})
        except ValueError as error:
            raise CliError(
                ExitCode.SERVER,
                f"refused the manifest of {self._id}: {error}. Nothing was written; report it to the platform's admin",
            ) from error
        return manifest

    def _fetch_file(self, file: StoredFile, encryptor: Encryptor, advance: Advance) -> None:
        path = self._partial / file.path  # StoredFile refuses a path that leaves the folder
        path.parent.mkdir(parents=True, exist_ok=True)
        done, missing = _whole_parts(file, path.stat().st_size if path.exists() else 0)
        advance(done)
        with path.open("r+b" if path.exists() else "w+b") as handle:
            handle.truncate(done)
            handle.seek(done)
            for part in missing:
                handle.write(self._fetch_part(part, encryptor))
                handle.flush()
                advance(part.plaintext_size)
            os.fsync(handle.fileno())

    def _fetch_part(self, part: StoredPart, encryptor: Encryptor) -> bytes:
        """Return the part's plaintext. Expired links and store restarts are retried; damage is not."""
        problem = ""
        for delay in PART_DELAYS_SECONDS:
            try:
                response = self._http.get(self._urls[part.key])
            except httpx.TransportError as error:
                problem = str(error)
            else:
                if response.is_success:
                    try:
                        return encryptor.decrypt(response.content, part)
                    except DecryptionError as error:
                        raise CliError(
                            ExitCode.SERVER,
                            f"refused a damaged part: {error}. It was not written; report it to the platform's admin",
                        ) from error
                problem = f"answer {response.status_code}"
            self._wait(delay)
            self._ask()
        raise CliError(
            ExitCode.SERVER, f"part {part.key} cannot be fetched ({problem}): run the same command again to resume"
        )


def _whole_parts(file: StoredFile, present: int) -> tuple[int, list[StoredPart]]:
    """Return the number of bytes of complete parts on disk, and the parts after them."""
    done = 0
    for index, part in enumerate(file.parts):
        if done + part.plaintext_size > present:
            return done, file.parts[index:]
        done += part.plaintext_size
    return done, []


def _marker(folder: Path) -> str | None:
    path = folder / MARKER_NAME
    return path.read_text() if path.is_file() else None


def kind_of(stored: Artifact | Checkpoint) -> str:
    """Return the kind of an artifact, or `checkpoint`."""
    return str(stored.get("kind", CHECKPOINT))


def choose_checkpoint(client: Client, job: str, which: str) -> Checkpoint:
    """Return the checkpoint of a job by its step, its id, or `latest`, the one that it would resume from."""
    found: list[Any] = list(client.pages(f"/jobs/{job}/checkpoints"))
    if not found:
        raise CliError(
            ExitCode.NOT_FOUND,
            f"{job} has no checkpoint: its spec's checkpoint.every_steps and every_minutes say when the first is saved",
        )
    # A job that resumed may have stored a step twice; the list is in the order of their creation, newest first.
    intact = [each for each in found if each.get("state", "intact") == "intact"]
    chosen = intact if which == "latest" else [each for each in found if which in (str(each["step"]), each["id"])]
    if which == "latest" and not chosen:
        raise CliError(ExitCode.NOT_FOUND, f"no checkpoint of {job} is intact; name a step to choose a different one")
    if not chosen:
        steps = ", ".join(map(str, sorted({each["step"] for each in found})))
        raise CliError(ExitCode.NOT_FOUND, f"{job} has no checkpoint {which!r}; it has those of the steps {steps}")
    newest: Checkpoint = chosen[0]
    return newest


def choose_artifact(client: Client, reference: str) -> Artifact:
    """Return an artifact by its id, a registered version by `model:NAME@ALIAS`, `model:NAME@NUMBER` or, of a shared
    model, `model:OWNER/NAME@ALIAS`, or the model of a job by the job's id."""
    if reference.startswith("model:"):
        reference = find_version(client, reference.removeprefix("model:"))["artifact"]
    if reference.startswith("art_"):
        artifact: Artifact = client.get(f"/artifacts/{reference}")
        return artifact
    models: list[Any] = [a for a in client.pages(f"/jobs/{reference}/artifacts") if a["kind"] == "model"]
    if not models:
        job = client.get(f"/jobs/{reference}")
        raise CliError(
            ExitCode.NOT_FOUND,
            f"{reference} has no model yet (it is {job['status']}): wait for it with `athanor watch {reference}`",
        )
    newest: Artifact = max(models, key=lambda model: model["created_at"])
    return newest
