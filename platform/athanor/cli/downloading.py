"""Fetching a sealed model: its manifest is authenticated first, each part is checked and opened before it is written,
and nothing bears its final name before all of it is there. A download that was cut off goes on where it stopped."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode
from athanor.cli.schema_gen import Artifact
from trainer.contract.manifest import LogManifest, Manifest, ModelManifest, ProfileManifest, StoredFile, StoredPart
from trainer.contract.sealing import Sealer, SealError, check_manifest

PART_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
PART_DELAYS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# By an artifact's kind: its manifest, and the field that has its step.
MANIFESTS: dict[str, tuple[type[Manifest], str]] = {
    "model": (ModelManifest, "step"),
    "log": (LogManifest, "step"),
    "profile": (ProfileManifest, "last_step"),
}
MARKER = ".athanor-artifact"  # names the artifact a folder holds
Advance = Callable[[int], None]


class Download:
    """One artifact into one folder. `advance` is told the plaintext bytes that are safely written."""

    def __init__(
        self,
        client: Client,
        artifact: Artifact,
        output: Path,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._id = str(artifact["id"])
        self._artifact = artifact
        self._output = output
        self._partial = output.with_name(output.name + ".partial")
        self._http = httpx.Client(timeout=PART_TIMEOUT)
        self._wait = wait
        self._urls: dict[str, str] = {}

    def is_complete(self) -> bool:
        return _marker(self._output) == self._id

    def run(self, advance: Advance) -> None:
        if self._output.exists() and any(self._output.iterdir()):
            raise CliError(ExitCode.USAGE, f"{self._output} holds other files: choose another folder with --output")
        files, sealer = self._ask()
        if self._partial.exists() and _marker(self._partial) != self._id:
            shutil.rmtree(self._partial)
        self._partial.mkdir(parents=True, exist_ok=True)
        (self._partial / MARKER).write_text(self._id)
        for file in files:
            self._fetch_file(file, sealer, advance)
        self._partial.replace(self._output)

    def _ask(self) -> tuple[list[StoredFile], Sealer]:
        answer = self._client.post(f"/artifacts/{self._id}:download")
        for file in answer["files"]:
            self._urls.update({part["key"]: part["url"] for part in file["parts"]})
        sealer = Sealer(answer["data_key"])
        return self._checked(answer.get("manifest"), sealer).files, sealer

    def _checked(self, content: Any, sealer: Sealer) -> Manifest:
        """Return the manifest, if it is the one that this artifact's job authenticated with its data key."""
        if not content:
            raise CliError(
                ExitCode.SERVER,
                f"the server sent no manifest of {self._id}, so the files cannot be checked: update the server",
            )
        kind, step = MANIFESTS[self._artifact["kind"]]
        try:
            manifest = kind.model_validate(content)
            check_manifest(manifest, sealer, **{"job_id": self._artifact["job"], step: self._artifact["step"]})
        except ValueError as error:
            raise CliError(
                ExitCode.SERVER,
                f"refused the manifest of {self._id}: {error}. Nothing was written; tell the platform's administrator",
            ) from error
        return manifest

    def _fetch_file(self, file: StoredFile, sealer: Sealer, advance: Advance) -> None:
        path = self._partial / file.path  # StoredFile refuses a path that leaves the folder
        path.parent.mkdir(parents=True, exist_ok=True)
        done, missing = _whole_parts(file, path.stat().st_size if path.exists() else 0)
        advance(done)
        with path.open("r+b" if path.exists() else "w+b") as handle:
            handle.truncate(done)
            handle.seek(done)
            for part in missing:
                handle.write(self._fetch_part(part, sealer))
                handle.flush()
                advance(part.plaintext_size)
            os.fsync(handle.fileno())

    def _fetch_part(self, part: StoredPart, sealer: Sealer) -> bytes:
        """The part's plaintext. Links expire and stores restart: both are tried again, damage is not."""
        problem = ""
        for delay in PART_DELAYS_SECONDS:
            try:
                response = self._http.get(self._urls[part.key])
            except httpx.TransportError as error:
                problem = str(error)
            else:
                if response.is_success:
                    try:
                        return sealer.open(response.content, part)
                    except SealError as error:
                        raise CliError(
                            ExitCode.SERVER,
                            f"refused a damaged part: {error}. Nothing of it was written; tell the platform's admin",
                        ) from error
                problem = f"answer {response.status_code}"
            self._wait(delay)
            self._ask()
        raise CliError(ExitCode.SERVER, f"part {part.key} cannot be fetched ({problem}): run the same command to go on")


def _whole_parts(file: StoredFile, present: int) -> tuple[int, list[StoredPart]]:
    """How many bytes of whole parts are there already, and the parts after them."""
    done = 0
    for index, part in enumerate(file.parts):
        if done + part.plaintext_size > present:
            return done, file.parts[index:]
        done += part.plaintext_size
    return done, []


def _marker(folder: Path) -> str | None:
    path = folder / MARKER
    return path.read_text() if path.is_file() else None


def choose_artifact(client: Client, reference: str) -> Artifact:
    """An artifact by its id, or the model of a job by the job's."""
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
