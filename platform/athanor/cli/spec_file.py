"""A job spec from a file or a preset, with values set on the command line."""

from pathlib import Path
from typing import Any

import yaml

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode


def read_spec(path: Path) -> dict[str, Any]:
    """YAML or JSON (which is YAML). Only the server knows what a spec may hold."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(ExitCode.USAGE, f"{path} is not UTF-8 (byte {error.start})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise CliError(ExitCode.USAGE, f"{path} is not YAML{place}: {problem}") from error
    if not isinstance(value, dict):
        raise CliError(ExitCode.USAGE, f"{path} holds no mapping: see `athanor presets --spec NAME` for one")
    return value


def read_preset(client: Client, name: str) -> dict[str, Any]:
    presets = {preset["name"]: preset for preset in client.get("/presets")["items"]}
    if name not in presets:
        raise CliError(ExitCode.USAGE, f"no preset {name!r}: there are {', '.join(sorted(presets))}")
    spec: dict[str, Any] = presets[name]["spec"]
    return spec


def apply_settings(spec: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """`training.steps=50`: a path of names and a value in YAML. The spec given is left as it is."""
    result: dict[str, Any] = yaml.safe_load(yaml.safe_dump(spec))
    for setting in settings:
        path, separator, text = setting.partition("=")
        names = path.split(".")
        if not separator or not all(names):
            raise CliError(ExitCode.USAGE, f"--set {setting!r}: write NAME.NAME=VALUE, as in training.steps=50")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise CliError(ExitCode.USAGE, f"--set {setting!r}: the value is not YAML") from error
        place = result
        for name in names[:-1]:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                raise CliError(ExitCode.USAGE, f"--set {setting!r}: {name} is {inner!r}, not a group of fields")
            place = inner
        place[names[-1]] = value
    return result
