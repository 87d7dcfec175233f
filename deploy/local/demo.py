"""`make demo`: from a running machine to a trained, sealed, downloaded model, and proof that each part happened."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json
from deploy.local.install import REPOSITORY, TIMES

PRESET = "demo"
PROMPT = "def "
SAMPLE_TOKENS = 120
WAIT_SECONDS = 1800.0
console = Console(highlight=False)


@dataclass
class Times:
    """Rows of the closing table: what took how many seconds, in order."""

    rows: list[tuple[str, float]] = field(default_factory=list)

    def add(self, name: str, seconds: float | None) -> None:
        """Add a row. None: nothing was measured."""
        if seconds is not None:
            self.rows.append((name, seconds))


class Cli:
    """The `athanor` command as a person would run it, with the demo's own server and token."""

    def __init__(self, url: str, token: str) -> None:
        self._environment = {**os.environ, "ATHANOR_URL": url, "ATHANOR_TOKEN": token}
        self._command = [str(Path(sys.executable).with_name("athanor"))]

    def output(self, *arguments: str) -> str:
        """Run a command. Return its output. Raises StackError if it fails."""
        command = [*self._command, *arguments]
        result = subprocess.run(command, env=self._environment, stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode:
            raise StackError(f"`athanor {arguments[0]}` ended with exit code {result.returncode}")
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """Run a command with --json. Return its output. Raises StackError if it fails."""
        return json.loads(self.output(*arguments, "--json"))

    def show(self, *arguments: str) -> int:
        """Run it on this terminal; the exit code."""
        return subprocess.run([*self._command, *arguments], env=self._environment, check=False).returncode


def main() -> int:
    """Run the demo. Return the exit code."""
    folder = DataFolder.from_environment()
    try:
        _demonstrate(folder)
    except StackError as error:
        console.print(Text(error.log))
        console.print(f"[red]demo failed:[/red] {error}", soft_wrap=True)
        console.print("logs: .venv/bin/python -m deploy.local logs    stop the stack: make down")
        return 1
    except KeyboardInterrupt:
        console.print("\ninterrupted; the stack continues in the background: `make down` stops it")
        return 130
    return 0


def _demonstrate(folder: DataFolder) -> None:
    times = Times()
    setup = read_json(TIMES) or {}
    times.add("install packages", setup.get("install"))
    times.add("build dashboard", setup.get("dashboard"))
    _, seconds = _timed(start_stack)
    times.add("boot the stack", seconds)
    credentials = read_json(folder.credentials)
    if credentials is None:
        raise StackError(f"{folder.credentials} is not there although the stack is up: run `make down`, `make demo`")
    cli = Cli(credentials["url"], credentials["token"])

    submitted = cli.json("submit", "--preset", PRESET)
    console.print(
        f"\nsubmitted [bold]{submitted['name']}[/bold] ({submitted['id']}); live at "
        f"{credentials['url']}/jobs/{submitted['id']}\n",
        soft_wrap=True,
    )
    began = time.monotonic()
    code = cli.show("watch", submitted["id"], "--timeout", str(WAIT_SECONDS))
    run_seconds = time.monotonic() - began
    job = cli.json("show", submitted["id"])
    _check_job(job, code)
    _add_job_times(times, job, run_seconds)

    target = folder.root / "models" / job["id"]
    target.parent.mkdir(mode=0o700, exist_ok=True)
    download, seconds = _timed(lambda: cli.json("download", job["id"], "--output", str(target)))
    times.add("download and decrypt", seconds)
    _check_files(download, target)
    sample, seconds = _timed(
        lambda: cli.json("generate", str(target), "--prompt", PROMPT, "--tokens", str(SAMPLE_TOKENS))
    )
    times.add("generate a sample", seconds)
    text = sample["text"]
    if not text.removeprefix(PROMPT).strip():
        raise StackError(f"the model in {target} generated no text")
    _report(folder, credentials, job, target, text, times)


def start_stack() -> None:
    """Start the stack in the background. Raises StackError if it does not start."""
    command = [sys.executable, "-m", "deploy.local", "up", "--background"]
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        raise StackError("the stack did not start: see above")


def _timed(work: Any) -> tuple[Any, float]:
    began = time.monotonic()
    result = work()
    return result, time.monotonic() - began


def _check_job(job: dict[str, Any], watch_code: int) -> None:
    if watch_code != 0 or job["status"] != "succeeded":
        reason = (job.get("reason") or {}).get("code", "")
        raise StackError(f"job {job['id']} is {job['status']} {reason}: see `athanor logs {job['id']}`")
    losses = job.get("validation_loss") or {}
    before, after = losses.get("before"), losses.get("after")
    if before is None or after is None or not after < before:
        raise StackError(f"the validation loss did not fall: {before} before, {after} after")


def _check_files(download: dict[str, Any], target: Path) -> None:
    """Every file the platform lists is here with its size, and the weights open as safetensors."""
    for file in download["files"]:
        path = target / file["path"]
        if not path.is_file() or path.stat().st_size != file["size"]:
            raise StackError(f"{path} is missing or has not the size the platform lists ({file['size']} bytes)")
    weights = [target / file["path"] for file in download["files"] if file["path"].endswith(".safetensors")]
    if not weights:
        raise StackError(f"{target} holds no .safetensors file")
    for path in weights:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(length)) if length < path.stat().st_size else {}
        if not any(name != "__metadata__" for name in header):
            raise StackError(f"{path} holds no tensor")


def _add_job_times(times: Times, job: dict[str, Any], run_seconds: float) -> None:
    """Add the times that the platform reports for the run, and the whole as seen here."""
    known = job["timings"]
    times.add("queue", known["queued_seconds"])
    for phase, seconds in known["startup"].items():
        times.add(f"start-up: {phase}", seconds)
    for activity in ("training", "evaluation", "checkpoint", "export", "finishing"):
        times.add(activity, known[f"{activity}_seconds"])
    times.add("(submit to end, by the platform)", known["total_seconds"])
    times.add("(submit to end, as seen here)", run_seconds)


def _report(
    folder: DataFolder, credentials: dict[str, Any], job: dict[str, Any], target: Path, text: str, times: Times
) -> None:
    losses = job["validation_loss"]
    console.print(Panel(Text(text), title="a sample from the model", title_align="left"))
    console.print(f"validation loss: {losses['before']:.4f} before, [bold]{losses['after']:.4f}[/bold] after")
    table = Table(title="where the time went", title_justify="left", box=None, header_style="bold")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    for name, seconds in times.rows:
        table.add_row(name, f"{seconds:.1f}")
    console.print(table)
    console.print(f"model:      {target}", soft_wrap=True)
    console.print(f"dashboard:  {credentials['url']}/jobs/{job['id']}", soft_wrap=True)
    console.print(f"login:      {credentials['username']} / {credentials['password']}")
    console.print(f"stack:      runs in the background, data in {folder.root}; `make down` stops it", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
