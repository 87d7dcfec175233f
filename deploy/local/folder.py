"""The one folder that holds everything the stack must remember, and the lock that gives it one owner."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.errors import StackError

FORMAT = 1
LEAST_FREE_BYTES = 500 * 1024 * 1024


class DataFolder:
    """Paths below one root, which belongs to its owner alone (0700)."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.logs = self.root / "logs"
        self.run = self.root / "run"
        self.postgres = self.root / "postgres"
        self.objects = self.root / "objects"
        self.valkey = self.root / "valkey"
        self.jobs = self.root / "jobs"
        self.clusters = self.root / "clusters"  # the server's own part of clusters' configurations
        self.metrics = self.run / "metrics"  # counters of the processes, from the start of the stack on
        self.state = self.run / "state.json"
        self.credentials = self.root / "credentials.json"

    @classmethod
    def from_environment(cls) -> "DataFolder":
        """Return the folder of ATHANOR_DATA_DIR, by default `.athanor`."""
        return cls(Path(os.environ.get("ATHANOR_DATA_DIR") or ".athanor"))

    def open(self) -> None:
        """Create what is missing; refuse a folder that a newer version has written, or a disk that is full."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            raise StackError(
                f"data folder {self.root}: {error.strerror}. Own it, or set ATHANOR_DATA_DIR to a folder of yours"
            ) from error
        self._check_version()
        self.check_space()
        for folder in (self.logs, self.run, self.valkey, self.objects, self.jobs, self.clusters):
            folder.mkdir(mode=0o700, exist_ok=True)

    def _check_version(self) -> None:
        path = self.root / "version"
        if not path.exists():
            write_private(path, f"{FORMAT}\n")
            return
        text = path.read_text().strip()
        if not text.isdigit():
            raise StackError(f"{path} holds {text!r}, not a number: this is no data folder of Athanor's")
        if int(text) > FORMAT:
            raise StackError(
                f"data folder {self.root} has format {text}, this version reads up to {FORMAT}: "
                "install a newer Athanor, or set ATHANOR_DATA_DIR to another folder"
            )

    def clear_metrics(self) -> None:
        """Remove the counters of processes that have ended; a stack that starts counts from 0."""
        shutil.rmtree(self.metrics, ignore_errors=True)
        self.metrics.mkdir(mode=0o700)

    def check_space(self) -> None:
        """Raise StackError if the disk has less than LEAST_FREE_BYTES free."""
        free = shutil.disk_usage(self.root).free
        if free < LEAST_FREE_BYTES:
            raise StackError(
                f"disk of {self.root} has {free // 2**20} MB free, {LEAST_FREE_BYTES // 2**20} MB are needed: "
                "free some, or set ATHANOR_DATA_DIR to a folder on another disk"
            )

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the folder's lock. The kernel drops it with the process, however that dies."""
        with (self.run / "lock").open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StackError(
                    f"a stack already runs on {self.root}: stop it with `make down`, "
                    "or set ATHANOR_DATA_DIR to another folder"
                ) from error
            yield

    def is_owned(self) -> bool:
        """Return whether a supervisor holds the folder's lock."""
        path = self.run / "lock"
        if not path.exists():
            return False
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, never readable by others (0600), never half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError:  # such as a full disk
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, readable by its owner only."""
    write_private(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Return None without the file. A file that is not JSON is a StackError: it is never replaced."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StackError(f"{path} is not JSON ({error}): restore it from a copy, or remove it") from error
