"""The local backend: starts shims and reads the folders of attempts."""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from athanor.backends.base import (
    LOG_PART_BYTES,
    Backend,
    BackendRejected,
    BackendUnavailable,
    ChecksHealth,
    Handle,
    ListsNodes,
    ListsOurs,
    LogPart,
    Observation,
    Phase,
    Presence,
    Submission,
    byte_cursor,
    log_part,
)
from athanor.backends.facts import HealthCheck, NodeFacts
from athanor.backends.local import folder, health_check
from athanor.backends.local.config import LocalConfig
from athanor.backends.plan import LaunchPlan
from trainer.contract import environment as names

SHIM = Path(__file__).with_name("shim.py")
# All that the processes get of the platform's own environment: where programs and libraries are, and the locale.
INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


class LocalBackend(Backend, ListsOurs, ChecksHealth, ListsNodes):
    """Runs each attempt as processes of this machine. Keyword arguments: the fields of LocalConfig."""

    configuration = LocalConfig

    def __init__(self, directory: str = "", **config: object) -> None:
        self._config = LocalConfig.model_validate({"directory": directory, **config})
        self._root = Path(self._config.directory)
        self._command = self._config.command

    def render(self, plan: LaunchPlan) -> Submission:
        """Return the command and its environment. Raise BackendRejected for several nodes, or for a different one."""
        if plan.nodes != 1:
            raise BackendRejected(f"this machine is one node; the job asks for {plan.nodes}")
        if plan.only_node not in ("", socket.gethostname()):
            raise BackendRejected(f"node {plan.only_node} is not this machine, {socket.gethostname()}")
        environment = {
            names.CACHE_DIR: str(self._root / "cache"),
            **self._config.profile.variables(plan.accelerator, plan.nodes),
            **plan.environment,
            names.NODE_INDEX: "0",
            names.WORK_DIR: str(self._root / plan.backend_name / "work"),
        }
        shown = [f"{name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
        shown += [f"{name}=<secret>" for name in sorted(plan.secrets)]
        text = " \\\n  ".join([*shown, shlex.join(self._command)])
        return Submission(plan.backend_name, text, environment, plan.secrets, payload=plan.processes_per_node)

    def submit(self, submission: Submission) -> Handle:
        """Start a shim in the attempt's folder, unless the attempt has started before."""
        place = self._root / submission.backend_name
        handle = Handle(submission.backend_name, submission.backend_name)
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            (place / "work").mkdir(exist_ok=True)
            cache = self._root / "cache"
            cache.mkdir(exist_ok=True, mode=0o700)
            cache.chmod(0o700)  # one of an older version was readable by all users of this machine
            if (place / folder.STARTED).exists():
                return handle
            (place / folder.SLOTS).write_text(str(submission.payload))
            # The shim detaches itself and takes the lock before its parent returns; a second one gives way.
            subprocess.run(
                [
                    sys.executable, "-I", str(SHIM), str(place), str(self._config.kill_after_seconds), *self._command,
                ],
                env={**_inherited(), **submission.environment, **submission.secrets},
                cwd=place / "work", stdin=subprocess.DEVNULL, check=True, timeout=15, capture_output=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise BackendUnavailable(f"the shim of {place} did not start: {said}") from error
        except (OSError, subprocess.SubprocessError) as error:
            raise BackendUnavailable(f"cannot start in {place}: {error}") from error
        return handle

    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """Read the folder of each attempt."""
        return {handle: self._observe(self._root / handle.backend_name) for handle in handles}

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Create the file `stop` or `kill` and wake the shim."""
        place = self._root / handle.backend_name
        if place.is_dir():
            (place / (folder.KILL if force else folder.STOP)).touch()
            folder.wake_shim(place)

    def logs(self, handle: Handle, cursor: str | None = None) -> LogPart:
        """Read the attempt's log from a byte offset."""
        begin = byte_cursor(cursor)
        try:
            with (self._root / handle.backend_name / folder.LOG).open("rb") as log:
                log.seek(begin)
                content = log.read(LOG_PART_BYTES)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise BackendUnavailable(f"cannot read the log of {handle.backend_name}: {error}") from error
        return log_part(content, begin)

    def list_ours(self) -> frozenset[str]:
        """Return the attempts with a live shim."""
        try:
            return frozenset(place.name for place in self._root.glob("athanor-*") if folder.is_locked(place))
        except OSError as error:
            raise BackendUnavailable(f"cannot read {self._root}: {error}") from error

    def check_health(self) -> HealthCheck:
        """Check the directory, disk, memory, cores and the agent's command."""
        return health_check.check_health(self._config, _inherited())

    def nodes(self) -> list[NodeFacts]:
        """Return this machine. Its used slots are those of the attempts that run."""
        used = sum(folder.slots(self._root / name) for name in self.list_ours())
        return [health_check.node(socket.gethostname(), used)]

    def _observe(self, place: Path) -> Observation:
        here = (socket.gethostname(),)
        try:
            if folder.is_locked(place):
                return Observation(Presence.PRESENT, "running", phase=Phase.RUNNING, nodes=here)
            ended = place / folder.EXIT
            if ended.exists():
                said = json.loads(ended.read_text())
                status = int(said["exit_status"])
                return Observation(Presence.FINISHED, "exited", said["detail"], exit_status=status, nodes=here)
            if (place / folder.STARTED).exists():
                # The shim died without a word; its agent dies with it (PR_SET_PDEATHSIG), and for certain so.
                folder.end_leftovers(place)
                return Observation(Presence.FINISHED, "vanished", "the shim process was killed", nodes=here)
        except OSError as error:
            return Observation(Presence.UNKNOWN, native_reason=str(error))
        return Observation(Presence.ABSENT)


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}
