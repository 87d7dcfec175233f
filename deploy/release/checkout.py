"""The commit that is released, and whether it can be."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

from deploy.local.errors import StackError

VERSION = re.compile(r"\d+\.\d+\.\d+(?:rc\d+)?")


class Checkout:
    """A working copy. `committed`: the time of its commit, in seconds since 1970."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.revision, seconds = self._git("log", "-1", "--format=%H %ct").split()
        self.committed = int(seconds)

    def require_releasable(self, version: str, *, tag: bool) -> None:
        """Raise StackError unless the commit is complete, and is this version everywhere."""
        if not VERSION.fullmatch(version):
            raise StackError(f"version {version!r} is not of the form 1.2.3 or 1.2.3rc1")
        if changed := self._git("status", "--porcelain"):
            raise StackError("the checkout has changes that are not committed: commit or remove them", changed)
        declared = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]["version"]
        if declared != version:
            raise StackError(f"pyproject.toml has version {declared}, not {version}: change it, `make gen`, commit")
        chart = (self.folder / "deploy" / "helm" / "athanor" / "Chart.yaml").read_text()
        for field in ("version", "appVersion"):
            if f"\n{field}: {version}\n" not in f"\n{chart}":
                raise StackError(
                    f"deploy/helm/athanor/Chart.yaml has another {field} than {version}: change it, commit"
                )
        if tag and self._git("tag", "--list", f"v{version}"):
            raise StackError(f"there is a tag v{version}: a released version does not change, choose the next one")

    def tag(self, version: str, key: Path) -> None:
        """Make the signed tag of the version."""
        signed = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={key.resolve()}"]
        self._git(*signed, "tag", "--sign", "--message", f"Athanor {version}", f"v{version}", self.revision)

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise StackError(f"`git {shlex.join(arguments)}` failed", done.stderr)
        return done.stdout
