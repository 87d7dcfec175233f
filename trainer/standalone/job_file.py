"""Read the fields of a job file that a standalone run uses; other fields are ignored."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from trainer.client.local import LocalSettings
from trainer.contract.base import FieldConflictError
from trainer.contract.run import EndClass
from trainer.contract.telemetry import TelemetrySpec
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.errors import TrainerError
from trainer.export.folder import with_base


def read_job(path: Path, base: Path | None = None, *, allow_multi_node: bool = False) -> tuple[str, LocalSettings]:
    """Return (name, settings). `base`: folder of the model to start from; it replaces `training.model` of the file.
    `allow_multi_node`: accept any number of nodes, for callers that start no processes.

    Raises TrainerError (BAD_SPEC) that names each wrong field and its value.
    """
    try:
        job = yaml.safe_load(path.read_text())
    except OSError as error:
        raise _bad(f"{path}: {error.strerror}; check the path of the job file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or an invalid number
        raise _bad(f"{path} is not YAML: {error}") from error
    if not isinstance(job, dict) or "training" not in job:
        raise _bad(f"{path} has no field `training`; a job file is a YAML mapping with a `training` section")
    if base is not None and isinstance(job["training"], dict):
        job["training"]["model"] = {"base": str(base.absolute())}
    problems: list[str] = []
    training = _section(TrainingSpec, "training", job["training"], problems)
    resources, retry = (_mapping(job, name, problems) for name in ("resources", "retry"))
    layout_fields = {name: resources[name] for name in ("nodes", "processes_per_node") if name in resources}
    layout = _section(ProcessLayout, "resources", layout_fields, problems)
    checkpoint = _section(CheckpointPolicy, "checkpoint", job.get("checkpoint") or {}, problems)
    telemetry = _section(TelemetrySpec, "telemetry", job.get("telemetry") or {}, problems)
    if layout is not None and layout.nodes > 1 and not allow_multi_node:
        problems.append(f"resources.nodes: {layout.nodes} nodes need the platform; a standalone run uses 1")
    restarts = retry.get("restarts_in_place", 1)
    if not isinstance(restarts, int) or restarts < 0:
        problems.append(f"retry.restarts_in_place: {restarts!r} must be a whole number, 0 or more")
    preflight = job.get("preflight", False)
    if not isinstance(preflight, bool):
        problems.append(f"preflight: {preflight!r} must be true or false")
    if problems:
        raise _bad("\n".join([f"{path} cannot be run:", *(f"  {problem}" for problem in problems)]))
    assert training is not None and layout is not None and checkpoint is not None and telemetry is not None
    if training.model.base is not None:
        training = with_base(training, path.absolute().parent / training.model.base)
    name = str(job.get("name") or path.stem)
    return name, LocalSettings(training, layout, checkpoint, restarts, telemetry.named(name), preflight)


def _mapping(job: dict[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    content = job.get(name) or {}
    if isinstance(content, dict):
        return content
    problems.append(f"{name}: {content!r} must be a mapping of fields")
    return {}


def _section(model: type[BaseModel], name: str, content: Any, problems: list[str]) -> Any:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        for detail in error.errors():
            found = (detail.get("ctx") or {}).get("error")
            if isinstance(found, FieldConflictError):
                place = ".".join([name, *map(str, detail["loc"])])
                problems += [f"{place}: {conflict.message}" for conflict in found.conflicts]
                continue
            place = ".".join([name, *map(str, detail["loc"])])
            value = "" if isinstance(detail["input"], dict) else f" (it is {detail['input']!r})"
            problems.append(f"{place}: {detail['msg']}{value}")
        return None


def _bad(message: str) -> TrainerError:
    return TrainerError(EndClass.BAD_SPEC, message)
