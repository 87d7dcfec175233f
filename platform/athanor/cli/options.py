"""Options shared by several commands."""

import re
from itertools import islice
from typing import Annotated

import typer

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode
from athanor.cli.settings import read_account
from athanor.cli.times import moment
from trainer.contract.units import parse_duration

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JobIds = Annotated[list[str], typer.Argument(help="Names of jobs, or beginnings or ends of ids.", metavar="JOB...")]
JobId = Annotated[str, typer.Argument(help="The job's name, or the beginning or end of its id.", metavar="JOB")]
COMPLETE_ID = re.compile(r"job_[0-9A-Z]{26}")
MAX_SEARCHED = 1000  # jobs that match a part of the name
MAX_LISTED = 5


def find_job(client: Client, text: str) -> str:
    """Return the id of the job with this name, or with an id that begins or ends with this text.

    Raises CliError if there is none, or more than one.
    """
    if COMPLETE_ID.fullmatch(text):
        return text
    matches = islice(client.pages("/jobs", q=text, fields="id,name,status,created_at"), MAX_SEARCHED)
    found = [job for job in matches if job["name"] == text or _is_part(text, job["id"])]
    if len(found) == 1:
        return str(found[0]["id"])
    if not found:
        raise CliError(
            ExitCode.NOT_FOUND, f"no job has the name {text!r} or an id like it; `athanor list` shows names and ids"
        )
    listed = "; ".join(f"{job['id']} ({job['status']}, {moment(job['created_at'])})" for job in found[:MAX_LISTED])
    more = f"; and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    raise CliError(ExitCode.NOT_FOUND, f"{len(found)} jobs match {text!r}, give an id: {listed}{more}")


def _is_part(text: str, job_id: str) -> bool:
    return job_id.startswith(text) or job_id.endswith(text.upper())


def read_duration(option: str, text: str | None) -> int | None:
    """Return the seconds of an option such as `1d 12h`. Raises CliError naming the option."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{option}: {error}") from error


def read_units(option: str, text: str | None, unit_seconds: int, unit: str, example: str) -> int | None:
    """Return a duration in whole units of the API. Raises CliError naming the option if it is no multiple of one."""
    seconds = read_duration(option, text)
    if seconds is None:
        return None
    count, rest = divmod(seconds, unit_seconds)
    if rest or not count:
        raise CliError(ExitCode.USAGE, f"{option} {text!r}: give whole {unit}, such as {example}")
    return count


def connect() -> Client:
    """Return a client for the account that is logged in."""
    return Client(read_account())
