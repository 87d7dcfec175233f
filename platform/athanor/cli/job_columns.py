"""Columns of `athanor list --columns`, by the names that the address of the dashboard's jobs table has."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from athanor.cli.errors import CliError, ExitCode
from athanor.cli.render import columns, duration, number, progress_of, status_text
from athanor.cli.times import moment

SPEC = "spec."
Value = Callable[[Any], str]


def _mean_rate(job: Any) -> str:
    progress = progress_of(job)
    mean = progress.get("mean_tokens_per_second")
    return number(progress.get("tokens_per_second") if mean is None else mean, ",.0f")


def _validation_loss(job: Any) -> str:
    after = (job.get("validation_loss") or {}).get("after")
    return number(progress_of(job).get("validation_loss") if after is None else after, ".4f")


def _ran(job: Any) -> str:
    """Return how long all attempts of the job ran together."""
    since = job["running_since"]
    current = (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds() if since else 0.0
    return duration(job["ran_seconds"] + max(0.0, current)) if since or job["ran_seconds"] else "-"


# By id: the heading and the value. frontend/src/features/jobs/lib/columns.tsx has the same ids.
COLUMNS: dict[str, tuple[str, Value]] = {
    "loss": ("training loss", lambda job: number(progress_of(job).get("loss"), ".4f")),
    "validation_loss": ("validation loss", _validation_loss),
    "mean_rate": ("tokens/s, mean", _mean_rate),
    "rate": ("tokens/s, newest", lambda job: number(progress_of(job).get("tokens_per_second"), ",.0f")),
    "mfu": ("MFU, mean", lambda job: number(progress_of(job).get("mean_mfu"), ".1%")),
    "tokens": ("tokens", lambda job: number(progress_of(job).get("tokens_seen"), ",.0f")),
    "ran": ("ran for", _ran),
    "submitted": ("submitted", lambda job: moment(job["created_at"])),
    "person": ("submitted by", lambda job: str(job["created_by"])),
    "cluster": ("cluster", lambda job: str(job["cluster"])),
    "priority": ("priority", lambda job: str(job["priority"])),
    "attempts": ("attempts", lambda job: str(job["attempt_count"])),
    "labels": ("labels", lambda job: ", ".join(f"{key}={value}" for key, value in job["labels"].items()) or "-"),
}


def read_columns(text: str | None) -> list[str] | None:
    """Return the ids in a comma-separated option. Raises CliError naming one that does not exist."""
    if text is None:
        return None
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in COLUMNS and (not name.startswith(SPEC) or name == SPEC):
            known = ", ".join(COLUMNS)
            raise CliError(ExitCode.USAGE, f"--columns {name!r}: choose of {known}, or {SPEC}PATH of the resolved spec")
    return chosen


def reads_spec(chosen: Sequence[str] | None) -> bool:
    """Return whether a column shows a field of the spec."""
    return any(name.startswith(SPEC) for name in chosen or ())


def chosen_table(jobs: Sequence[Any], chosen: Sequence[str]) -> Table:
    """Return a table of jobs with their ids, names, states and these columns."""
    known = {name: COLUMNS[name] if name in COLUMNS else (name.removeprefix(SPEC), _of_spec(name)) for name in chosen}
    table = columns("id", "name", "status", *(heading for heading, _ in known.values()))
    for job in jobs:
        values = (escape(value(job)) for _, value in known.values())
        table.add_row(job["id"], escape(job["name"]), status_text(job), *values)
    return table


def _of_spec(name: str) -> Value:
    path = name.removeprefix(SPEC).split(".")

    def value(job: Any) -> str:
        found: Any = job.get("resolved_spec")
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            return "-"
        return found if isinstance(found, str) else json.dumps(found)

    return value
