"""Packages of images: each has a digest, the versions are those of constraints.txt, and none is missing."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.audit.advisories import REPOSITORY, pinned
from deploy.images import lock

FILES = sorted(lock.FOLDER.glob("*.txt"))
PINNED = {found.name: found.version for found in pinned([REPOSITORY / "constraints.txt"])}


def test_each_extra_that_images_may_have_has_a_file() -> None:
    assert {path.stem for path in FILES} == {*lock.EXTRAS, lock.BUILD}
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) - {*lock.EXTRAS} == {"local", "dev", "docs", "convert"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_package_has_digests_and_the_version_of_the_constraints(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text, "no index is named"
    entries = list(lock.ENTRY.finditer(text))
    assert "".join(entry[0] for entry in entries) == text
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry[0]), entry[0]
        assert not lock.is_of_torch(entry["name"])
    found = {package.name: package.version for package in pinned([path])}
    assert {name: PINNED[name] for name in found if name in PINNED} == {
        name: version for name, version in found.items() if name in PINNED
    }


@pytest.mark.parametrize("extra", lock.EXTRAS)
def test_no_dependency_is_missing(extra: str) -> None:
    """Follow the requirements of what is installed here, on this platform, from those of the extra."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    listed = {package.name for package in pinned([lock.FOLDER / f"{extra}.txt"])}
    waiting = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"][extra])]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, ",".join(sorted(requirement.extras)))
        if key in seen:
            continue
        seen.add(key)
        if lock.is_of_torch(name):
            continue
        assert name in listed, f"{name} is not in {extra}.txt: run `python -m deploy.images.lock`"
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        for text in requires:
            found = Requirement(text)
            if found.marker is None or any(found.marker.evaluate({"extra": one}) for one in {"", *requirement.extras}):
                waiting.append(found)
    assert len(seen) > 10


def test_builds_of_torch_are_left_out() -> None:
    text = "".join(
        f"{name}==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:{'0' * 64}\n"
        for name in ("torch", "triton", "nvidia-cublas", "cuda-toolkit", "nvidia-ml-py", "torchao")
    )
    assert re.findall(r"^[a-z-]+", lock.without_torch(text), re.MULTILINE) == ["nvidia-ml-py", "torchao"]


def test_pip_refuses_a_package_with_another_digest(tmp_path: Path) -> None:
    """Without an index: a wheel that was replaced is refused before any of it is installed."""
    wheel = tmp_path / "harmless-1.0-py3-none-any.whl"
    wheel.write_bytes(b"replaced")
    listed = tmp_path / "harmless.txt"
    listed.write_text(f"harmless==1.0 --hash=sha256:{'0' * 64}\n")
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--find-links", str(tmp_path),
        "--require-hashes", "-r", str(listed),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
