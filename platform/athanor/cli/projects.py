"""`athanor project`: list, create, archive, unarchive. `athanor delete project NAME` deletes one."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.errors import reports_errors
from athanor.cli.lookup import TeamOption, find_row
from athanor.cli.options import AsJson, connect
from athanor.cli.render import columns, console, print_json
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
ProjectName = Annotated[str, typer.Argument(help="Name or id of the project.", metavar="PROJECT")]
TeamName = Annotated[str | None, typer.Option("--team", help="Name of the team; needed if several have the project.")]


@app.command("list")
@reports_errors
def list_projects(
    team: Annotated[str | None, typer.Option(help="Only projects of the team with this name.")] = None,
    archived: Annotated[
        bool | None, typer.Option("--archived/--active", help="Only archived projects, or only others. Default: both.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the projects of your teams, newest first."""
    asked = None if archived is None else str(archived).lower()
    found = list(connect().pages("/projects", team=team, archived=asked))
    if as_json:
        print_json(found)
        return
    table = columns("name", "team", "state", "jobs", "not ended", "last submit", "description")
    for row in found:
        table.add_row(
            escape(row["name"]), escape(row["team"]["name"]), _state(row), str(row["job_count"]),
            str(row["live_job_count"]), moment(row["last_submitted_at"]), escape(row["description"]),
        )  # fmt: skip
    console.print(table)


@app.command("create")
@reports_errors
def create(
    name: Annotated[str, typer.Argument(help="Name within the team, which specs give as `project`.")],
    description: Annotated[str | None, typer.Option(help="What the project is about.")] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a project in a team."""
    given = {"name": name, "description": description, "team": team}
    body = {field: value for field, value in given.items() if value is not None}
    _print(connect().post("/projects", body), as_json=as_json)


@app.command("archive")
@reports_errors
def archive(project: ProjectName, team: TeamName = None, as_json: AsJson = False) -> None:
    """Archive a project: it accepts no more jobs. Its jobs and models stay."""
    _set_archived(project, team, archived=True, as_json=as_json)


@app.command("unarchive")
@reports_errors
def unarchive(project: ProjectName, team: TeamName = None, as_json: AsJson = False) -> None:
    """Let an archived project accept jobs again."""
    _set_archived(project, team, archived=False, as_json=as_json)


def _set_archived(project: str, team: str | None, *, archived: bool, as_json: bool) -> None:
    client = connect()
    found = find_row(client.pages("/projects", team=team), project, ["name"], "project", "athanor project list")
    _print(client.patch(f"/projects/{found['id']}", {"archived": archived}), as_json=as_json)


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        console.print(f"{escape(row['name'])} of team {escape(row['team']['name'])}  {row['id']}  {_state(row)}")


def _state(row: dict[str, Any]) -> str:
    return "archived" if row["archived_at"] else "active"
