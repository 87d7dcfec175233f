"""A job spec from a file or a preset, with values set on the command line."""

import copy
from pathlib import Path
from typing import Any

import yaml

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode
from athanor.core.documents import load_yaml
from athanor.core.errors import Invalid


def read_spec(path: Path) -> dict[str, Any]:
    """Read YAML or JSON (a subset of YAML). Validation is the server's."""
    try:
        value = load_yaml(path.read_text(encoding="utf-8"), "file")
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(ExitCode.USAGE, f"{path} is not UTF-8 (byte {error.start})") from error
    except Invalid as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error.message}; {error.remedy}") from error
    if not isinstance(value, dict):
        raise CliError(ExitCode.USAGE, f"{path} holds no mapping: see `athanor presets --spec NAME` for one")
    return value


def read_preset(client: Client, name: str) -> dict[str, Any]:
    """Return the spec of a preset. Raises CliError with the known names for an unknown one."""
    presets = {preset["name"]: preset for preset in client.get("/presets")["items"]}
    if name not in presets:
        raise CliError(ExitCode.USAGE, f"no preset {name!r}: there are {', '.join(sorted(presets))}")
    spec: dict[str, Any] = presets[name]["spec"]
    return spec


def with_name(settings: list[str] | None, name: str | None) -> list[str]:
    """Return the settings of `--set`, and that of `--name`, which is text even if it reads like a number."""
    return [*(settings or []), *([f"name={yaml.safe_dump(name).splitlines()[0]}"] if name else [])]


def apply_settings(spec: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Return a copy of the spec with settings like `training.steps=50`: a path of names and a YAML value."""
    result = copy.deepcopy(spec)
    for setting in settings:
        path, separator, text = setting.partition("=")
        names = path.split(".")
        if not separator or not all(names):
            raise CliError(ExitCode.USAGE, f"--set {setting!r}: write NAME.NAME=VALUE, as in training.steps=50")
        try:
            value = load_yaml(text, "value")
        except Invalid as error:
            raise CliError(ExitCode.USAGE, f"--set {setting!r}: {error.message}; {error.remedy}") from error
        place = result
        for name in names[:-1]:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                raise CliError(ExitCode.USAGE, f"--set {setting!r}: {name} is {inner!r}, not a group of fields")
            place = inner
        place[names[-1]] = value
    return result
