"""Options shared by several commands."""

from typing import Annotated

import typer

from athanor.cli.client import Client
from athanor.cli.settings import read_account

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JobIds = Annotated[list[str], typer.Argument(help="Ids of jobs, job_...", metavar="JOB...")]
JobId = Annotated[str, typer.Argument(help="The job's id, job_...", metavar="JOB")]


def connect() -> Client:
    """Return a client for the account that is logged in."""
    return Client(read_account())
