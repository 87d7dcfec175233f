"""`athanor simulate`: replay jobs under other quotas, pools or settings.

A scenario file is simulated locally by the policy that admission uses; the history of real jobs is simulated by the
server and needs a platform role.
"""

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.render import console, duration, print_json
from athanor.cli.spec_file import read_spec
from athanor.scheduling.simulator.engine import simulate as run
from athanor.scheduling.simulator.report import Figures, Report, build_report
from athanor.scheduling.simulator.scenario import Scenario

POLL_SECONDS = 2.0


@reports_errors
def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario: tree, pools, settings, and jobs (docs/operations/simulator.md).")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="A second scenario: replay the first one's jobs on its tree, pools and settings too."),
    ] = None,
    history: Annotated[
        str | None, typer.Option(help="Instead of a scenario: replay the server's last N days, such as 30d.")
    ] = None,
    tree: Annotated[
        Path | None, typer.Option(help="With --history: the proposed tree, as `athanor quota show --yaml` prints it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay jobs against a quota tree: waits, preemptions, utilisation and fairness per team."""
    if (scenario is None) == (history is None):
        raise CliError(ExitCode.USAGE, "give either a scenario file or --history 30d")
    if history is not None:
        reports = _real(history, tree)
    else:
        assert scenario is not None
        reports = _tried(scenario, compare)
    if as_json:
        print_json({name: found.model_dump(mode="json") for name, found in reports.items()})
        return
    for name, found in reports.items():
        print_report(name, found)


def _tried(scenario: Path, compare: Path | None) -> dict[str, Report]:
    first = _read(scenario)
    reports = {scenario.name: _run(first, first, scenario)}
    if compare is not None:
        name = compare.name if compare.name != scenario.name else str(compare)
        reports[name] = _run(_read(compare), first, compare)
    return reports


def _real(history: str, tree: Path | None) -> dict[str, Report]:
    days = re.fullmatch(r"(\d+)d", history)
    if days is None:
        raise CliError(ExitCode.USAGE, f"--history {history!r}: write a number of days, as in 30d")
    body: dict[str, Any] = {"history_days": int(days[1])}
    if tree is not None:
        body |= {"name": tree.name[:100], **read_spec(tree)}
    client = connect()
    found = client.post("/simulations", body)
    while found["state"] in ("waiting", "running"):
        time.sleep(POLL_SECONDS)
        found = client.get(f"/simulations/{found['id']}")
    if found["state"] == "failed":
        raise CliError(ExitCode.JOB_FAILED, f"{found['id']}: {found['error']}")
    return {name: Report.model_validate(one) for name, one in found["result"].items() if one is not None}


def _read(path: Path) -> Scenario:
    try:
        return Scenario.model_validate(read_spec(path))
    except ValidationError as error:
        lines = [f"{_place(one['loc'])}{one['msg'].removeprefix('Value error, ')}" for one in error.errors()]
        raise CliError(ExitCode.USAGE, f"{path} is no scenario:", lines) from error


def _place(parts: tuple[int | str, ...]) -> str:
    return f"{'.'.join(str(part) for part in parts)}: " if parts else ""


def _run(plan: Scenario, jobs: Scenario, path: Path) -> Report:
    try:
        return build_report(run(plan.plan(), jobs.past()))
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error}") from error


def print_report(name: str, found: Report) -> None:
    """Print the figures of a simulation, by team and in total."""
    console.print(
        f"[bold]{escape(name)}[/bold]: {found.all.jobs} jobs in {found.days:.1f} days, "
        f"utilisation {found.utilisation:.1%}, fairness {found.fairness:.3f}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("team")
    columns = ("jobs", "mean wait", "p50", "p90", "p99", "preempted", "lost", "used", "running", "longest queue")
    for column in columns:
        table.add_column(column, justify="right")
    for team, figures in [*found.teams.items(), ("all", found.all)]:
        table.add_row(escape(team), *_row(figures))
    console.print(table)
    for pool, of in found.pools.items():
        console.print(
            f"{escape(pool)}: {of.slots} slots, {of.used_slot_hours:.0f} slot-hours, {of.utilisation:.1%} used"
        )


def _row(figures: Figures) -> list[str]:
    waits = figures.waits_seconds
    never = figures.jobs - figures.started
    return [
        f"{figures.jobs}{f' ({never} never start)' if never else ''}",
        *(duration(seconds) for seconds in (waits.mean, waits.p50, waits.p90, waits.p99)),
        str(figures.preemptions),
        f"{figures.lost_slot_hours:.0f} h",
        f"{figures.used_slot_hours:.0f} h",
        f"{figures.running_share:.1%}",
        str(figures.longest_queue),
    ]
