"""`athanor login`: remember a server and a token."""

import socket
import sys
import uuid
from typing import Annotated

import httpx
import typer

from athanor.cli.client import TIMEOUT, Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import choose_team
from athanor.cli.options import AsJson
from athanor.cli.render import print_json
from athanor.cli.settings import Account, check_url, remembered_url, write_account

DEFAULT_URL = "http://127.0.0.1:8700"
TEAM_SCOPES = ["read", "submit", "artifacts", "admin"]
PARTS = ("clusters", "quotas", "budgets", "people", "audit")


@reports_errors
def login(
    url: Annotated[
        str | None,
        typer.Argument(
            help=f"The server's address; that of the last login if left out, else {DEFAULT_URL}.", envvar="ATHANOR_URL"
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(help="An API token, ath_...; `-` reads it from standard input.")] = None,
    username: Annotated[str | None, typer.Option(help="Make a token with this user's password instead.")] = None,
    team: Annotated[
        str | None, typer.Option(help="The new token's team; required if you are in several teams.")
    ] = None,
    platform: Annotated[
        bool, typer.Option("--platform", help="Give the new token all permissions of your platform role.")
    ] = False,
    platform_part: Annotated[
        list[str] | None,
        typer.Option("--platform-part", help=f"Give the new token only this platform permission: {', '.join(PARTS)}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remember a server and a token in a file that only you can read."""
    url = check_url(url or remembered_url() or DEFAULT_URL)
    parts = list(PARTS) if platform else list(dict.fromkeys(platform_part or []))
    if unknown := [part for part in parts if part not in PARTS]:
        raise CliError(ExitCode.USAGE, f"--platform-part {unknown[0]!r} is none of {', '.join(PARTS)}")
    if parts and username is None:
        raise CliError(ExitCode.USAGE, "--platform and --platform-part are for a new token: give --username too")
    if token == "-":  # noqa: S105 - means standard input
        token = sys.stdin.readline().strip()
    if token is None and username is not None:
        password = typer.prompt("Password", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
        token = _make_token(url, username, password.rstrip("\n"), team, parts)
    if token is None:
        token = typer.prompt("Token (dashboard, Tokens)", hide_input=True)
    account = Account(url, token)
    Client(account).get("/jobs", limit=1)  # refuses a wrong token before it is written
    path = write_account(account)
    if as_json:
        print_json({"url": url, "settings": str(path)})
    else:
        print(f"logged in to {url}; remembered in {path}")


def _make_token(url: str, username: str, password: str, team: str | None, parts: list[str]) -> str:
    """Sign in as the dashboard does, and make a token of this machine's name."""
    try:
        with httpx.Client(base_url=f"{url}/api/v1", timeout=TIMEOUT) as session:
            csrf = session.get("/session").raise_for_status().json()["csrf_token"]
            answer = session.post(
                "/session", json={"username": username, "password": password}, headers=_csrf(url, csrf)
            )
            if answer.status_code == httpx.codes.UNAUTHORIZED and _code_of(answer) == "second_factor_required":
                answer = _second_step(session, url, csrf, answer.json()["kinds"])
            elif answer.status_code == httpx.codes.UNAUTHORIZED:
                raise CliError(ExitCode.AUTHENTICATION, f"user {username!r} and this password do not match: try again")
            signed_in = answer.raise_for_status().json()
            asked: dict[str, object] = {
                "name": f"cli on {socket.gethostname()}",
                "team": choose_team(signed_in["teams"], team),
            }
            if parts:
                asked["scopes"] = [*TEAM_SCOPES, *(f"platform:{part}" for part in parts)]
            made = session.post(
                "/tokens",
                json=asked,
                headers={**_csrf(url, signed_in["csrf_token"]), "Idempotency-Key": f"cli-{uuid.uuid4()}"},
            ).raise_for_status()
    except httpx.HTTPStatusError as error:
        raise _refusal(url, error.response) from error
    except (httpx.TransportError, ValueError) as error:
        raise CliError(ExitCode.SERVER, f"{url} is not reached as an Athanor server ({error})") from error
    return str(made.json()["token"])


def _second_step(session: httpx.Client, url: str, csrf: str, kinds: list[str]) -> httpx.Response:
    """Ask for a code. A passkey needs a browser."""
    if not {"authenticator_app", "recovery_code"} & set(kinds):
        raise CliError(
            ExitCode.AUTHENTICATION, "this account signs in with a passkey: make a token in the dashboard, Tokens"
        )
    prompt = "Code of your authenticator app, or a recovery code"
    code = typer.prompt(prompt) if sys.stdin.isatty() else sys.stdin.readline()
    return session.post("/session:second-factor", json={"code": code.strip()}, headers=_csrf(url, csrf))


def _code_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _refusal(url: str, answer: httpx.Response) -> CliError:
    """Return the message and remedy of a problem document, else the status."""
    path = answer.request.url.path
    try:
        problem = answer.json()
        text = f"{problem['detail']}: {problem['remedy']}"
    except (ValueError, KeyError, TypeError):
        return CliError(ExitCode.SERVER, f"{url} answered {answer.status_code} to {path}")
    return CliError(ExitCode.SERVER if answer.is_server_error else ExitCode.AUTHENTICATION, text)


def _csrf(url: str, value: str) -> dict[str, str]:
    return {"X-CSRFToken": value, "Referer": url}
