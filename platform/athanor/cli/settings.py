"""Server address and token: from the environment, then from the file of `athanor login`."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from athanor.cli.errors import CliError, ExitCode


@dataclass(frozen=True)
class Account:
    """Address of a server, and the token to use there."""

    url: str
    token: str


def settings_path() -> Path:
    """Return the path of the file with the account: XDG_CONFIG_HOME, by default `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "athanor" / "config.json"


def read_account() -> Account:
    """Return the server and token; ATHANOR_URL and ATHANOR_TOKEN each override the file."""
    stored = _read_file(settings_path())
    url = os.environ.get("ATHANOR_URL") or stored.get("url")
    token = os.environ.get("ATHANOR_TOKEN") or stored.get("token")
    if not url or not token:
        missing = "address" if not url else "token"
        raise CliError(
            ExitCode.AUTHENTICATION,
            f"no {missing} of a server is known: run `athanor login`, or set ATHANOR_URL and ATHANOR_TOKEN",
        )
    return Account(check_url(url), token)


def remembered_url() -> str | None:
    """Return the address that the last `athanor login` wrote, if any."""
    return _read_file(settings_path()).get("url")


def write_account(account: Account) -> Path:
    """Write the file readable by its owner only (0600): a token is a password."""
    path = settings_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump({"url": account.url, "token": account.token}, handle, indent=2)
    temporary.replace(path)
    return path


def check_url(url: str) -> str:
    """Return the address without a final slash. Raises CliError unless it is http or https."""
    if not url.startswith(("http://", "https://")):
        raise CliError(ExitCode.USAGE, f"address {url!r} must start with http:// or https://")
    return url.rstrip("/")


def _read_file(path: Path) -> dict[str, str]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{path} is not JSON: remove it and run `athanor login`") from error
    return value if isinstance(value, dict) else {}
