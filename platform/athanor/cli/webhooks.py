"""`athanor webhook`: addresses that a team's events are sent to, and their deliveries."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamOption, find_row
from athanor.cli.options import AsJson, connect, read_duration
from athanor.cli.render import columns, console, note, print_json
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
WebhookName = Annotated[str, typer.Argument(help="Name, address or id of the webhook.", metavar="WEBHOOK")]
TEST_SECONDS, POLL_SECONDS = 30.0, 0.5  # a receiver has 15 s to answer
COLOURS = {"delivered": "green", "failed": "red", "pending": "yellow"}


@app.command("list")
@reports_errors
def list_webhooks(as_json: AsJson = False) -> None:
    """List the webhooks of the teams of which you are an administrator."""
    found = list(connect().pages("/webhooks"))
    if as_json:
        print_json(found)
        return
    table = columns("id", "name", "team", "address", "types", "state")
    for row in found:
        table.add_row(
            row["id"], escape(row["name"]), escape(row["team"]), escape(row["url"]),
            escape(", ".join(row["types"]) or "all"), escape(_state(row)),
        )  # fmt: skip
    console.print(table)


@app.command("create")
@reports_errors
def create(
    url: Annotated[str, typer.Argument(help="Address that events are sent to.", metavar="URL")],
    name: Annotated[str | None, typer.Option(help="Name by which to recognise it.")] = None,
    event_type: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only events of this type and those below it: job.status.failed. Repeatable."),
    ] = None,
    slack: Annotated[
        bool, typer.Option("--slack", help='Send {"text": ...}, for incoming webhooks of Slack and compatible servers.')
    ] = False,
    open_lineage: Annotated[
        bool, typer.Option("--openlineage", help="Send run events of OpenLineage, for a catalogue of data.")
    ] = False,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and print its signing secret, alone on standard output; it is not shown again."""
    if slack and open_lineage:
        raise CliError(ExitCode.USAGE, "give either --slack or --openlineage: a webhook has one format")
    chosen = "slack" if slack else "openlineage" if open_lineage else None
    given = {"url": url, "name": name, "types": event_type, "team": team, "format": chosen}
    body = {field: value for field, value in given.items() if value}
    _print_secret(connect().post("/webhooks", body), as_json=as_json)


@app.command("enable")
@reports_errors
def enable(webhook: WebhookName, as_json: AsJson = False) -> None:
    """Send events from now on again."""
    _set_enabled(webhook, enabled=True, as_json=as_json)


@app.command("disable")
@reports_errors
def disable(webhook: WebhookName, as_json: AsJson = False) -> None:
    """Send no events until the webhook is enabled again."""
    _set_enabled(webhook, enabled=False, as_json=as_json)


@app.command("test")
@reports_errors
def test(webhook: WebhookName, as_json: AsJson = False) -> None:
    """Send a test event and show what the receiver answered. Exits with 1 if it was not delivered."""
    client = connect()
    sent = client.post(f"{_path(client, webhook)}:test")
    give_up_at = time.monotonic() + TEST_SECONDS
    while sent["state"] == "pending" and not sent["log"] and time.monotonic() < give_up_at:
        time.sleep(POLL_SECONDS)
        sent = client.get(f"/deliveries/{sent['id']}")
    if as_json:
        print_json(sent)
    else:
        console.print(f"{sent['id']}: {_coloured(sent['state'])}  {escape(_answer(sent))}", soft_wrap=True)
    raise typer.Exit(ExitCode.OK if sent["state"] == "delivered" else ExitCode.JOB_FAILED)


@app.command("rotate-secret")
@reports_errors
def rotate_secret(
    webhook: WebhookName,
    overlap: Annotated[
        str | None, typer.Option(help="How long the old secret signs as well, at most 7d. Default: 1d.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace the signing secret and print the new one, alone on standard output; it is not shown again."""
    seconds = read_duration("--overlap", overlap)
    client = connect()
    body = {} if seconds is None else {"overlap_seconds": seconds}
    _print_secret(client.post(f"{_path(client, webhook)}:rotate_secret", body), as_json=as_json)


@app.command("deliveries")
@reports_errors
def deliveries(
    webhook: WebhookName,
    state: Annotated[str | None, typer.Option(help="Only these: pending, delivered or failed.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    as_json: AsJson = False,
) -> None:
    """List the deliveries of a webhook, newest first. Completed ones are deleted after 30 days."""
    if state is not None and state not in COLOURS:
        raise CliError(ExitCode.USAGE, f"--state {state!r}: choose one of {', '.join(COLOURS)}")
    client = connect()
    found = list(islice(_deliveries(client, _path(client, webhook), state), limit))
    if as_json:
        print_json(found)
        return
    table = columns("id", "event", "state", "tries", "answer", "created", "next try")
    for row in found:
        table.add_row(
            row["id"], escape(row["event_type"]), _coloured(row["state"]), str(row["tries"]), escape(_answer(row)),
            moment(row["created_at"]), moment(row["next_try_at"]),
        )  # fmt: skip
    console.print(table if found else "No deliveries.")


@app.command("redeliver")
@reports_errors
def redeliver(
    delivery: Annotated[str, typer.Argument(help="Id, as in `athanor webhook deliveries`.", metavar="DELIVERY")],
    as_json: AsJson = False,
) -> None:
    """Send a delivery again, with the same body, whether it was delivered or not."""
    sent = connect().post(f"/deliveries/{delivery}:redeliver")
    if as_json:
        print_json(sent)
    else:
        console.print(f"{sent['id']} is sent again: {_coloured(sent['state'])}")


@app.command("delete")
@reports_errors
def delete(webhook: WebhookName) -> None:
    """Delete a webhook with its deliveries."""
    client = connect()
    found = _find(client, webhook)
    client.delete(f"/webhooks/{found['id']}")
    console.print(f"deleted {escape(found['name'] or found['url'])}")


def _set_enabled(webhook: str, *, enabled: bool, as_json: bool) -> None:
    client = connect()
    changed = client.patch(_path(client, webhook), {"enabled": enabled})
    if as_json:
        print_json(changed)
    else:
        console.print(f"{escape(changed['name'] or changed['url'])}: {escape(_state(changed))}")


def _find(client: Client, webhook: str) -> Any:
    return find_row(client.pages("/webhooks"), webhook, ["name", "url"], "webhook", "athanor webhook list")


def _path(client: Client, webhook: str) -> str:
    return f"/webhooks/{_find(client, webhook)['id']}"


def _deliveries(client: Client, path: str, state: str | None) -> Iterator[dict[str, Any]]:
    return (row for row in client.pages(f"{path}/deliveries") if state in (None, row["state"]))


def _print_secret(made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    note(f"{made['id']} sends {', '.join(made['types']) or 'all events'} to {made['url']}. Its signing secret:")
    print(made["secret"])


def _state(row: dict[str, Any]) -> str:
    if not row["enabled"]:
        return f"disabled: {row['disabled_reason']}"
    failing = row["failing_since"]
    return f"failing since {moment(failing)}" if failing else "enabled"


def _answer(row: dict[str, Any]) -> str:
    """Return the result of the newest try."""
    if not row["log"]:
        return "not tried yet"
    last = row["log"][-1]
    return str(last["error"] or f"HTTP {last['status']}")


def _coloured(state: str) -> str:
    return f"[{COLOURS[state]}]{state}[/{COLOURS[state]}]"
