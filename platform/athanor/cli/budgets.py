"""`athanor budget`: list, show, set, statement. Amounts are slot-hours or in the budget's currency.

`set` needs a token with the scope `platform:budgets`, of a platform administrator.
"""

import csv
import sys
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.render import columns, console, print_json
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
BudgetName = Annotated[str, typer.Argument(help="Name, path/name or id.", metavar="BUDGET")]
SCALES = {"slot_hours": 3600, "money": 1_000_000}


@app.command("list")
@reports_errors
def list_budgets(as_json: AsJson = False) -> None:
    """List the budgets of your teams, with amounts spent, reserved and available."""
    found = connect().get("/budgets")["items"]
    if as_json:
        print_json(found)
        return
    table = columns("budget", "period", "amount", "spent", "reserved", "left", "at its end", "kind")
    for budget in found:
        now, forecast = budget["current"], budget["forecast"]
        figures = [_shown(budget, now[name]) for name in ("spent", "reserved", "available")] if now else [""] * 3
        table.add_row(
            escape(f"{budget['path']}/{budget['name']}"), budget["period"], _shown(budget, budget["amount"]), *figures,
            _shown(budget, forecast["p50"]) if forecast else "", "hard" if budget["hard"] else "soft",
        )  # fmt: skip
    console.print(table)


@app.command("show")
@reports_errors
def show(budget: BudgetName, as_json: AsJson = False) -> None:
    """Show a budget, its current period and the forecast for the period's end."""
    found = _find(connect(), budget)
    if as_json:
        print_json(found)
        return
    kind = "hard" if found["hard"] else "soft"
    of = f" of {escape(found['accelerator'])}" if found["accelerator"] else ""
    console.print(f"[bold]{escape(found['path'])}/{escape(found['name'])}[/bold]  {found['id']}")
    console.print(
        f"{_shown(found, found['amount'])} a {found['period']}{of}, {kind}, warns at {found['soft_percent']} %"
    )
    now, forecast = found["current"], found["forecast"]
    if not found["active"] or now is None:
        console.print("closed: nothing is charged to it")
        return
    names = {"spent": "spent", "reserved": "reserved", "available": "left", "lost": "paid back"}
    figures = ", ".join(f"{_shown(found, now[name])} {label}" for name, label in names.items())
    console.print(f"until {moment(now['end'])}: {figures}")
    upto = f", 90 %: up to {_shown(found, forecast['p90'])}" if forecast["p90"] is not None else ""
    console.print(f"forecast for its end: {_shown(found, forecast['p50'])}{upto}")
    if forecast["exhausted_at"]:
        console.print(f"[yellow]used up at about {moment(forecast['exhausted_at'])}[/yellow]")


@app.command("set")
@reports_errors
def set_budget(
    budget: BudgetName,
    amount: Annotated[
        str | None, typer.Option(help="Amount in slot-hours or in the budget's currency; takes effect immediately.")
    ] = None,
    hard: Annotated[
        bool | None,
        typer.Option(
            "--hard/--soft",
            help="Hard: jobs start only within the budget, and runs stop at a checkpoint when it is used up.",
        ),
    ] = None,
    warn_at: Annotated[int | None, typer.Option(min=1, max=100, help="Warn when this percentage is spent.")] = None,
    active: Annotated[
        bool | None, typer.Option("--open/--close", help="Charge usage to the budget, or close it.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Create a budget for this node of the quota tree (path or id).")
    ] = None,
    unit: Annotated[str, typer.Option(help="New budget: slot_hours, or a currency such as USD.")] = "slot_hours",
    period: Annotated[str, typer.Option(help="New budget: day, month or quarter.")] = "month",
    accelerator: Annotated[str, typer.Option(help="New budget: count only this accelerator.")] = "",
    as_json: AsJson = False,
) -> None:
    """Change a budget, or create one with --node."""
    client = connect()
    wanted = {"hard": hard, "soft_percent": warn_at, "active": active}
    body: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if node is None:
        found = _find(client, budget)
        if amount is not None:
            body["amount"] = _amount(amount, SCALES[found["unit"]])
        changed = client.patch(f"/budgets/{found['id']}", body)
    else:
        if amount is None:
            raise CliError(ExitCode.USAGE, "a new budget needs --amount")
        money = unit != "slot_hours"
        kind = {"unit": "money", "currency": unit} if money else {"unit": unit}
        body |= {"node_id": _node(client, node), "name": budget, "period": period, **kind}
        body |= {"accelerator": accelerator} if accelerator else {}
        body["amount"] = _amount(amount, SCALES["money" if money else "slot_hours"])
        body.pop("active", None)
        changed = client.post("/budgets", body)
    if as_json:
        print_json(changed)
        return
    amount = f"{_shown(changed, changed['amount'])} a {changed['period']}, {'hard' if changed['hard'] else 'soft'}"
    console.print(
        f"{escape(changed['path'])}/{escape(changed['name'])}: {amount}{'' if changed['active'] else ', closed'}"
    )


@app.command("statement")
@reports_errors
def statement(
    budget: BudgetName,
    at: Annotated[str, typer.Option(help="A time within the period, such as 2026-01-31T00:00:00Z. Default: now.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one line per job.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the charges of a period by job; jobs of other teams are summed."""
    client = connect()
    found = _find(client, budget)
    said = client.get(f"/budgets/{found['id']}/statement", at=at or None)
    if as_json:
        print_json(said)
        return
    rows = [(line["team"]["name"], line["job_id"], *(line[name] for name in ("spent", "reserved", "refunded")))
            for line in said["lines"]]  # fmt: skip
    rows.append(("others", "", said["others"]["spent"], said["others"]["reserved"], 0))
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("team", "job_id", "spent", "reserved", "refunded"))
        writer.writerows(rows)
        return
    table = columns("team", "job", "spent", "reserved", "paid back")
    for team, job, *figures in rows:
        table.add_row(escape(team), job, *(_shown(found, figure) for figure in figures))
    console.print(table)


def _find(client: Client, wanted: str) -> Any:
    found = client.get("/budgets", active="all")["items"]
    named = [row for row in found if wanted in (row["id"], f"{row['path']}/{row['name']}")]
    named = named or [row for row in found if row["name"] == wanted]
    if len(named) == 1:
        return named[0]
    names = ", ".join(f"{row['path']}/{row['name']}" for row in (named or found)) or "none"
    why = "name one of" if named else "there is"
    raise CliError(ExitCode.NOT_FOUND, f"no one budget is {wanted!r}; {why} {names}")


def _node(client: Client, wanted: str) -> str:
    nodes = client.get("/quotas")["nodes"]
    named = [row["id"] for row in nodes if wanted in (row["id"], row["path"], row["name"])]
    if len(named) != 1:
        names = ", ".join(row["path"] or row["name"] for row in nodes)
        raise CliError(ExitCode.NOT_FOUND, f"no one node of the quota tree is {wanted!r}; there is {names}")
    return str(named[0])


def _amount(text: str, scale: int) -> int:
    try:
        return int((Decimal(text) * scale).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise CliError(ExitCode.USAGE, f"--amount {text!r} is no number") from error


def _shown(budget: Any, amount: int) -> str:
    unit = budget["currency"] if budget["unit"] == "money" else "slot-hours"
    return f"{Decimal(amount) / SCALES[budget['unit']]:,.2f} {unit}"
