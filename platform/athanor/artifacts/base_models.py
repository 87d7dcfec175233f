"""Base models: what a spec's `training.model.base` references, and what a run receives."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from athanor.accounts.models import Team
from athanor.artifacts import datasets, grants, keys, manifests, registry_selectors, services, storage
from athanor.artifacts.models import Artifact, of_teams
from athanor.core.errors import FieldProblem, Invalid, NotFound
from trainer.contract.hugging_face import (
    CONFIG_NAME,
    DESCRIBING_FILES,
    TOKENIZER_NAME,
    is_of_images_too,
    shape_of_config,
    text_config,
    tokenizer_digest,
)
from trainer.contract.run import BaseModelSource
from trainer.contract.training import TrainingSpec

POINTER = "/training/model/base"
REPORT_POINTER = "/prepare/report/base"
Read = Callable[[str], bytes | None]


def look_up(team: Team, training: TrainingSpec) -> TrainingSpec:
    """Resolve `model.base` to the model's shape and tokenizer, and pin it to what its name means now.

    Raise Invalid for a model that does not exist or cannot be trained, Unavailable if the store does not answer.
    """
    if training.model.base is None:
        return training
    return _filled(training, *_found(team, training.model.base))


def pin(team: Team, base: str) -> str:
    """Return the base model of a data report, pinned to what its name means now. Raise Invalid for one that does not
    exist or has no tokenizer with a vocabulary, Unavailable if the store does not answer."""
    try:
        pinned, read = _found(team, base)
        try:
            config = text_config(_parsed_config(_describing(base, read)[CONFIG_NAME]))
        except ValueError as error:
            raise _refused("base_not_usable", f"{base}: {error}") from error
        if not isinstance(config.get("vocab_size"), int):
            raise _refused("base_not_usable", f"{base}: {CONFIG_NAME} has no vocab_size: take another model")
    except Invalid as error:
        problems = tuple(replace(problem, pointer=REPORT_POINTER) for problem in error.problems)
        raise Invalid("invalid_spec", error.message, remedy=error.remedy, problems=problems) from error
    return pinned


def _found(team: Team, base: str) -> tuple[str, Read]:
    """Return what a name of a base model means now, and what reads its files."""
    if base.startswith("model:"):
        row = _model(team, base.removeprefix("model:"))
        return f"model:{row.id}", lambda name: _opened(row, name)
    if base.startswith("s3://"):
        uri = base if base.endswith("/") else f"{base}/"
        datasets.check_bucket(team, uri, POINTER)
        return uri, lambda name: storage.get(uri + name)
    raise _refused(
        "base_not_found",
        f"{base!r} is no model of the platform: give model:NAME@ALIAS, model:OWNER/NAME@ALIAS, model:NAME, "
        "model:art_... or s3://bucket/prefix",
    )


def source_for(team: Team, base: str | None) -> BaseModelSource | None:
    """Return where an attempt finds its base model. Lists an S3 prefix, so it may raise Unavailable, and Invalid for
    one that is no longer granted to the team."""
    if base is None:
        return None
    if base.startswith("s3://"):
        datasets.check_bucket(team, base, POINTER)
        files = [datasets.plain_file(item) for item in storage.listing(base) if item.size]
        return BaseModelSource(name=base, origin="plain", files=files)
    row = _model(team, base.removeprefix("model:"))
    return BaseModelSource(name=base, origin="sealed", files=manifests.of_stored(row).files)


def key_of(team: Team, base: str | None) -> str:
    """Return the data key of the base model; empty if it is not encrypted. Raise Invalid if the team may not read it
    any more."""
    if base is None or not base.startswith("model:"):
        return ""
    return keys.data_key_of(_model(team, base.removeprefix("model:")))


def _model(team: Team, name: str) -> Artifact:
    """Return the model of an artifact's id, of a registered version (`NAME@ALIAS`, `OWNER/NAME@NUMBER`) or of a job's
    name.

    Raise Invalid if the team has none, and none is shared with it.
    """
    if "@" in name:
        try:
            name = registry_selectors.find_version(team, name).artifact_id
        except LookupError as error:
            raise _refused("base_not_found", str(error)) from error
    rows = Artifact.objects.filter(of_teams([team.id]), kind=Artifact.Kind.MODEL, deletion=None)
    rows = rows.select_related("job__team", "model_import__team")
    of_jobs = rows.exclude(job=None)  # an imported one is named by its version
    found = rows.filter(pk=name).first() or of_jobs.filter(name=name).order_by("-created_at", "-pk").first()
    found = found or grants.artifact_for([team.id], name)
    if found is None:
        lost = ", or the team that owns it no longer shares it" if name.startswith("art_") else ""
        raise _refused(
            "base_not_found",
            f"team {team.name} has no model {name!r}{lost}; `athanor list` shows the jobs that may have made one, "
            "`athanor model list` registered and shared models",
        )
    return found


def _opened(row: Artifact, name: str) -> bytes | None:
    try:
        return b"".join(services.opened_parts(row, name))
    except NotFound:
        return None


def _filled(training: TrainingSpec, pinned: str, read: Read) -> TrainingSpec:
    contents = _describing(training.model.base, read)
    try:
        whole = _parsed_config(contents[CONFIG_NAME])
        if is_of_images_too(whole):
            training.check_text_part()
        config = text_config(whole)
        digest = tokenizer_digest(config, contents)
        return training.with_base(pinned, shape_of_config(config), config["vocab_size"], digest)
    except ValidationError as error:
        detail = error.errors()[0]
        raise _refused("base_not_usable", f"{training.model.base}: {detail['msg']} ({detail['input']!r})") from error
    except ValueError as error:
        raise _refused("base_not_usable", f"{training.model.base}: {error}") from error


def _describing(base: str | None, read: Read) -> dict[str, bytes]:
    """Return the files that describe a model, by name. Raise Invalid without a configuration or tokenizer."""
    found = {name: read(name) for name in DESCRIBING_FILES}
    contents = {name: content for name, content in found.items() if content is not None}
    for name in (CONFIG_NAME, TOKENIZER_NAME):
        if name not in contents:
            raise _refused("base_incomplete", f"{base} has no {name}: give a model in that layout")
    return contents


def _parsed_config(content: bytes) -> dict[str, Any]:
    whole = json.loads(content)
    if isinstance(whole, dict):
        return whole
    raise ValueError(f"{CONFIG_NAME} is not a JSON object: give a model in that layout")


def _refused(code: str, detail: str) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=detail, problems=(FieldProblem(POINTER, code, detail),))
