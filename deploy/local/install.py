"""`python -m deploy.local.install`: .venv, packages, dashboard and documentation, each only when something
changed.

Runs under any Python from 3.11, before anything is installed: standard library only. pip's own environment
(index, find-links, certificates) reaches pip untouched.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.torch_choice import explain_torch_download, torch_index_options

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / ".venv"
STAMP = VENV / "athanor-installed.json"
TIMES = VENV / "athanor-setup-times.json"
FRONTEND = REPOSITORY / "frontend"
LEAST_NODE = (20, 19)
NOT_SOURCES = {"node_modules", "dist", "coverage", "test-results"}


def make_venv() -> None:
    """Create .venv unless it works."""
    python = VENV / "bin" / "python"
    if _runs(str(python), "-c", "import sys, pip"):
        return
    if VENV.exists():
        print(f"{VENV} is not usable (its Python is missing or incomplete): creating it again", flush=True)
        shutil.rmtree(VENV)
    print(f"making .venv with Python {sys.version.split()[0]}", flush=True)
    if _runs(sys.executable, "-m", "venv", str(VENV)):
        return
    # Debian's python3 comes without ensurepip; any pip at hand can then fill the environment from outside.
    shutil.rmtree(VENV, ignore_errors=True)
    without_pip = _runs(sys.executable, "-m", "venv", "--without-pip", str(VENV))
    outer_pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "pip"]
    if without_pip and _runs(*outer_pip):
        return
    shutil.rmtree(VENV, ignore_errors=True)
    if _runs(sys.executable, "-m", "virtualenv", str(VENV)):
        return
    raise StackError(
        f"{sys.executable} can make no virtual environment: install its venv module "
        "(Debian, Ubuntu: apt-get install python3-venv), or set PYTHON to another Python, as in "
        "`make demo PYTHON=python3.12`"
    )


def install_packages(extras: set[str]) -> None:
    """Nothing to do when the same pins and at least these extras are there already."""
    wanted = _digest([REPOSITORY / "pyproject.toml", REPOSITORY / "constraints.txt"], _version(VENV))
    known = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    if known.get("digest") == wanted and extras <= set(known.get("extras", [])):
        return
    extras |= set(known.get("extras", []))
    python = str(VENV / "bin" / "python")
    torch_options = torch_index_options()
    if "trainer" in extras:
        explain_torch_download(python, REPOSITORY, torch_options)
    print(f"installing {', '.join(sorted(extras))} from constraints.txt", flush=True)
    command = [
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *torch_options,
        "-c", "constraints.txt", "-e", f".[{','.join(sorted(extras))}]",
    ]  # fmt: skip
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        raise StackError("pip could not install the packages: its message is above")
    STAMP.write_text(json.dumps({"digest": wanted, "extras": sorted(extras)}))


def build_dashboard() -> None:
    """`npm ci` when the lock file changed, `npm run build` when any source did."""
    environment = node_environment()
    lock = FRONTEND / "package-lock.json"
    lock_digest = _digest([lock])
    lock_stamp = FRONTEND / "node_modules" / ".athanor-lock"
    if not lock_stamp.exists() or lock_stamp.read_text() != lock_digest:
        print("installing the dashboard's packages", flush=True)
        _npm(environment, "ci", "--no-audit", "--no-fund", "--loglevel=error")
        lock_stamp.write_text(lock_digest)
    sources = sorted(
        path
        for top in sorted(FRONTEND.iterdir())
        if top.name not in NOT_SOURCES
        for path in (sorted(top.rglob("*")) if top.is_dir() else [top])
        if path.is_file()
    )
    digest = _digest(sources)
    stamp = FRONTEND / "dist" / ".athanor-sources"
    if stamp.exists() and stamp.read_text() == digest and (FRONTEND / "dist" / "index.html").exists():
        return
    print("building the dashboard", flush=True)
    _npm(environment, "run", "--silent", "build", "--", "--logLevel=warn")
    stamp.write_text(digest)


def build_docs() -> None:
    """Build the documentation's site when a page or what builds it has changed."""
    sources = sorted(path for name in ("docs", "deploy/docs") for path in (REPOSITORY / name).rglob("*"))
    inputs = [path for path in sources if path.suffix in {".md", ".py", ".yml"}]
    digest = _digest([*inputs, REPOSITORY / "constraints.txt"])
    stamp = REPOSITORY / "build" / "docs" / ".athanor-sources"
    if stamp.exists() and stamp.read_text() == digest:
        return
    print("building the documentation", flush=True)
    command = [str(VENV / "bin" / "python"), "-m", "deploy.docs"]
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        raise StackError("the documentation could not be built: the message of mkdocs is above")
    stamp.write_text(digest)


def node_environment() -> dict[str, str]:
    """Return an environment with the system's node if it is new enough, else the one of the wheel in .venv."""
    environment = dict(os.environ)
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None or _node_version(node) < LEAST_NODE:
        if not (VENV / "bin" / "npm").exists():
            raise StackError("no node is installed: run `make setup`, which brings one")
        environment["PATH"] = f"{VENV / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    return environment


def _node_version(node: str) -> tuple[int, ...]:
    result = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    numbers = result.stdout.strip().lstrip("v").split(".")[:2]
    return tuple(int(n) for n in numbers) if all(n.isdigit() for n in numbers) else (0,)


def _npm(environment: dict[str, str], *arguments: str) -> None:
    npm = shutil.which("npm", path=environment["PATH"])
    if npm is None:
        raise StackError("npm is not on the PATH: install node with npm, or run `make setup`")
    result = subprocess.run([npm, *arguments], cwd=FRONTEND, env=environment, check=False)
    if result.returncode:
        raise StackError(f"`npm {arguments[0]}` failed in {FRONTEND}: its message is above")


def _digest(paths: list[Path], *more: str) -> str:
    digest = hashlib.sha256("\0".join(more).encode())
    for path in paths:
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _version(venv: Path) -> str:
    command = [str(venv / "bin" / "python"), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def main() -> int:
    """Install what has changed. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.install")
    parser.add_argument("--extras", default="server,trainer,local", help="comma-separated")
    parser.add_argument("--dashboard", action="store_true", help="build the dashboard, too")
    parser.add_argument("--docs", action="store_true", help="build the site of the documentation, too")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        make_venv()
        install_packages(set(options.extras.split(",")))
        installed = time.monotonic()
        if options.dashboard:
            build_dashboard()
        if options.docs:
            build_docs()
    except StackError as error:
        print(f"athanor: {error}", file=sys.stderr)
        return 1
    times = {"install": installed - started, "dashboard": time.monotonic() - installed}
    TIMES.write_text(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
