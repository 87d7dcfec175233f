"""Start preflights of nodes outside jobs, wait for them, and print them."""

import time
from collections.abc import Collection, Iterable
from typing import Any

from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode
from athanor.cli.render import console
from athanor.cli.times import moment
from trainer.contract.preflight import PreflightReport, format_report

POLL_SECONDS = 2.0


def free_node(client: Client, cluster: str, accelerators: Collection[str]) -> str:
    """Return a node with one of the accelerators that is ready and runs nothing. Raises CliError if there is none.

    `cluster`: its path in the API.
    """
    for node in client.pages(f"{cluster}/nodes", state="ready"):
        has_pool = (node["accelerator"] or "cpu") in accelerators
        if has_pool and node["listed"] and not node["slots_used"]:
            return str(node["name"])
    kinds = ", ".join(sorted(accelerators)) or "no pool"
    raise CliError(
        ExitCode.JOB_FAILED,
        f"no node ({kinds}) is ready and free to be tested; see `athanor cluster nodes`, then run "
        "`athanor preflight --cluster CLUSTER`",
    )


def measure(client: Client, node: str) -> list[Any]:
    """Start a preflight of a node and wait for its end. Return it and the earlier ones, the newest first.

    `node`: its path in the API.
    """
    identifier = client.post(f"{node}:preflight")["id"]
    while True:
        found: list[Any] = client.get(f"{node}/preflights")["items"]
        if any(row["id"] == identifier and row["outcome"] for row in found):
            return found
        time.sleep(POLL_SECONDS)  # between two questions to the API, which has no stream of preflights


def print_preflights(rows: Iterable[Any]) -> None:
    """Print each with its report, if it has one."""
    for row in rows:
        by = f"started by {row['actor']}" if row["actor"] else f"started after an {row['cause']}"
        by = "at the interval of its cluster" if row["cause"] == "interval" else by
        console.print(f"{moment(row['created_at'])}, {by}: {row['outcome'] or 'running'}", highlight=False)
        if row["detail"]:
            console.print(escape(row["detail"]), soft_wrap=True, highlight=False)
        if row["report"]:
            print_report(row["report"])


def print_report(row: Any) -> None:
    """Print the report of a preflight."""
    for line in format_report(PreflightReport.model_validate(row)):
        console.print(escape(line), soft_wrap=True, highlight=False)
