"""`python -m deploy.images [platform] [trainer] [local-worker]`, or `make images`: build the container images.

Each image is in the builder's own storage as athanor/NAME:VERSION afterwards. With its bill of materials (CycloneDX)
and its provenance (in-toto, SLSA 1.0) attached it is in build/images/NAME, an OCI layout, which can be copied to a
registry as one (`oras copy --recursive --from-oci-layout`).

Built is what is committed: files that are not cannot get into an image, and its label names the revision.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from deploy.images import layout, provenance
from deploy.images.builder import Builder
from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError
from deploy.local.torch_choice import torch_index_options

BASE = "python:3.12-slim"
OUTPUT = REPOSITORY / "build" / "images"
BILL_OF_MATERIALS = "opt/athanor/sbom.cdx.json"
WHEELS = "/wheels"


@dataclass(frozen=True)
class Image:
    """One of the images: the Containerfile that it is built from, and its arguments."""

    containerfile: str
    arguments: dict[str, str] = field(default_factory=dict)
    has_torch: bool = False


IMAGES = {
    "platform": Image("platform"),
    "trainer": Image("trainer", has_torch=True),
    # The worker of an installation that trains on the machine of its worker, as deploy/compose.yaml does.
    "local-worker": Image("trainer", {"EXTRAS": "server,trainer,nvidia"}, has_torch=True),
}


def main() -> int:
    """Build the images that the arguments name. Return the exit status."""
    parser = argparse.ArgumentParser(prog="deploy.images", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(IMAGES)} (default: all)")
    parser.add_argument("--base", default=BASE, help="the image to build on, with Python 3.11 or newer (%(default)s)")
    parser.add_argument(
        "--packages", metavar="NAMES",
        help="packages of the trainer's images, for torch.compile: 'g++ python3-dev' on a base with Debian's Python",
    )  # fmt: skip
    parser.add_argument("--revision", default="HEAD", help="the commit to build (%(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the folder of the OCI layouts (%(default)s)")
    parser.add_argument(
        "--build-option", action="append", default=[], metavar="OPTION",
        help="an option for `buildah bud`, as in --build-option=--volume=/certificates:/certificates:ro",
    )  # fmt: skip
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in IMAGES]
    if unknown:
        parser.error(f"there is no image {', '.join(unknown)}: choose from {', '.join(IMAGES)}")
    try:
        builder = Builder.find(chosen.build_option)
        with tempfile.TemporaryDirectory(prefix="athanor-images-") as folder:
            source = Source.of_revision(chosen.revision, Path(folder))
            for name in chosen.names or IMAGES:
                build(builder, source, name, chosen.base, chosen.output / name, chosen.packages)
    except StackError as error:
        print(f"{error.log}\nimages: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class Source:
    """The files of one commit, in a folder of their own."""

    folder: Path
    revision: str
    committed: datetime
    version: str

    @classmethod
    def of_revision(cls, revision: str, folder: Path) -> "Source":
        """Write the files of a commit into `folder`. Raises StackError if there is no such commit."""
        known = _git("log", "-1", "--format=%H %ct", revision, "--")
        commit, seconds = known.split()
        archive = folder / "source.tar"
        _git("archive", f"--output={archive}", commit)
        source = folder / "source"
        source.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(source)], check=True)
        archive.unlink()
        version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
        return cls(source, commit, datetime.fromtimestamp(int(seconds), UTC), version)


def build(builder: Builder, source: Source, name: str, base: str, output: Path, packages: str | None = None) -> None:
    """Build one image, and write it into the folder `output` with what is attached to it.

    `packages`: PACKAGES of the trainer's Containerfile, None for its default.
    """
    image = IMAGES[name]
    tag = f"athanor/{name}:{source.version}"
    arguments = {"BASE": base, "VERSION": source.version, "REVISION": source.revision, **image.arguments}
    options = []
    if image.has_torch:
        torch = torch_index_options()
        if torch and torch[0] == "--find-links":
            options.append(f"--volume={Path(torch[1]).resolve()}:{WHEELS}:ro")
            torch = ["--find-links", WHEELS]
        arguments["TORCH_OPTIONS"] = shlex.join(torch)
        if packages is not None:
            arguments["PACKAGES"] = packages
    began, clock = datetime.now(UTC), time.monotonic()
    containerfile = f"deploy/images/{image.containerfile}.Containerfile"
    print(f"building {tag} from {source.revision[:12]} on {base}", flush=True)
    builder.build(source.folder, containerfile, tag, arguments, source.committed, options)
    builder.write_layout(tag, output)
    made = layout.Layout(output)
    bill = made.read_file(BILL_OF_MATERIALS)
    record = provenance.statement(
        name=f"athanor/{name}", digest=made.image.digest, containerfile=containerfile, arguments=arguments,
        base_digest=builder.digest_of(base), revision=source.revision, builder=builder.version(), began=began,
        ended=datetime.now(UTC),
    )  # fmt: skip
    made.attach("application/vnd.cyclonedx+json", bill)
    made.attach("application/vnd.in-toto+json", record)
    seconds = time.monotonic() - clock
    print(
        f"built {tag} in {seconds:.0f} s: {output}, {made.image.digest}, {made.stored_bytes() / 1e6:.0f} MB", flush=True
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise StackError(f"`git {shlex.join(arguments)}` failed: images are built from a commit", done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
