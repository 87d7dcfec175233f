"""`make gpu-kit`: build `gpu_kit/`, which checks and measures the trainer on a machine with a GPU and no package index.

`gpu_kit/source/` has the trainer and the parts of the kit, `gpu_kit/wheels/` what a machine with torch, numpy,
safetensors, tokenizers, jinja2 and pyarrow may lack, in the versions that are installed here.
"""

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
KIT = REPOSITORY / "gpu_kit"
MAX_BYTES = 60 * 2**20
SOURCES = (
    "trainer", "tests/gpu_kit", "tests/trainer/activations.py", "tests/trainer/runs.py", "tests/bench/trainer_rivals.py"
)  # fmt: skip
ROOTS = ("httpx", "jinja2", "pydantic", "PyYAML", "tink", "torchao", "urllib3")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64")


def copy_source(kit: Path) -> None:
    """Copy the source into the kit, and `run.py` beside it."""
    source = kit / "source"
    shutil.rmtree(source, ignore_errors=True)
    for name in SOURCES:
        place = source / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(REPOSITORY / name, place)
    shutil.copyfile(REPOSITORY / "tests" / "gpu_kit" / "run.py", kit / "run.py")


def requirements(python: str) -> list[str]:
    """Return ROOTS and all that they need on Linux with this version of Python, each with the version installed
    here."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    waiting, found = list(ROOTS), dict[str, str]()
    while waiting:
        name = waiting.pop()
        distribution = importlib.metadata.distribution(name)
        key = distribution.metadata["Name"].lower().replace("_", "-")
        if key in found:
            continue
        found[key] = f"{key}=={distribution.version}"
        for line in distribution.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                waiting.append(requirement.name)
    return sorted(found.values())


def download_wheels(kit: Path, python: str) -> None:
    """Download the wheels for x86-64 Linux with this version of Python."""
    wheels = kit / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    shutil.rmtree(kit / "site", ignore_errors=True)
    abi = f"cp{python.replace('.', '')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--dest", str(wheels)]
    command += [f"--abi={each}" for each in (abi, "abi3", "none")]
    command += [f"--platform={each}" for each in PLATFORMS]
    subprocess.run([*command, *requirements(python)], check=True)
    (wheels / "python").write_text(f"{python}\n")


def main() -> int:
    """Build the kit. Return 1 if it is larger than allowed."""
    parser = argparse.ArgumentParser(description="Build gpu_kit/, to be copied to a machine with a GPU.")
    parser.add_argument("--python", default="3.12", help="Python version of that machine (default: 3.12)")
    parser.add_argument("--output", type=Path, default=KIT, help="folder to build (default: gpu_kit)")
    arguments = parser.parse_args()
    copy_source(arguments.output)
    download_wheels(arguments.output, arguments.python)
    built = [path for part in ("source", "wheels") for path in (arguments.output / part).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in built)
    print(f"{arguments.output}: {size / 2**20:.0f} MiB of source and wheels for Python {arguments.python}")
    print("copy it to a machine with a GPU and run there: python gpu_kit/run.py --minutes 9")
    if size > MAX_BYTES:
        sys.stderr.write(f"the kit must not be larger than {MAX_BYTES // 2**20} MiB\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
