"""The preflight of a node without a job: started by a backend, without a token, and reported in the output alone."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from trainer.agent.reachability import check_addresses
from trainer.contract import environment as names
from trainer.contract.preflight import PreflightReport, report_line
from trainer.contract.run import EXIT_STATUS, EndClass

LIMIT_SECONDS = 240.0
"""For starting the ranks and measuring, which has a limit of its own (`PREFLIGHT_SECONDS`)."""
LOOPBACK = "127.0.0.1"


def measure_node(ranks: int, work: Path) -> int:
    """Measure this node with `ranks` processes, see whether it reaches PREFLIGHT_ADDRESSES, and print the report.

    Return the exit status: 0, that of `node_unfit` if something is broken, or without a report that of `hang` or
    `internal_error`.

    The ranks stay in this process's group, which what started it ends as one.
    """
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "trainer", "preflight", "--json", "--folder", str(work)]
    variables = {
        **os.environ, "TORCHELASTIC_RUN_ID": "preflight", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(_free_port()),
    }  # fmt: skip
    started = [
        subprocess.Popen(
            command, env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        output, _ = started[0].communicate(timeout=LIMIT_SECONDS)
        report = PreflightReport.model_validate_json(output)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"the preflight has not ended within {LIMIT_SECONDS:.0f} s\n")
        return EXIT_STATUS[EndClass.HANG]
    except ValueError:
        sys.stderr.write("the first rank has ended without a report\n")
        return EXIT_STATUS[EndClass.INTERNAL_ERROR]
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
    findings = check_addresses(os.environ.get(names.PREFLIGHT_ADDRESSES, "{}"))
    report = report.model_copy(update={"findings": [*report.findings, *findings]})
    sys.stdout.write(report_line(report) + "\n")
    sys.stdout.flush()
    return EXIT_STATUS[EndClass.NODE_UNFIT if report.result == "broken" else EndClass.COMPLETED]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
