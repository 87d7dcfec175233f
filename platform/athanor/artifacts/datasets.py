"""Data sets: what a spec's `data` references, and what a run receives. `uploads.py` stores new ones."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team
from athanor.artifacts import buckets, dataset_versions, manifests, storage
from athanor.artifacts.models import Dataset, PreparedDataset
from athanor.core.errors import FieldProblem, Invalid
from athanor.core.rows import columns_of, select
from trainer.contract.data import PREFERENCE_FORMATS, DataSpec, MixturePart, TokenizerSpec
from trainer.contract.labels import MESSAGES_FIELD
from trainer.contract.manifest import StoredFile, StoredPart
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import DatasetSource

POINTER = "/training/data/source"
# By hand, because each submit with such data needs it.
BUILTIN = f"SELECT {columns_of(Dataset, 'd')} FROM artifacts_dataset d WHERE team_id = %s AND name = %s"  # noqa: S608


def resolve_all(team: Team, data: DataSpec, task: str) -> list[Dataset]:
    """Return the data sets of the data of a spec's `task`, one for each part.

    Raise Invalid as `resolve_sources` does.
    """
    if not data.mixture:
        return resolve_sources(team, {f"{task}/data/source": data.parts[0].source})
    places = {f"{task}/data/mixture/{number}/source": part.source for number, part in enumerate(data.mixture)}
    return resolve_sources(team, places)


def resolve_sources(team: Team, sources: Mapping[str, str]) -> list[Dataset]:
    """Return the data sets that a spec names. `sources`: as it names them, by the pointers to where it does.

    Raise Invalid with every data set that cannot be used, and with each that is named twice.
    """
    found: dict[str, Dataset] = {}
    problems: list[FieldProblem] = []
    for pointer, source in sources.items():
        try:
            named = resolve(team, source)
        except Invalid as error:
            problems += [replace(problem, pointer=pointer) for problem in error.problems]
            continue
        first = next((known for known, other in found.items() if other == named), None)
        if first is not None and sources[first] != source:
            detail = f"{sources[first]} and {source} are the same version, {named.spec_source}; name it once"
            problems.append(FieldProblem(pointer, "conflict", detail))
        found[pointer] = named
    if problems:
        detail = problems[0].detail
        raise Invalid("invalid_spec", detail, remedy=detail, problems=tuple(problems))
    return list(found.values())


def resolve(team: Team, source: str) -> Dataset:
    """Return the data set that a spec names: of an upload the version.

    Raise Invalid with what there is instead, or with why an S3 prefix cannot be used.
    """
    if source.startswith("builtin:"):
        for row in select(Dataset, BUILTIN, [team.id, source]):
            return row
        row, _ = Dataset.objects.get_or_create(team=team, name=source, defaults={"origin": Dataset.Origin.BUILTIN})
        return row
    if source.startswith("s3://"):
        return _plain(team, source)
    try:
        return dataset_versions.find(team, source.removeprefix("dataset:"))
    except LookupError as error:
        raise _refused("dataset_missing", str(error)) from error


def exact_source(source: str, row: Dataset) -> str:
    """Return what a resolved spec has for a source: of an upload the number of the version.

    A source without `@` that refers to the first version stays as it is: so jobs on data sets that have one version
    are read by trainers and programs that know no versions.
    """
    is_first = row.version == 1 and "@" not in source
    return source if row.origin != Dataset.Origin.SEALED or is_first else row.spec_source


def with_versions(data: DataSpec, rows: list[Dataset]) -> DataSpec:
    """Return `data` with the versions of its data sets. `rows` has the data set of each part."""
    parts = [
        part.model_copy(update={"source": exact_source(part.source, row)})
        for part, row in zip(data.parts, rows, strict=True)
    ]
    if data.mixture:
        return data.model_copy(update={"mixture": parts})
    return data.model_copy(update={"source": parts[0].source})


def with_detected_formats(
    data: DataSpec, rows: list[Dataset], task: str, read_as_lines: Collection[int] = ()
) -> DataSpec:
    """Return `data` with the format and the field that each upload was found to have, where the spec leaves them open.

    `rows` has the data set of each part. The parts with the numbers `read_as_lines` are left as they are: they are not
    texts to tokenise. Raises Invalid with each part that cannot be read as the spec says; `task` begins their pointers.
    """
    parts: list[MixturePart] = []
    problems: list[FieldProblem] = []
    for number, (part, row) in enumerate(zip(data.parts, rows, strict=True)):
        try:
            parts.append(part if number in read_as_lines else _as_detected(part, row))
        except Invalid as error:
            place = f"{task}/data/mixture/{number}" if data.mixture else f"{task}/data"
            problems += [replace(problem, pointer=f"{place}{problem.pointer}") for problem in error.problems]
    chats = [part.source for part in parts if part.format == "chat"]
    changes: dict[str, Any] = {}
    if chats and data.packing != "documents":
        if "packing" in data.model_fields_set and task == "/training":
            detail = (
                f"{', '.join(chats)} contains conversations, which must not see one another; "
                "set packing to documents, or leave it out"
            )
            problems.append(FieldProblem(f"{task}/data/packing", "conflict", detail))
        changes["packing"] = "documents"
    if problems:
        raise Invalid("invalid_spec", problems[0].detail, remedy=problems[0].detail, problems=tuple(problems))
    if parts == data.parts:
        return data.model_copy(update=changes)
    if data.mixture:
        return data.model_copy(update={"mixture": parts, **changes})
    return data.model_copy(update={"format": parts[0].format, "text_field": parts[0].text_field, **changes})


def _as_detected(part: MixturePart, row: Dataset) -> MixturePart:
    """Return the part of a spec with the detected format and field. Raises Invalid with pointers below the part."""
    form = row.format if part.format == "auto" else part.format
    if row.origin != Dataset.Origin.SEALED or form == "text":
        return part
    leaves_field_open = part.text_field == MixturePart.model_fields["text_field"].default
    if form == "chat":
        is_usual = row.format != "chat" or row.text_field == MESSAGES_FIELD
        field = row.text_field if leaves_field_open and not is_usual else part.text_field
        return part.model_copy(update={"format": "chat", "text_field": field})
    texts = ", ".join(row.fields or ()) or "none"
    if part.format in PREFERENCE_FORMATS:
        if row.format == part.format:
            return part
        needed = (
            "pairs, with the fields chosen and rejected in each line"
            if part.format == "preference"
            else "answers, with a label in each line"
        )
        detail = (
            f"{part.source} has the format {row.format}, not {part.format}; take a data set of {needed} "
            f"(if it has them, add it again with --format {part.format}), or leave training.preference and format out"
        )
        raise _refused("no_pairs", detail, "/format")
    if form in PREFERENCE_FORMATS:
        found, trained_on, loss = (
            ("preference pairs", "pairs", "dpo")
            if form == "preference"
            else ("answers with a label", "the labels", "kto")
        )
        detail = (
            f"{part.source} contains {found}; to train on {trained_on} set format to {form} and training.preference, "
            f"for example {{loss: {loss}}}; to train on one text of each line set format to jsonl and text_field to a "
            f"field with text ({texts})"
        )
        raise _refused("no_text_field", detail, "/format")
    if row.fields is None or part.text_field in row.fields:
        return part
    if leaves_field_open and row.text_field in row.fields:
        return part.model_copy(update={"text_field": row.text_field})
    if form == "auto":  # files of several formats, such as conversations and plain text
        return part
    if row.fields:
        detail = f"{part.source} has no text in {part.text_field!r}; set text_field to a field with text ({texts})"
    else:
        detail = f"{part.source} has no field with text; upload it again with the text in a field, such as 'text'"
    raise _refused("no_text_field", detail, "/text_field")


def sources_for(dataset_ids: list[str], data: DataSpec, tokenizer: TokenizerSpec) -> list[DatasetSource]:
    """Return where an attempt finds its data. Lists S3 prefixes, so it may raise Unavailable, and Invalid for one that
    is no longer granted to the team."""
    rows = Dataset.objects.select_related("team").in_bulk(dataset_ids)
    recipes = dataset_recipes(data.parts, tokenizer, dataset_ids)
    return [_source(rows[identifier], recipe) for identifier, recipe in zip(dataset_ids, recipes, strict=True)]


def raw_sources(rows: Iterable[Dataset]) -> list[DatasetSource]:
    """Return where an attempt finds the files of data sets. Raises as `sources_for`."""
    return [_source(row) for row in rows]


def are_prepared(dataset_ids: list[str], data: DataSpec, tokenizer: TokenizerSpec) -> bool:
    """Return whether each data set is tokenised by the recipe that the job needs."""
    recipes = dataset_recipes(data.parts, tokenizer, dataset_ids)
    pairs = zip(dataset_ids, recipes, strict=True)
    return all(known_preparation(each, recipe) is not None for each, recipe in pairs)


def known_preparation(dataset_id: str, recipe: str) -> PreparedDataset | None:
    """Return the usable tokenised form of a data set by this recipe; None without one."""
    return PreparedDataset.objects.filter(dataset_id=dataset_id, recipe=recipe, forgotten_at__isnull=True).first()


def forget_preparations(dataset: Dataset, actor: str) -> int:
    """Discard tokenised forms, so that the next job tokenises again, for example after damage in the store.

    Return their number. Running jobs continue with theirs.
    """
    with transaction.atomic():
        known = PreparedDataset.objects.filter(dataset=dataset, forgotten_at__isnull=True)
        count = known.update(forgotten_at=timezone.now())
        target, after = ("dataset", dataset.id), {"forgotten": count}
        audit.record("dataset.forget", actor=actor, target=target, team_id=dataset.team_id, after=after)
    return count


def _source(dataset: Dataset, recipe: str = "") -> DatasetSource:
    prepared = known_preparation(dataset.id, recipe) if recipe else None
    files: list[StoredFile] = []
    if dataset.origin == Dataset.Origin.SEALED:
        files = manifests.of_upload(dataset)
    elif dataset.origin == Dataset.Origin.PLAIN:
        check_bucket(dataset.team, dataset.name)
        files = [plain_file(item) for item in storage.listing(dataset.name) if item.size]
    return DatasetSource(
        dataset_id=dataset.id,
        name=dataset.name,
        origin=Dataset.Origin(dataset.origin).value,
        raw=files,
        prepared=manifests.of_preparation(prepared) if prepared else None,
    )


def check_bucket(team: Team, uri: str, pointer: str = POINTER) -> None:
    """Raise Invalid unless an administrator has granted `uri` to `team`."""
    if storage.split(uri)[0] != storage.bucket() and buckets.is_granted(uri, team.name):
        return
    readable = ", ".join(buckets.readable_roots(team.name)) or "none"
    place = uri.removeprefix(buckets.SCHEME).rstrip("/")
    detail = (
        f"team {team.name} may not read {uri} (granted to it: {readable}); use one of these, "
        f"or have an administrator add {place}={team.name} to ATHANOR_DATA_BUCKETS"
    )
    raise _refused("bucket_not_allowed", detail, pointer)


def _plain(team: Team, uri: str) -> Dataset:
    check_bucket(team, uri)
    if not any(item.size for item in storage.listing(uri)):
        raise _refused("dataset_empty", f"there is nothing at {uri} or under {uri.rstrip('/')}/; check the prefix")
    row, _ = Dataset.objects.get_or_create(team=team, name=uri, defaults={"origin": Dataset.Origin.PLAIN})
    return row


def plain_file(item: storage.Listed) -> StoredFile:
    """Describe an unencrypted object of another bucket as a stored file with one part."""
    name = item.key.rpartition("/")[2] or "object"
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    part = StoredPart(key=item.key, size=item.size, sha256="0" * 64, plaintext_size=item.size)
    return StoredFile(path=safe, parts=[part])


def _refused(code: str, detail: str, pointer: str = POINTER) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=detail, problems=(FieldProblem(pointer, code, detail),))
