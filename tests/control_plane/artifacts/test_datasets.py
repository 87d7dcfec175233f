"""Uploads are checked while they are received, encrypted, and found by name."""

import io
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from athanor.artifacts import keys, storage
from athanor.artifacts.models import Dataset, PreparedDataset
from athanor.dispatch.services import run_config_of
from athanor.jobs.models import Job
from tests.control_plane import drive
from trainer.contract.data import DataSpec, TokenizerSpec
from trainer.contract.encryption import authenticate
from trainer.contract.manifest import DatasetManifest, StoredPart
from trainer.contract.recipe import dataset_recipes

pytestmark = pytest.mark.django_db


def upload(api: Any, body: bytes, name: str = "corpus", format_: str = "auto", content_type: str = "text/plain") -> Any:
    return api.generic("POST", f"/api/v1/datasets?name={name}&format={format_}", body, content_type=content_type)


def stored_objects(team_id: str) -> list[str]:
    return [item.key for item in storage.listing(f"s3://{storage.bucket()}/teams/{team_id}/")]


def test_text_is_stored_sealed_and_readable_with_its_key(api: Any, team: Any, bucket: str) -> None:
    answer = upload(api, "Grüße, CANARY\n".encode() * 100)
    assert answer.status_code == 201, answer.content
    row = Dataset.objects.get(pk=answer.json()["id"])
    part = StoredPart.model_validate(row.files[0]["parts"][0])
    raw = storage.get(part.key)
    assert b"CANARY" not in raw
    assert keys.encryptor(row.id, team).decrypt(raw, part) == "Grüße, CANARY\n".encode() * 100
    assert api.send("GET", "datasets").json()["items"][0]["size_bytes"] == 1600


@pytest.mark.parametrize(
    ("body", "format_", "says"),
    [
        (b"", "text", "no text"),
        (b"  \n\n ", "text", "no text"),
        (b"good \xff bad", "text", "byte 5 is not UTF-8"),
        ("cut é".encode()[:-1], "text", "byte 4 is not UTF-8"),
        (b'{"text": "a"}\n{"text": \n', "jsonl", "line 2 is not JSON"),
        (b'{"text": "a"}\n\n[1]\n', "jsonl", "line 3 is not a JSON object"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_its_place_and_leaves_nothing(
    api: Any, team: Any, bucket: str, body: bytes, format_: str, says: str
) -> None:
    answer = upload(api, body, format_=format_)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_dataset")
    assert says in answer.json()["detail"]
    assert not Dataset.objects.filter(name="corpus").exists()
    assert stored_objects(team.id) == []


def test_text_that_is_cut_between_parts_is_still_utf8(
    api: Any, team: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("athanor.artifacts.uploads.PART_PLAINTEXT_BYTES", 7)
    text = "äöüß" * 10
    answer = upload(api, text.encode())
    assert answer.status_code == 201, answer.content
    assert len(Dataset.objects.get(name="corpus").files[0]["parts"]) == 12
    broken = upload(api, text.encode()[:25] + b"\xff" + text.encode(), name="broken")
    assert "byte 25" in broken.json()["detail"] or "byte 24" in broken.json()["detail"]


def test_jsonl_documents_are_counted_and_recognised(api: Any, bucket: str) -> None:
    lines = "".join(json.dumps({"text": f"doc {number}"}) + "\n" for number in range(3)).encode()
    answer = upload(api, lines, content_type="application/jsonl")
    assert (answer.json()["format"], answer.json()["documents"]) == ("jsonl", 3)


def tar_of(**files: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def parquet(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


PARQUET = parquet(text=["x", "y", "z"])


def test_several_files_are_one_data_set_each_with_its_format(api: Any, team: Any, bucket: str) -> None:
    body = tar_of(a__jsonl=b'{"text": "x"}\n{"text": "y"}\n', b__txt="Grüße".encode(), c__parquet=PARQUET)
    made = upload(api, body, content_type="application/x-tar").json()
    assert (made["format"], made["documents"], made["size_bytes"]) == ("auto", 5, 28 + 7 + len(PARQUET))
    row = Dataset.objects.get(pk=made["id"])
    assert [file["path"] for file in row.files] == ["a.jsonl", "b.txt", "c.parquet"]
    encryptor = keys.encryptor(row.id, team)
    (part,) = map(StoredPart.model_validate, row.files[2]["parts"])
    assert encryptor.decrypt(storage.get(part.key), part) == PARQUET


def test_a_format_that_is_told_is_in_the_stored_name(api: Any, bucket: str) -> None:
    body = tar_of(a__txt=b'{"text": "x"}\n')
    made = upload(api, body, format_="jsonl", content_type="application/x-tar").json()
    assert made["format"] == "jsonl"
    assert Dataset.objects.get(pk=made["id"]).files[0]["path"] == "a.txt.jsonl"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (tar_of(), "no file"),
        (b"no tar at all", "no whole tar"),
        (tar_of(a__txt=b"x" * 2000)[:1024], "no whole tar"),
        (tar_of(a__txt=b"fine", b__jsonl=b'{"text": 1}\n{'), "b.jsonl: line 2 is not JSON"),
        (tar_of(a__txt=b"fine", b__txt=b"bad \xff"), "b.txt: byte 4 is not UTF-8"),
        (tar_of(a__parquet=PARQUET[:-1]), "a.parquet: is no complete parquet file"),
        (tar_of(**{"x/a__txt": b"one", "y/a__txt": b"two"}), "two files would be stored as a.txt"),
    ],
)
def test_an_archive_with_a_fault_is_refused_with_its_file_and_leaves_nothing(
    api: Any, team: Any, bucket: str, body: bytes, says: str
) -> None:
    answer = upload(api, body, content_type="application/x-tar")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_dataset")
    assert says in answer.json()["detail"]
    assert stored_objects(team.id) == []


def test_a_name_is_given_once(api: Any, team: Any, bucket: str) -> None:
    assert upload(api, b"text").status_code == 201
    before = stored_objects(team.id)
    assert upload(api, b"other").status_code == 409
    assert stored_objects(team.id) == before


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 101])
def test_a_bad_name_is_refused(api: Any, bucket: str, name: str) -> None:
    assert upload(api, b"text", name=name).json()["errors"][0]["pointer"] == "/name"


def test_a_misspelt_data_set_is_answered_with_the_nearest(api: Any, spec: dict, world: Any, bucket: str) -> None:
    upload(api, b"text", name="shakespeare")
    spec["training"]["data"] = {"source": "dataset:shakespear"}
    assert "did you mean dataset:shakespeare?" in api.send("POST", "jobs", spec).json()["detail"]


@pytest.fixture
def own_bucket(settings: Any, bucket: str) -> Iterator[str]:
    storage.client().create_bucket(Bucket="userdata")
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"data_buckets": "userdata/public=red"})
    yield "userdata"
    for item in storage.listing("s3://userdata/"):
        storage.client().delete_object(Bucket="userdata", Key=storage.split(item.key)[1])
    storage.client().delete_bucket(Bucket="userdata")


def test_an_s3_prefix_is_used_when_it_is_allowed_and_not_empty(
    api: Any, spec: dict, world: Any, own_bucket: str
) -> None:
    spec["training"]["data"] = {"source": "s3://userdata/public/books"}
    empty = api.send("POST", "jobs", spec).json()
    assert empty["errors"][0]["code"] == "dataset_empty"
    storage.client().put_object(Bucket="userdata", Key="public/books/one.txt", Body=b"Once")
    made = api.send("POST", "jobs", spec)
    assert made.status_code == 201, made.content
    attempt = drive.start(Job.objects.get(pk=made.json()["id"]))
    source = run_config_of(attempt).dataset
    assert (source.origin, source.raw[0].parts[0].key) == ("plain", "s3://userdata/public/books/one.txt")
    spec["training"]["data"] = {"source": "s3://userdata/private"}
    assert api.send("POST", "jobs", spec).json()["errors"][0]["code"] == "bucket_not_allowed"


def test_a_prepared_data_set_is_given_to_later_jobs_of_the_same_recipe(submit: Any, bucket: str) -> None:
    first, second = submit(), submit(name="second")
    assert first.dataset_id == second.dataset_id
    data = DataSpec(source="builtin:python-stdlib")
    (recipe,) = dataset_recipes(data.parts, TokenizerSpec(), [first.dataset_id])
    manifest = DatasetManifest(
        recipe=recipe, fingerprint="f", vocab_size=2048, train_tokens=1, validation_tokens=1, documents=1,
        created_at=datetime(2026, 1, 1, tzinfo=UTC), files=[],
    )  # fmt: skip
    manifest = authenticate(manifest, keys.encryptor(first.dataset_id, first.team)).model_dump(mode="json")
    PreparedDataset.objects.create(dataset_id=first.dataset_id, recipe=recipe, manifest=manifest, job=first)
    attempt = drive.start(second)
    prepared = run_config_of(attempt).dataset.prepared
    assert prepared is not None
    assert prepared.recipe == recipe
