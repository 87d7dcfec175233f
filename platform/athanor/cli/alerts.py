"""`athanor alert`: alert rules, alerts, your inbox, and what you get by mail."""

from itertools import islice
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamOption, find_row
from athanor.cli.options import AsJson, connect, read_duration
from athanor.cli.render import columns, console, print_json
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
RuleName = Annotated[str, typer.Argument(help="Name or id of the rule.", metavar="RULE")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")]
COLOURS = {"firing": "red", "pending": "yellow", "resolved": "green"}
NONE = "none"
CLOCK_HELP = "as HH:MM, or `none`"


@app.command("list")
@reports_errors
def list_alerts(
    state: Annotated[str | None, typer.Option(help="Only these: pending, firing or resolved.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List the alerts of your teams, newest first."""
    if state is not None and state not in COLOURS:
        raise CliError(ExitCode.USAGE, f"--state {state!r}: choose one of {', '.join(COLOURS)}")
    found = list(islice(connect().pages("/alerts", **({"state": state} if state else {})), limit))
    if as_json:
        print_json(found)
        return
    table = columns("state", "severity", "rule", "on", "message", "since", "resolved")
    for row in found:
        table.add_row(
            f"[{COLOURS[row['state']]}]{row['state']}[/{COLOURS[row['state']]}]", row["severity"], escape(row["rule"]),
            escape(row["subject_name"]), escape(row["message"]), moment(row["since"]), moment(row["resolved_at"]),
        )  # fmt: skip
    console.print(table if found else "No alerts.")


@app.command("rules")
@reports_errors
def list_rules(as_json: AsJson = False) -> None:
    """List the alert rules of your teams."""
    found = list(connect().pages("/alert-rules"))
    if as_json:
        print_json(found)
        return
    table = columns("id", "name", "team", "measure", "threshold", "for", "severity", "notifies", "enabled")
    for row in found:
        table.add_row(
            row["id"], escape(row["name"]), escape(row["team"]), escape(" ".join([row["measure"], row["series"]])),
            f"{row['threshold']:g}", f"{row['for_seconds']} s", row["severity"], row["recipients"],
            "yes" if row["enabled"] else "no",
        )  # fmt: skip
    console.print(table if found else "No alert rules.")


@app.command("create")
@reports_errors
def create(
    name: Annotated[str, typer.Argument(help="Name of the rule, unique in the team.", metavar="NAME")],
    measure: Annotated[
        str,
        typer.Argument(
            help="series_below, series_above, series_drop, series_spike, no_progress, queue_wait, budget_used or "
            "storage_used.",
            metavar="MEASURE",
        ),
    ],
    threshold: Annotated[
        float, typer.Argument(help="In the unit of the measure: of the series, %, or minutes.", metavar="THRESHOLD")
    ],
    series: Annotated[str | None, typer.Option(help="Series of a measure of series.")] = None,
    window: Annotated[int | None, typer.Option(help="Last points that series_drop and series_spike look at.")] = None,
    clear: Annotated[float | None, typer.Option(help="Value at which it is resolved. Default: the threshold.")] = None,
    hold: Annotated[
        str | None, typer.Option("--for", help="How long the threshold must be passed, such as 10m. Default: 0s.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Only jobs with such a name; `*` matches any characters.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only jobs with this label: KEY=VALUE. Repeatable.")] = None,
    severity: Annotated[str | None, typer.Option(help="info, warning or critical. Default: warning.")] = None,
    notify: Annotated[
        str | None, typer.Option(help="owner (of the job; administrators for a budget or storage) or team.")
    ] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Create an alert rule."""
    given = {
        "series": series, "window": window, "clear_threshold": clear, "for_seconds": read_duration("--for", hold),
        "job_name": job, "labels": _labels(label or []), "severity": severity, "recipients": notify, "team": team,
    }  # fmt: skip
    body = {"name": name, "measure": measure, "threshold": threshold}
    made = connect().post("/alert-rules", body | {field: value for field, value in given.items() if value is not None})
    if as_json:
        print_json(made)
    else:
        console.print(f"{made['id']}  {escape(made['name'])} is evaluated for team {escape(made['team'])}")


@app.command("enable")
@reports_errors
def enable(rule: RuleName) -> None:
    """Evaluate a rule again."""
    _change(rule, {"enabled": True}, "enabled")


@app.command("disable")
@reports_errors
def disable(rule: RuleName) -> None:
    """Do not evaluate a rule until it is enabled again. Its open alerts are resolved."""
    _change(rule, {"enabled": False}, "disabled")


@app.command("delete")
@reports_errors
def delete(rule: RuleName) -> None:
    """Delete a rule with its alerts. Notifications stay in the inboxes."""
    client = connect()
    found = _find(client, rule)
    client.delete(f"/alert-rules/{found['id']}")
    console.print(f"deleted {escape(found['name'])}")


@app.command("inbox")
@reports_errors
def inbox(
    unread: Annotated[bool, typer.Option("--unread", help="Only those that you have not read.")] = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your notifications, newest first."""
    rows = (row for row in connect().pages("/notifications") if not unread or row["read_at"] is None)
    found = list(islice(rows, limit))
    if as_json:
        print_json(found)
        return
    table = columns("id", "severity", "title", "text", "time", "mail")
    for row in found:
        title = escape(row["title"])
        table.add_row(
            row["id"], row["severity"], title if row["read_at"] else f"[bold]{title}[/bold]", escape(row["text"]),
            moment(row["created_at"]), escape(_mail(row)),
        )  # fmt: skip
    console.print(table if found else "No notifications.")


@app.command("read")
@reports_errors
def read(
    notification: Annotated[
        list[str] | None, typer.Argument(help="Ids of notifications. Default: all.", metavar="[ID]...")
    ] = None,
) -> None:
    """Mark notifications as read."""
    left = connect().post("/notifications:read", {"ids": notification} if notification else {})
    console.print(f"{left['unread']} unread")


@app.command("preferences")
@reports_errors
def preferences(
    mail_from: Annotated[
        str | None, typer.Option(help="Lowest severity that is mailed: info, warning, critical or never.")
    ] = None,
    time_zone: Annotated[str | None, typer.Option(help="Your time zone, such as Europe/Berlin.")] = None,
    quiet_from: Annotated[str | None, typer.Option(help=f"Start of your quiet hours, {CLOCK_HELP}.")] = None,
    quiet_until: Annotated[str | None, typer.Option(help=f"End of your quiet hours, {CLOCK_HELP}.")] = None,
    digest_at: Annotated[str | None, typer.Option(help=f"Time of one mail a day, {CLOCK_HELP}.")] = None,
    critical_immediately: Annotated[
        bool | None,
        typer.Option(
            "--critical-immediately/--critical-waits",
            help="Whether critical alerts wait neither for the digest nor for the end of quiet hours.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what you get by mail and when, after the changes that are given."""
    given = {
        "mail_from": mail_from, "time_zone": time_zone, "quiet_from": quiet_from, "quiet_until": quiet_until,
        "digest_at": digest_at, "critical_immediately": critical_immediately,
    }  # fmt: skip
    changes = {field: None if value == NONE else value for field, value in given.items() if value is not None}
    client = connect()
    path = "/notification-preferences"
    found = client.patch(path, changes) if changes else client.get(path)
    if as_json:
        print_json(found)
        return
    table = columns("preference", "value")
    for field, value in found.items():
        table.add_row(field, escape(NONE if value in (None, "") else str(value)))
    console.print(table)


def _find(client: Client, rule: str) -> Any:
    return find_row(client.pages("/alert-rules"), rule, ["name"], "alert rule", "athanor alert rules")


def _change(rule: str, changes: dict[str, Any], done: str) -> None:
    client = connect()
    changed = client.patch(f"/alert-rules/{_find(client, rule)['id']}", changes)
    console.print(f"{escape(changed['name'])}: {done}")


def _labels(given: list[str]) -> dict[str, str] | None:
    pairs = [label.partition("=") for label in given]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise CliError(ExitCode.USAGE, f"--label {key!r}: write KEY=VALUE")
    return {key: value for key, _, value in pairs} or None


def _mail(row: dict[str, Any]) -> str:
    if row["mail_state"] is None:
        return f"at {moment(row['mail_at'])}" if row["mail_at"] else "-"
    return str(row["mail_state"] + (f": {row['mail_error']}" if row["mail_error"] else ""))
