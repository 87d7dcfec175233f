"""`python -m deploy.images.lock`: the packages of images with SHA-256 digests, for `pip install --require-hashes`.

One file for each extra of pyproject.toml that images may have, from the versions of constraints.txt, for all platforms
and Pythons; build.txt is what builds images. Run it after a change of either; it calls uv, and needs a package index.
Torch and its CUDA libraries are left out: each of its builds (CPU, CUDA) has other files.

constraints.txt itself has no digests: with them pip would demand one of everything, and `make setup` installs this
repository as an editable package, and torch from the index or folder of ATHANOR_TORCH.
"""

import re
import subprocess
import sys
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.torch_choice import CUDA_PREFIXES

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("hashes")
EXTRAS = ("server", "trainer", "fp8", "nvidia", "tensorboard", "mlflow")
BUILD = "build"
OLDEST_PYTHON = "3.11"
# An entry: its requirement, then indented lines with digests.
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==.*(?:\n[ ].*)*\n", re.MULTILINE)


def is_of_torch(name: str) -> bool:
    """Return whether a package comes with a build of torch: torch, or one of its CUDA libraries."""
    return name == "torch" or (name.startswith(CUDA_PREFIXES) and name != "nvidia-ml-py")


def without_torch(text: str) -> str:
    """Return the entries of a requirements file that are the same for every build of torch."""
    return "".join(entry[0] for entry in ENTRY.finditer(text) if not is_of_torch(entry["name"]))


def compile_hashes(name: str) -> str:
    """Return the text of one file. Raise StackError if uv cannot resolve it."""
    source = [str(FOLDER / "build.in")] if name == BUILD else ["--extra", name, "pyproject.toml"]
    command = [
        "uv", "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes",
        "--no-annotate", "--no-header", "--constraint", "constraints.txt", *source,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise StackError("uv is not installed: `pip install uv`") from error
    if done.returncode:
        raise StackError(f"uv could not resolve {name}", done.stderr)
    return without_torch(done.stdout)


def main() -> int:
    """Write all files. Return the exit code."""
    try:
        texts = {name: compile_hashes(name) for name in (*EXTRAS, BUILD)}
    except StackError as error:
        print(f"athanor: {error}", file=sys.stderr)
        return 1
    for name, text in texts.items():
        (FOLDER / f"{name}.txt").write_text(text)
        print(f"{FOLDER.relative_to(REPOSITORY)}/{name}.txt: {text.count('==')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
