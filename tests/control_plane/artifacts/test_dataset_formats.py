"""What an upload holds is detected, previewed, and used by specs that leave it open; what cannot be read is refused."""

import importlib
import io
import json
import subprocess
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.db import connection

from athanor.accounts.models import AuditEvent
from athanor.accounts.roles import Scope
from athanor.accounts.services import issue_token
from athanor.artifacts import inspection, parquet_rows, previews, storage
from athanor.artifacts.datasets import with_detected_formats
from athanor.artifacts.models import Dataset
from athanor.core.errors import Invalid
from athanor.dispatch.services import spec_of
from athanor.jobs.models import DatasetUse, Job
from tests.control_plane import drive
from tests.control_plane.artifacts.test_data_of_jobs import AgentClient, manifest_of, prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import parquet, tar_of, upload
from tests.control_plane.conftest import Api
from trainer.contract.data import DataSpec
from trainer.contract.recipe import dataset_recipes

pytestmark = pytest.mark.django_db

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}

ANSWER = [{"role": "assistant", "content": "No"}]


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def inspect(api: Any, name: str, body: bytes, **query: Any) -> Any:
    asked = "&".join(f"{key}={value}" for key, value in {"name": name, **query}.items())
    return api.generic("POST", f"/api/v1/datasets:inspect?{asked}", body, content_type="application/octet-stream")


@pytest.mark.parametrize(
    ("name", "body", "format_", "text_field", "fields", "note"),
    [
        ("a.txt", b"one\n\ntwo\n", "text", "", None, ""),
        ("a.jsonl", lines({"text": "x", "id": 1}), "jsonl", "text", ["text"], ""),
        ("a.jsonl", lines({"id": "1", "content": "x"}), "jsonl", "content", ["id", "content"], ""),
        ("a.jsonl", lines({"question": "x", "answer": "y"}), "jsonl", "", ["question", "answer"], ""),
        ("a.jsonl", lines(CHAT), "chat", "messages", [], ""),
        ("a.jsonl", lines({"source": "web", "dialog": CHAT["messages"]}), "chat", "dialog", ["source"], ""),
        ("a.jsonl", lines({"conversations": [{"from": "human", "value": "x"}]}), "jsonl", "", [], "'from' and 'value'"),
        ("a.jsonl", lines({"prompt": "x", "chosen": "y", "rejected": "z"}), "preference", "",
         ["prompt", "chosen", "rejected"], "preference pairs"),
        ("a.jsonl", lines({"prompt": CHAT["messages"][:1], "chosen": CHAT["messages"][1:], "rejected": ANSWER}),
         "preference", "", [], "preference pairs"),
        ("a.jsonl", lines({"chosen": CHAT["messages"], "rejected": ANSWER}), "preference", "", [], "preference pairs"),
        ("a.jsonl", lines({**CHAT, "chosen": CHAT["messages"], "rejected": ANSWER}), "chat", "messages", [], ""),
        ("a.jsonl", lines({"prompt": "x", "completion": "y", "label": True}), "unpaired", "", ["prompt", "completion"],
         "answers with a label"),
        ("a.jsonl", lines({**CHAT, "label": False}), "unpaired", "", [], "answers with a label"),
        ("a.jsonl", lines({"text": "x", "label": True}), "jsonl", "text", ["text"], ""),
        ("a.jsonl", lines({**CHAT, "label": "good"}), "chat", "messages", ["label"], ""),
        ("a.json", lines({"text": "x"}), "jsonl", "text", ["text"], ""),
        ("a.parquet", parquet(body=["x", "y"], n=[1, 2]), "parquet", "body", ["body"], ""),
    ],
)  # fmt: skip
def test_a_sample_shows_what_a_file_holds(
    api: Any, name: str, body: bytes, format_: str, text_field: str, fields: list[str] | None, note: str
) -> None:
    answer = inspect(api, name, body)
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert (found["format"], found["text_field"], found["fields_with_text"]) == (format_, text_field, fields)
    assert note in found["note"]
    assert bool(note) == bool(found["note"])


def test_the_first_rows_are_returned_with_long_texts_cut_and_only_as_many_as_asked_for(api: Any) -> None:
    body = lines({"text": "a" * 5000, "half": "\ud800", "nan": float("nan")}, {"text": "b"}, {"text": "c"})
    found = inspect(api, "a.jsonl", body, rows=2).json()
    assert [row["text"][-2:] for row in found["rows"]] == ["a…", "b"]
    assert len(found["rows"][0]["text"]) == inspection.MAX_PREVIEW_CHARACTERS + 1
    assert (found["rows"][0]["half"], found["rows"][0]["nan"]) == ("?", "nan")
    assert inspect(api, "a.txt", "Grüße\n\nzwei\ndrei".encode(), rows=2).json()["rows"] == ["Grüße", "zwei"]


@pytest.mark.parametrize(
    ("name", "body", "format_", "says"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "auto", "line 2 is not JSON"),
        ("a.jsonl", b"[1]\n", "auto", "line 1 is not a JSON object"),
        ("a.jsonl", b'{"a":' * 100_000, "auto", "nested too deeply"),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "x"}\n', "auto", "BOM"),
        ("a.json", b'[\n{"text": "x"}\n]', "auto", "jq -c '.[]'"),
        ("a.jsonl", lines({"text": "x"}), "chat", "no list of messages"),
        ("a.jsonl", lines({"messages": [{"role": "user"}]}), "chat", "messages [0] has no text in 'content'"),
        ("a.parquet", b"PAR1" + bytes(20) + b"PAR1", "auto", "no readable parquet file"),
        ("a.txt", b"so weit g\xfct", "auto", "byte 9 is not UTF-8"),
        ("a.txt", b"x" * (inspection.SAMPLE_BYTES + 1), "auto", "the sample is larger"),
    ],
)
def test_a_sample_that_an_upload_would_refuse_is_refused_with_its_place_and_a_remedy(
    api: Any, name: str, body: bytes, format_: str, says: str
) -> None:
    answer = inspect(api, name, body, format=format_)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_dataset")
    assert says in f"{answer.json()['detail']} {answer.json()['remedy']}"
    assert answer.json()["remedy"]


def test_a_sample_may_end_within_a_line_or_a_character(api: Any) -> None:
    line = lines({"text": "é" * 50_000})
    sample = (line * 10)[: inspection.SAMPLE_BYTES]
    assert len(sample) == inspection.SAMPLE_BYTES
    assert inspect(api, "a.jsonl", sample).json()["text_field"] == "text"
    assert inspect(api, "a.txt", "é".encode()[:1]).json()["rows"] == []


def test_an_upload_remembers_what_it_holds(api: Any, bucket: str) -> None:
    made = upload(api, lines(CHAT, CHAT), content_type="application/jsonl").json()
    assert (made["format"], made["text_field"], made["documents"]) == ("chat", "messages", 2)
    assert Dataset.objects.get(pk=made["id"]).files[0]["path"].endswith(".jsonl")
    made = upload(api, parquet(body=["x"] * 7), name="table", content_type="application/vnd.apache.parquet").json()
    assert (made["format"], made["text_field"], made["documents"]) == ("parquet", "body", 7)
    made = upload(api, lines(CHAT), name="as-lines", format_="jsonl", content_type="application/jsonl").json()
    assert (made["format"], made["fields_with_text"]) == ("jsonl", [])
    both = tar_of(a__jsonl=lines({"text": "x", "title": "y"}), b__jsonl=lines({"title": "y", "text": "x"}))
    made = upload(api, both, name="both", content_type="application/x-tar").json()
    assert (made["format"], made["text_field"], made["fields_with_text"]) == ("jsonl", "text", ["text", "title"])
    mixed = tar_of(a__jsonl=lines(CHAT), b__txt=b"text")
    made = upload(api, mixed, name="mixed", content_type="application/x-tar").json()
    assert (made["format"], made["text_field"]) == ("auto", "messages")


def test_the_field_to_train_on_may_be_named_with_the_upload(
    api: Any, spec: dict[str, Any], world: Any, bucket: str
) -> None:
    body = lines({"question": "x", "answer": "y"})
    path = "/api/v1/datasets?name=mine&text_field="
    answer = api.generic("POST", f"{path}anser", body, content_type="application/jsonl")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/text_field")
    assert "question, answer" in answer.json()["detail"]
    made = api.generic("POST", f"{path}answer", body, content_type="application/jsonl").json()
    assert made["text_field"] == "answer"
    spec["training"]["data"] = {"source": "dataset:mine"}
    assert submitted(api, spec).resolved_spec["training"]["data"]["text_field"] == "answer"


def test_a_line_that_is_no_conversation_among_conversations_is_refused_with_its_number(api: Any, bucket: str) -> None:
    answer = upload(api, lines(CHAT, CHAT, {"messages": []}), content_type="application/jsonl")
    assert answer.status_code == 422
    assert "line 3: messages is not a list of messages, unlike the first line" in answer.json()["detail"]


def test_a_line_without_a_label_among_labelled_answers_is_refused_with_its_number(api: Any, bucket: str) -> None:
    labelled = {"prompt": "x", "completion": "y", "label": True}
    assert (
        upload(api, lines(labelled, {**labelled, "label": False}), content_type="application/jsonl").status_code == 201
    )
    answer = upload(api, lines(labelled, {**labelled, "label": 1}), name="other", content_type="application/jsonl")
    assert answer.status_code == 422
    assert "line 2 has the label 1; write true for an answer to prefer" in answer.json()["detail"]


def test_a_spec_that_leaves_the_format_open_trains_on_conversations(
    api: Any, spec: dict[str, Any], world: Any, bucket: str
) -> None:
    upload(api, lines(CHAT), name="chats", content_type="application/jsonl")
    spec["training"]["data"] = {"source": "dataset:chats"}
    data = submitted(api, spec).resolved_spec["training"]["data"]
    assert (data["format"], data["packing"], data["text_field"]) == ("chat", "documents", "text")
    plan = api.send("POST", "jobs:plan", spec)
    assert plan.status_code == 200, plan.content
    prepared = submitted(api, prepare_spec("dataset:chats")).resolved_spec["prepare"]["data"]
    assert prepared["format"] == "chat"
    spec["training"]["data"]["packing"] = "none"
    (problem,) = api.send("POST", "jobs", spec).json()["errors"]
    assert problem["pointer"] == "/training/data/packing"
    assert "dataset:chats contains conversations" in problem["detail"]


@pytest.mark.parametrize(
    ("record", "written", "resolved"),
    [
        ({"text": "x"}, {}, ("auto", "text")),
        ({"content": "x", "id": "1"}, {}, ("auto", "content")),
        ({"question": "x", "answer": "y"}, {"text_field": "answer"}, ("auto", "answer")),
        ({"dialog": CHAT["messages"]}, {}, ("chat", "dialog")),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, {"format": "jsonl", "text_field": "chosen"},
         ("jsonl", "chosen")),
    ],
)  # fmt: skip
def test_the_field_with_the_text_follows_from_the_upload(
    api: Any, spec: dict[str, Any], world: Any, bucket: str, record: Any, written: Any, resolved: Any
) -> None:
    upload(api, lines(record), name="mine", content_type="application/jsonl")
    spec["training"]["data"] = {"source": "dataset:mine", **written}
    data = submitted(api, spec).resolved_spec["training"]["data"]
    assert (data["format"], data["text_field"]) == resolved


@pytest.mark.parametrize(("form", "needed"), [("preference", "pairs"), ("unpaired", "answers, with a label")])
def test_preference_data_is_read_as_such_and_nothing_else_is(form: str, needed: str) -> None:
    data = DataSpec.model_validate(
        {"source": "dataset:x", "format": form, "packing": "documents", "long_documents": "drop"}
    )
    sealed = Dataset.Origin.SEALED
    found = with_detected_formats(data, [Dataset(origin=sealed, format=form, fields=["chosen"])], "/training")
    assert found.format == form
    with pytest.raises(Invalid, match=f"has the format chat, not {form}; take a data set of {needed}") as refused:
        with_detected_formats(data, [Dataset(origin=sealed, format="chat", text_field="messages")], "/training")
    assert refused.value.problems[0].pointer == "/training/data/format"


@pytest.mark.parametrize(
    ("record", "written", "pointer", "says", "remedy"),
    [
        ({"question": "x", "answer": "y"}, {}, "text_field", "has no text in 'text'", {"text_field": "answer"}),
        ({"text": "x"}, {"text_field": "body"}, "text_field", "(text)", {"text_field": "text"}),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, {}, "format", "contains preference pairs",
         {"format": "jsonl", "text_field": "chosen"}),
        ({"prompt": "x", "completion": "z", "label": True}, {}, "format", "contains answers with a label",
         {"format": "jsonl", "text_field": "completion"}),
        ({"n": 1}, {}, "text_field", "has no field with text", None),
    ],
)  # fmt: skip
def test_a_spec_that_could_only_fail_is_refused_and_its_remedy_works(
    api: Any, spec: dict[str, Any], world: Any, bucket: str, record: Any, written: Any, pointer: str, says: str,
    remedy: Any,
) -> None:  # fmt: skip
    upload(api, lines(record), name="mine", content_type="application/jsonl")
    spec["training"]["data"] = {"source": "dataset:mine", **written}
    (problem,) = api.send("POST", "jobs", spec).json()["errors"]
    assert problem["pointer"] == f"/training/data/{pointer}"
    assert says in problem["detail"]
    spec["training"]["data"] = {"mixture": [{"source": "builtin:python-stdlib"}, {"source": "dataset:mine", **written}]}
    (problem,) = api.send("POST", "jobs", spec).json()["errors"]
    assert problem["pointer"] == f"/training/data/mixture/1/{pointer}"
    if remedy is not None:
        spec["training"]["data"] = {"source": "dataset:mine", **remedy}
        submitted(api, spec)


def test_an_upload_of_an_earlier_version_is_read_as_before(
    api: Any, spec: dict[str, Any], world: Any, bucket: str
) -> None:
    upload(api, lines({"question": "x"}), name="mine", content_type="application/jsonl")
    Dataset.objects.filter(name="mine").update(fields=None, text_field="")
    spec["training"]["data"] = {"source": "dataset:mine"}
    assert submitted(api, spec).resolved_spec["training"]["data"]["text_field"] == "text"


def test_a_preview_shows_the_first_rows_and_is_audited(api: Any, team: Any, bucket: str) -> None:
    dataset_id = upload(api, lines(CHAT, CHAT, CHAT), content_type="application/jsonl").json()["id"]
    found = api.send("GET", f"datasets/{dataset_id}/preview?rows=2").json()
    assert (found["format"], found["rows"]) == ("chat", [CHAT, CHAT])
    assert AuditEvent.objects.filter(action="dataset.preview", target_id=dataset_id).count() == 1
    table = upload(api, parquet(body=["x", "y"], n=[1, 2]), name="table", content_type="application/vnd.apache.parquet")
    found = api.send("GET", f"datasets/{table.json()['id']}/preview").json()
    assert (found["rows"], found["documents"]) == ([{"body": "x", "n": 1}, {"body": "y", "n": 2}], 2)


def test_rows_that_would_fill_the_memory_are_not_shown(api: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of zeros: a few kilobytes of parquet that are half a gigabyte when they are read."""
    monkeypatch.setattr(previews, "PARQUET_MEMORY_BYTES", 2**29)
    sink = io.BytesIO()
    block = pa.table({"text": ["0" * 2**26] * 2})
    with pq.ParquetWriter(sink, block.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(4):
            writer.write_table(block)
    content = sink.getvalue()
    assert len(content) < 2**20
    made = upload(api, content, content_type="application/vnd.apache.parquet").json()
    found = api.send("GET", f"datasets/{made['id']}/preview?rows=100").json()
    assert (found["rows"], found["documents"]) == ([], 8)
    assert "could not be read within the limits of a preview" in found["note"]


def test_long_rows_of_parquet_are_cut_before_they_reach_the_web_server(
    api: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = subprocess.run

    def measured(*arguments: Any, **options: Any) -> Any:
        ended = run(*arguments, **options)
        sizes.append(len(ended.stdout))
        return ended

    monkeypatch.setattr("athanor.artifacts.previews.subprocess.run", measured)
    long = parquet(text=["0" * 2**25] * 4)
    made = upload(api, long, content_type="application/vnd.apache.parquet").json()
    rows = api.send("GET", f"datasets/{made['id']}/preview").json()["rows"]
    assert [len(row["text"]) for row in rows] == [inspection.MAX_PREVIEW_CHARACTERS + 1] * 4
    nested = parquet(lists=[[["0" * 2000] * 20] * 20] * 20)  # 20 rows of 800 kB, each within what is shown of a list
    made = upload(api, nested, name="nested", content_type="application/vnd.apache.parquet").json()
    assert 0 < len(api.send("GET", f"datasets/{made['id']}/preview?rows=20").json()["rows"]) < 20
    assert max(sizes) <= parquet_rows.MAX_OUTPUT_CHARACTERS + 20


def test_a_data_set_that_is_damaged_in_the_store_has_no_preview(api: Any, bucket: str) -> None:
    dataset_id = upload(api, lines(CHAT), content_type="application/jsonl").json()["id"]
    (part,) = Dataset.objects.get(pk=dataset_id).files[0]["parts"]
    storage.put(part["key"], bytes(part["size"]))
    answer = api.send("GET", f"datasets/{dataset_id}/preview")
    assert (answer.status_code, answer.json()["code"]) == (409, "dataset_damaged")
    storage.delete([part["key"]])
    assert "not in the object store" in api.send("GET", f"datasets/{dataset_id}/preview").json()["detail"]


def test_a_token_without_the_scope_and_another_team_see_no_content(
    api: Any, api_of: Any, make_user: Any, user: Any, team: Any, other_team: Any, bucket: str
) -> None:
    dataset_id = upload(api, lines(CHAT), content_type="application/jsonl").json()["id"]
    reader = Api()
    reader.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 'reads', scopes=[Scope.READ])[1]}")
    assert reader.send("GET", f"datasets/{dataset_id}").status_code == 200
    assert reader.send("GET", f"datasets/{dataset_id}/preview").json()["code"] == "role_missing"
    stranger = api_of(make_user("stranger", other_team), other_team)
    assert stranger.send("GET", f"datasets/{dataset_id}/preview").status_code == 404
    assert stranger.send("GET", f"jobs?dataset={dataset_id}").json()["items"] == []


def test_a_data_set_shows_its_files_preparation_and_jobs(
    api: Any, spec: dict[str, Any], world: Any, bucket: str
) -> None:
    dataset_id = upload(api, b"text", name="one").json()["id"]
    path = f"datasets/{dataset_id}"
    shown = api.send("GET", path).json()
    assert (shown["preparation"]["state"], shown["tokenised_forms"]) == ("none", [])
    assert shown["files"] == [{"path": "data.txt", "size_bytes": 4}]
    assert shown["digest"] == api.send("GET", path).json()["digest"]
    job = submitted(api, prepare_spec("dataset:one"))
    listed = api.send("GET", "datasets").json()["items"][0]["preparation"]
    assert (listed["state"], listed["job"]["id"]) == ("running", job.id)
    attempt = drive.start(job)
    recipe = dataset_recipes(spec_of(job).data.parts, spec_of(job).tokenizer, [dataset_id])[0]
    assert AgentClient(attempt)("POST", "datasets", manifest_of(attempt, dataset_id, recipe)).status_code == 201
    Job.objects.filter(pk=job.pk).update(status="succeeded")
    shown = api.send("GET", path).json()
    assert (shown["preparation"]["state"], shown["preparation"]["tokens"]) == ("ready", 2)
    assert shown["tokenised_forms"][0]["recipe"] == recipe
    spec["training"]["data"] = {"source": "dataset:one"}
    trained = submitted(api, spec)
    spec["training"]["data"] = {"mixture": [{"source": "builtin:python-stdlib"}, {"source": "dataset:one"}]}
    mixed = submitted(api, spec)
    submitted(api, {**spec, "training": {**spec["training"], "data": {"source": "builtin:python-stdlib"}}})
    used = [item["id"] for item in api.send("GET", f"jobs?dataset={dataset_id}").json()["items"]]
    assert used == [mixed.id, trained.id, job.id]
    assert api.delete(f"/api/v1/{path}/preparations").json() == {"forgotten": 1}
    Job.objects.filter(pk=job.pk).update(status="failed")
    assert api.send("GET", path).json()["preparation"]["state"] == "failed"


def test_an_upgrade_finds_the_data_sets_of_earlier_jobs(
    api: Any, spec: dict[str, Any], world: Any, bucket: str
) -> None:
    for name in ("one", "two"):
        upload(api, b"text", name=name)
    submitted(api, prepare_spec("dataset:one"))
    submitted(api, prepare_spec("builtin:python-stdlib"))
    parts = [{"source": source} for source in ("dataset:two", "builtin:python-stdlib", "dataset:one")]
    spec["training"]["data"] = {"mixture": parts}
    submitted(api, spec)
    columns = ("job_id", "team_id", "dataset_id", "prepares")
    expected = sorted(DatasetUse.objects.values_list(*columns))
    assert len(expected) == 3
    DatasetUse.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(importlib.import_module("athanor.jobs.migrations.0015_datasetuse").OF_EARLIER_JOBS)
    assert sorted(DatasetUse.objects.values_list(*columns)) == expected
