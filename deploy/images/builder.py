"""Builds images with buildah. Its storage and isolation are chosen by its own variables, such as BUILDAH_ISOLATION."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deploy.local.errors import StackError


@dataclass(frozen=True)
class Builder:
    """The command of buildah, and options for each build."""

    command: str
    options: Sequence[str]

    @classmethod
    def find(cls, options: Sequence[str]) -> "Builder":
        """Return the builder of this machine. Raises StackError if there is none."""
        command = shutil.which("buildah")
        if command is None:
            raise StackError(
                "buildah is not installed: install it (Debian, Ubuntu: apt-get install buildah). Docker builds the "
                "same images: `docker buildx build -f deploy/images/platform.Containerfile --sbom=true "
                "--provenance=mode=max .`"
            )
        return cls(command, tuple(options))

    def version(self) -> str:
        """Return the version of buildah."""
        return self._output("--version").split()[2]

    def build(
        self,
        source: Path,
        containerfile: str,
        tag: str,
        arguments: Mapping[str, str],
        created: datetime,
        options: Sequence[str] = (),
    ) -> None:
        """Build one image. Raises StackError if that fails; what failed has been printed by then.

        Times in the image are `created`, so that the same source gives the same files. The format is Docker's, since
        the other one has no health checks.
        """
        command = [
            self.command, "bud", "--format", "docker", "--layers=false", f"--timestamp={int(created.timestamp())}",
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *options, *self.options, "-f", containerfile, "-t", tag, ".",
        ]  # fmt: skip
        if subprocess.run(command, cwd=source, check=False).returncode:
            raise StackError(f"{tag} could not be built: the message of its failed step is above")

    def write_layout(self, tag: str, folder: Path) -> None:
        """Write an image of the storage as an OCI layout, in place of what is in the folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._output("push", "--quiet", tag, f"oci:{folder}:{tag.rpartition(':')[2]}")

    def digest_of(self, name: str) -> str:
        """Return the digest of an image of the storage, as sha256:HEX."""
        return str(json.loads(self._output("images", "--digests", "--json", name))[0]["digest"])

    def _output(self, *arguments: str) -> str:
        done = subprocess.run([self.command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"`buildah {arguments[0]}` failed", done.stderr)
        return done.stdout.strip()
