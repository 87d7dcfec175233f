"""The part of a cluster's configuration that only the server sets: commands, files, addresses.

Permission to configure clusters over HTTP must not be permission to run programs or read files on the platform's host.
So in the part of a configuration that HTTP writes (`Cluster.config`)

- files of the server are plain names of files in ATHANOR_CLUSTER_CONFIG_DIR,
- addresses that the server connects to are in ATHANOR_CLUSTER_URLS,
- commands, and settings that decide which programs a process of this host loads, are refused,
- so is what lets pods reach the nodes of a Kubernetes cluster: host paths and the Pod Security level.

The operator of the host sets any field, with any value, in `NAME.cluster.json` of that directory: `{"kind": "slurm",
"config": {"command": [...]}}`, which takes precedence over the row. Both rules apply whenever a backend is created, so
a row that was written by other means gains nothing.
"""

import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from athanor.core.errors import FieldProblem
from trainer.contract.addresses import DEFAULT_PORTS, Refused, origin_of

Field = tuple[str, ...]
Config = dict[str, Any]
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
SUFFIX = ".cluster.json"
DIRECTORY_SETTING = "ATHANOR_CLUSTER_CONFIG_DIR"
URLS_SETTING = "ATHANOR_CLUSTER_URLS"
# Of the local kind everything that this host's processes load or write; elsewhere the program that is started, and what
# leads out of a pod.
SERVER_ALONE: dict[str, tuple[Field, ...]] = {
    "local": (
        ("directory",), ("command",), ("profile", "environment"), ("profile", "cache_directory"),
        ("profile", "interruption_notice"),
    ),
    "slurm": (("command",),),
    "kubernetes": (("command",), ("security", "level"), ("cache", "host_path")),
}  # fmt: skip
FILES: dict[str, tuple[Field, ...]] = {
    "slurm": (
        ("transport", "identity_file"), ("transport", "known_hosts_file"), ("transport", "token_file"),
        ("slurm_conf",),
    ),
    "kubernetes": (("kubeconfig_file",),),
}  # fmt: skip
URLS: dict[str, tuple[Field, ...]] = {
    "slurm": (("transport", "url"),),
    "fake": (("address",),),
    "fake_cluster": (("address",),),
}

# Slurm's commands run with the agents' variables in their environment: no other may be set by HTTP.
ENVIRONMENT: Field = ("profile", "environment")
OPEN_VARIABLES = (
    "NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "MKL_", "KMP_", "TORCH_", "PYTORCH_", "CUDA_", "TRITON_",
)  # fmt: skip


class ConfigRefused(ValueError):
    """A configuration sets what only the server may set; `problems` name the fields."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        super().__init__(f"{problems[0].pointer}: {problems[0].detail}")
        self.problems = tuple(problems)


def effective(name: str, kind: str, written: Config) -> Config:
    """Return the configuration of a backend: `written` by HTTP, overridden by the server's part.

    Raise ConfigRefused for fields that HTTP may not set, and for a server's part that cannot be read.
    """
    problems = list(_problems(name, kind, written))
    if problems:
        raise ConfigRefused(problems)
    config = copy.deepcopy(written)
    for field in _files(kind, config):
        if (value := _get(config, field)) is not None:
            _set(config, field, str(directory() / value))
    return _merged(config, _server_part(name, kind))


def split(kind: str, config: Config) -> tuple[Config, Config]:
    """Return what HTTP may write of `config`, and the rest, for the server's part."""
    open_part = copy.deepcopy(config)
    server_part: Config = {}
    moved = [*SERVER_ALONE.get(kind, ()), *_files(kind, config), *URLS.get(kind, ()), ENVIRONMENT]
    for field in dict.fromkeys(moved):
        value = _get(config, field)
        if value is not None and list(_problems("", kind, _only(config, field, kind))):
            _set(server_part, field, value)
            _remove(open_part, field)
    return open_part, server_part


def write(name: str, kind: str, part: Config, *, replace: bool = False) -> Path:
    """Write the server's part of a cluster, readable only by the server's user. Raise FileExistsError."""
    path = server_file(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        file.write(json.dumps({"kind": kind, "config": part}, indent=2) + "\n")
    return path


def directory() -> Path:
    """Return ATHANOR_CLUSTER_CONFIG_DIR as an absolute path."""
    return Path(settings.ATHANOR.cluster_config_dir).resolve()


def server_file(name: str) -> Path:
    """Return the path of a cluster's server part. Raise ValueError for what cannot be a cluster's name."""
    if not CLUSTER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a cluster")
    return directory() / f"{name}{SUFFIX}"


def schema_for_http(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema of a kind's configuration as HTTP may write it."""
    found = copy.deepcopy(schema)
    parts = [found, *found.get("$defs", {}).values()]
    for field in SERVER_ALONE.get(kind, ()):
        for part in parts if len(field) > 1 else [found]:
            if field[-1] in part.get("properties", {}):
                del part["properties"][field[-1]]
                part["required"] = [each for each in part.get("required", []) if each != field[-1]]
    for field in FILES.get(kind, ()):
        for part in parts:
            if field[-1] in part.get("properties", {}):
                meaning = part["properties"][field[-1]].get("description", "")
                part["properties"][field[-1]] = {
                    "type": "string",
                    "pattern": f"^{FILE_NAME.pattern}$",
                    "description": f"{meaning} The name of a file in {DIRECTORY_SETTING} of the server.".strip(),
                }
    return found


def _problems(name: str, kind: str, written: Config) -> Iterator[FieldProblem]:
    where = f"{name or 'NAME'}{SUFFIX} in {DIRECTORY_SETTING}"
    for field in SERVER_ALONE.get(kind, ()):
        if _get(written, field) is not None:
            detail = f"is set on the server alone; leave it out here, and write it into {where}"
            yield FieldProblem(_pointer(field), "server_alone", detail)
    variables = _get(written, ENVIRONMENT) if kind == "slurm" else None
    for variable in variables if isinstance(variables, dict) else ():
        if not str(variable).startswith(OPEN_VARIABLES):
            allowed = ", ".join(f"{prefix}*" for prefix in OPEN_VARIABLES)
            detail = f"is set on the server alone ({allowed} are free); write it into {where}"
            yield FieldProblem(_pointer((*ENVIRONMENT, str(variable))), "server_alone", detail)
    for field in _files(kind, written):
        value = _get(written, field)
        if value is not None and not (isinstance(value, str) and FILE_NAME.fullmatch(value)):
            detail = f"{value!r} is not the plain name of a file in {DIRECTORY_SETTING}; put it there and give its name"
            yield FieldProblem(_pointer(field), "file_name", detail)
    for field in URLS.get(kind, ()):
        value = _get(written, field)
        if value and not (isinstance(value, str) and _is_allowed_url(value)):
            detail = f"{value!r} is not an address that the server may connect to; add its origin to {URLS_SETTING}"
            yield FieldProblem(_pointer(field), "url_not_allowed", detail)


def _files(kind: str, config: Config) -> Iterator[Field]:
    """Return the fields that name files of this host; with ssh, slurm_conf is a file of the login node."""
    remote = _get(config, ("transport", "kind")) == "ssh"
    for field in FILES.get(kind, ()):
        if not (remote and field == ("slurm_conf",)):
            yield field


def _is_allowed_url(value: str) -> bool:
    url = value if "://" in value else f"http://{value}"
    try:
        origin = origin_of(url)
    except Refused:
        return False
    return origin in allowed_urls(settings.ATHANOR.cluster_urls)


def allowed_urls(text: str) -> set[str]:
    """Return the origins of ATHANOR_CLUSTER_URLS. Raise ValueError for an entry that is not an origin."""
    found = set()
    for entry in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            origin = origin_of(entry)
        except Refused as refused:
            raise ValueError(f"{entry!r}: {refused}") from refused
        if entry.lower().rstrip("/") not in (origin, f"{origin}:{DEFAULT_PORTS[origin.partition(':')[0]]}"):
            raise ValueError(f"{entry!r}: give only scheme, host and port, such as {origin}")
        found.add(origin)
    return found


def _server_part(name: str, kind: str) -> Config:
    if not CLUSTER_NAME.fullmatch(name):
        return {}  # of a configuration that is only tried
    path = server_file(name)
    try:
        content = json.loads(path.read_text())
        of_kind, part = content["kind"], content["config"]
    except FileNotFoundError:
        return {}
    except OSError as error:
        detail = f"the server cannot read {path.name} in {DIRECTORY_SETTING}: {error.strerror}"
        raise ConfigRefused([FieldProblem("/config", "server_part", detail)]) from error
    except (ValueError, KeyError, TypeError) as error:
        detail = f'{path.name} in {DIRECTORY_SETTING} is not {{"kind": ..., "config": {{...}}}}'
        raise ConfigRefused([FieldProblem("/config", "server_part", detail)]) from error
    if of_kind != kind or not isinstance(part, dict):
        detail = f"{path.name} in {DIRECTORY_SETTING} is for a cluster of kind {of_kind!r}, not {kind!r}"
        raise ConfigRefused([FieldProblem("/kind", "server_part", detail)])
    return part


def _merged(below: Config, above: Config) -> Config:
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _get(config: Config, field: Field) -> Any:
    value: Any = config
    for name in field:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _set(config: Config, field: Field, value: Any) -> None:
    for name in field[:-1]:
        config = config.setdefault(name, {})
    config[field[-1]] = value


def _remove(config: Config, field: Field) -> None:
    for name in field[:-1]:
        config = config[name]
    del config[field[-1]]


def _only(config: Config, field: Field, kind: str) -> Config:
    """Return `config` with only this field, and the fields that decide how it is read."""
    found: Config = {}
    transport = _get(config, ("transport", "kind"))
    if kind == "slurm" and transport is not None:
        _set(found, ("transport", "kind"), transport)
    _set(found, field, _get(config, field))
    return found


def _pointer(field: Field) -> str:
    return "/config/" + "/".join(field)
