"""`athanor` in processes forked from one that has imported it, since its imports take longer than most commands.

Reads one call a line from standard input, and answers each with its exit status when it has ended. What a call reads
and prints is in files.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from threading import Lock
from typing import Any

STREAMS = ("stdin", "stdout", "stderr")


class ForkedProgram:
    """Starts `athanor` as `subprocess.run` does: with arguments, environment, folder and standard input of its own."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, arguments: tuple[str, ...], environment: dict[str, str], folder: Path, given: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with tempfile.TemporaryDirectory() as kept:
            files = {name: Path(kept, name) for name in STREAMS}
            files["stdin"].write_text(given)
            call = {
                "arguments": arguments, "environment": environment, "folder": str(folder),
                **{name: str(path) for name, path in files.items()},
            }  # fmt: skip
            with self._turn:
                stdin.write(json.dumps(call) + "\n")
                stdin.flush()
                status = int(stdout.readline())
            printed = {name: files[name].read_text() for name in ("stdout", "stderr")}
        return subprocess.CompletedProcess(["athanor", *arguments], status, printed["stdout"], printed["stderr"])

    def close(self) -> None:
        """End the process that forks."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _serve() -> None:
    from athanor.cli.main import main

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(main, json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(main: Any, call: dict[str, Any]) -> None:
    """Become the process of a call, and end with its exit status."""
    os.environ.clear()
    os.environ.update(call["environment"])
    time.tzset()
    os.chdir(call["folder"])
    for number, name in enumerate(STREAMS):
        opened = os.open(call[name], os.O_RDONLY if name == "stdin" else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
        setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))
    sys.argv = ["athanor", *call["arguments"]]
    status = 0
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a program
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
