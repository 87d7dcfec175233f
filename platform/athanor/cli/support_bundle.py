"""`athanor support-bundle`: one file with what somebody needs who looks into a problem, without secrets."""

import io
import json
import platform
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from athanor.cli.client import ApiError, Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import connect, find_job
from athanor.cli.redaction import redact, redact_text
from athanor.cli.render import console
from athanor.cli.settings import read_account

MAX_ITEMS = 2_000  # of a list
MAX_LOG_LINES = 20_000
EVENTS_OF_A_PAGE = 500
NOTICE = """Made by `athanor support-bundle`. manifest.json lists the files, those of which only
the first items or the last lines are here, and what could not be read.

Secrets were replaced by *** where a name beside them or their form shows what they are. Read the files before you send
them: a secret in other text, names of people and projects, and the content of log lines may still be there.
"""


class Bundle:
    """Files by name, redacted as they are added, and what could not be read."""

    def __init__(self, client: Client, known_secrets: list[str]) -> None:
        self._client, self._known = client, known_secrets
        self.files: dict[str, bytes] = {}
        self.problems: list[dict[str, str]] = []
        self.cut: list[str] = []

    def add(self, name: str, read: Callable[[], Any]) -> Any:
        """Add what `read` returns, as JSON. Return it, or None if the server refuses it, which the manifest shows."""
        try:
            found = read()
        except ApiError as error:
            self.problems.append({"file": name, "code": error.code, "status": str(error.status)})
            return None
        self.files[name] = json.dumps(redact(found, self._known), indent=1, ensure_ascii=False).encode()
        return found

    def get(self, name: str, path: str, **params: Any) -> Any:
        """Add the answer to GET."""
        return self.add(name, lambda: self._client.get(path, **params))

    def list_all(self, name: str, path: str, **params: Any) -> Any:
        """Add the first MAX_ITEMS items of a list."""
        return self.add(name, lambda: self._first(name, self._client.pages(path, **params)))

    def add_log(self, name: str, lines: Iterator[bytes]) -> None:
        """Add the last MAX_LOG_LINES lines of a log."""
        last: deque[bytes] = deque(maxlen=MAX_LOG_LINES)
        try:
            for line in lines:
                if len(last) == MAX_LOG_LINES and name not in self.cut:
                    self.cut.append(name)
                last.append(line)
        except ApiError as error:
            self.problems.append({"file": name, "code": error.code, "status": str(error.status)})
            return
        text = b"".join(last).decode("utf-8", "replace")
        self.files[name] = redact_text(text, self._known).encode()

    def add_events(self, name: str, path: str) -> None:
        """Add the first MAX_ITEMS events of a job."""
        self.add(name, lambda: self._first(name, _events(self._client, path)))

    def _first(self, name: str, items: Iterator[Any]) -> list[Any]:
        found = list(islice(items, MAX_ITEMS + 1))
        if len(found) > MAX_ITEMS:
            self.cut.append(name)
        return found[:MAX_ITEMS]

    def write(self, target: Path, requested: dict[str, Any]) -> None:
        """Write the archive, readable by its owner alone. Raises CliError if the file exists or cannot be written."""
        manifest = {
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "athanor": version("athanor"),
            "python": platform.python_version(),
            "system": platform.platform(),
            "requested": requested,
            "files": {name: len(content) for name, content in sorted(self.files.items())},
            "cut": self.cut,
            "not_read": self.problems,
        }
        self.files = {
            "README.txt": NOTICE.encode(),
            "manifest.json": json.dumps(manifest, indent=1).encode(),
            **self.files,
        }
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for name, content in self.files.items():
                entry = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mode = len(content), 0o600
                tar.addfile(entry, io.BytesIO(content))
        try:
            target.touch(mode=0o600, exist_ok=False)
            target.write_bytes(archive.getvalue())
        except OSError as error:
            raise CliError(
                ExitCode.USAGE, f"--output {target}: {error.strerror or error}: name another file"
            ) from error


@reports_errors
def support_bundle(
    job: Annotated[
        str | None,
        typer.Argument(help="A job to look into: its name, or the beginning or end of its id.", metavar="JOB"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: athanor-support-TIME.tar.gz.")
    ] = None,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="Include the log lines of the job.")] = True,
) -> None:
    """Write what is needed to look into a problem to one file, without secrets.

    Of a JOB: its spec, attempts, events, metrics, system series, preflights and log. Of the platform: what your token
    may read of queue, clusters, nodes, health checks and background work. Passwords, keys and tokens are replaced; no
    model, checkpoint or data is included. Nothing is sent: read the file, then send it yourself.
    """
    client = connect()
    job_id = find_job(client, job) if job is not None else None
    target = output or Path(f"athanor-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    bundle = Bundle(client, [read_account().token])
    if job_id is not None:
        _add_job(bundle, client, job_id, logs)
    _add_platform(bundle)
    bundle.write(target, {"job": job_id, "logs": logs, "command": "support-bundle"})
    console.print(f"{target}: {len(bundle.files)} files, {target.stat().st_size:,} bytes")
    for problem in bundle.problems:
        console.print(f"not included: {problem['file']} ({problem['code']})", style="dim")
    print("Read it before you send it: names and log lines are in it.", file=sys.stderr)


def _add_job(bundle: Bundle, client: Client, job_id: str, logs: bool) -> None:
    path = f"/jobs/{job_id}"
    job = bundle.get("job/job.json", path)
    for name in ("timeline", "goodput", "cost", "metrics", "system"):
        bundle.get(f"job/{name}.json", f"{path}/{name}")
    for name in ("checkpoints", "artifacts"):
        bundle.list_all(f"job/{name}.json", f"{path}/{name}")
    bundle.get("job/preflights.json", f"{path}/preflights")
    bundle.add_events("job/events.json", f"{path}/events")
    if not logs:
        return
    bundle.add_log("job/log.txt", client.lines(f"{path}/logs:download"))
    for attempt in (job or {}).get("attempts", []):
        number = attempt["number"]
        bundle.get(f"job/output-{number}.json", f"{path}/attempts/{number}/output")


def _add_platform(bundle: Bundle) -> None:
    bundle.get("platform/queue.json", "/queue")
    bundle.get("platform/quotas.json", "/quotas")
    bundle.get("platform/admission-settings.json", "/quotas/settings")
    bundle.get("platform/reconcilers.json", "/admin/sweepers")
    clusters = bundle.list_all("platform/clusters.json", "/clusters") or []
    for cluster in clusters:
        folder, path = f"platform/clusters/{cluster['name']}", f"/clusters/{cluster['id']}"
        bundle.get(f"{folder}/cluster.json", path)
        bundle.list_all(f"{folder}/nodes.json", f"{path}/nodes")
        bundle.get(f"{folder}/health-checks.json", f"{path}/probes")
        bundle.get(f"{folder}/attempts.json", f"{path}/queue")


def _events(client: Client, path: str) -> Iterator[Any]:
    after: int | None = None
    while True:
        page = client.get(path, after=after, limit=EVENTS_OF_A_PAGE)
        yield from page["items"]
        if not page["items"]:
            return
        after = page["next_after"]
