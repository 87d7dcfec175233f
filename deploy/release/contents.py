"""The files of a release. Archives are the same bytes whenever they are made of the same commit."""

import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from deploy.local.errors import StackError
from deploy.release.checkout import Checkout

ANNOTATION_OF_REVISION = "org.opencontainers.image.revision"


def notes(repository: Path, version: str) -> str:
    """Return the changelog's section of the version. Raises StackError without one, or if it is empty or not dated."""
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(version)} - \d{{4}}-\d{{2}}-\d{{2}}\n", text, re.MULTILINE)
    if heading is None:
        raise StackError(f"CHANGELOG.md has no `## {version} - YYYY-MM-DD`: rename *Unreleased*, and commit")
    section = text[heading.end() :].partition("\n## ")[0].strip()
    if not section:
        raise StackError(f"CHANGELOG.md has nothing under {version}: write what has changed, and commit")
    return f"# Athanor {version}\n\n{section}\n"


def build_wheel(checkout: Checkout, target: Path) -> None:
    """Build the wheel into `target`."""
    command = [
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir",
        "--wheel-dir", str(target), str(checkout.folder),
    ]  # fmt: skip
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(checkout.committed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError("the wheel could not be built", done.stderr)


def pack_pages(checkout: Checkout, target: Path, version: str) -> None:
    """Pack the dashboard and the documentation, for hosts without Node.js. Raises StackError if they are not built."""
    for name, folder in (("dashboard", "frontend/dist"), ("docs", "build/docs")):
        built = checkout.folder / folder
        if not (built / "index.html").is_file():
            raise StackError(f"{folder} is not built: `make setup`")
        pack(built, target / f"athanor-{name}-{version}.tar.gz", name, checkout.committed)


def pack_chart(checkout: Checkout, target: Path, version: str) -> None:
    """Pack the Helm chart as `helm package` names it."""
    chart = checkout.folder / "deploy" / "helm" / "athanor"
    pack(chart, target / f"athanor-{version}.tgz", "athanor", checkout.committed)


def image_layout(checkout: Checkout, name: str, version: str) -> Path:
    """Return the folder of an image's OCI layout. Raises StackError unless `make images` built it of this commit."""
    folder = checkout.folder / "build" / "images" / name
    remedy = f"`make images IMAGES={name}` on this commit, or leave it out with --images"
    if not (folder / "index.json").is_file():
        raise StackError(f"{folder} has no image: {remedy}")
    labels = _labels(folder)
    found = labels.get(ANNOTATION_OF_REVISION), labels.get("org.opencontainers.image.version")
    if found != (checkout.revision, version):
        raise StackError(f"the image {name} is of revision {found[0]}, version {found[1]}: {remedy}")
    return folder


def pack(folder: Path, target: Path, name: str, moment: int) -> None:
    """Pack a folder as `name`/, in a fixed order, with one time and owner for all files."""

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name.startswith("."):
            return None
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = moment, 0, 0, "", ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with target.open("wb") as raw:
        if target.suffix == ".tar":
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
                tar.add(folder, name, filter=normal)
            return
        with (
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=moment) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            tar.add(folder, name, filter=normal)


def _labels(layout: Path) -> dict[str, str]:
    index = json.loads((layout / "index.json").read_text())
    manifest = _blob(layout, index["manifests"][0]["digest"])
    config = _blob(layout, manifest["config"]["digest"])
    return dict(config.get("config", {}).get("Labels") or {})


def _blob(layout: Path, digest: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((layout / "blobs" / digest.replace(":", "/")).read_bytes())
    return content
