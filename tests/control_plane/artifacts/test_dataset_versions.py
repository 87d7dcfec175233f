"""Versions of data sets: numbered for good, named by aliases, fixed in a job when it is submitted."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Role
from athanor.artifacts import data_reports, dataset_diff, storage
from athanor.artifacts.models import Dataset, DatasetAlias, Deletion
from athanor.dispatch.services import run_config_of, spec_of
from athanor.jobs.models import Job
from athanor.jobs.states import JobStatus
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.artifacts.test_base_models import exported, finished_model
from tests.control_plane.artifacts.test_data_of_jobs import mixture_spec, prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import PARQUET, stored_objects, tar_of
from tests.control_plane.artifacts.test_lineage import edges, lineage, node
from tests.control_plane.artifacts.test_model_documentation import documentation, fact
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


def add(api: Api, name: str = "corpus", text: bytes = b"some text", *, new_version: bool = True) -> Any:
    query = f"name={name}&new_version={'true' if new_version else 'false'}"
    return api.generic("POST", f"/api/v1/datasets?{query}", text, content_type="text/plain")


@pytest.fixture
def versions(api: Api, bucket: str) -> list[str]:
    """Return the ids of the two versions of `corpus`."""
    return [done(add(api, new_version=False))["id"], done(add(api, text=b"other text"))["id"]]


def trained(api: Api, spec: dict[str, Any], source: str) -> Job:
    spec["training"]["data"] = {"source": source}
    return submitted(api, spec)


def problems(api: Api, spec: dict[str, Any]) -> list[tuple[str, str, str]]:
    answer = api.send("POST", "jobs", spec)
    assert answer.status_code == 422, answer.content
    return [(each["pointer"], each["code"], each["detail"]) for each in answer.json()["errors"]]


def test_a_name_in_use_becomes_a_version_only_on_request(api: Api, versions: list[str], team: Team) -> None:
    before = stored_objects(team.id)
    refused = add(api, new_version=False)
    assert (refused.status_code, refused.json()["code"]) == (409, "dataset_exists")
    assert "new_version=true" in refused.json()["remedy"]
    missing = add(api, "corpsu")
    assert missing.status_code == 404
    assert "leave new_version" in missing.json()["remedy"]
    assert stored_objects(team.id) == before
    third = done(add(api))
    assert (third["version"], third["spec_source"], third["aliases"]) == (3, "dataset:corpus@3", [])


def test_a_repeated_request_makes_one_version(api: Api, versions: list[str]) -> None:
    address = "/api/v1/datasets?name=corpus&new_version=true"
    first, again = (
        api.generic("POST", address, b"third", content_type="text/plain", HTTP_IDEMPOTENCY_KEY="k") for _ in "12"
    )
    assert done(first)["version"] == done(again)["version"] == 3
    assert Dataset.objects.filter(name="corpus").count() == 3


def test_lists_show_the_newest_version_or_all(api: Api, versions: list[str], bucket: str) -> None:
    add(api, "other", new_version=False)
    newest = done(api.send("GET", "datasets"))["items"]
    assert [(row["name"], row["version"]) for row in newest] == [("other", 1), ("corpus", 2)]
    every = done(api.send("GET", "datasets?versions=all&name=corpus"))["items"]
    assert [row["id"] for row in every] == versions[::-1]
    done(api.send("DELETE", f"datasets/{versions[1]}"))
    assert [row["version"] for row in done(api.send("GET", "datasets?name=corpus"))["items"]] == [1]


@pytest.mark.parametrize(
    ("source", "exact", "number"),
    [
        ("dataset:corpus", "dataset:corpus@2", 1),
        ("dataset:corpus@1", "dataset:corpus@1", 0),
        ("dataset:corpus@2", "dataset:corpus@2", 1),
        ("dataset:corpus@clean", "dataset:corpus@1", 0),
    ],
)
def test_a_job_reads_the_version_that_its_spec_meant_when_it_was_submitted(
    api: Api, spec: dict, world: Any, versions: list[str], source: str, exact: str, number: int
) -> None:
    done(api.send("PUT", f"datasets/{versions[0]}/aliases/clean"))
    job = trained(api, spec, source)
    assert job.resolved_spec["training"]["data"]["source"] == exact
    assert job.spec["training"]["data"]["source"] == source
    done(add(api))
    done(api.send("PUT", f"datasets/{versions[1]}/aliases/clean"))
    assert run_config_of(drive.start(job)).dataset.dataset_id == versions[number]


def test_a_data_set_with_one_version_is_named_as_before(api: Api, spec: dict, world: Any, bucket: str) -> None:
    identifier = done(add(api, new_version=False))["id"]
    job = trained(api, spec, "dataset:corpus")
    assert job.resolved_spec["training"]["data"]["source"] == "dataset:corpus"
    assert job.dataset_id == identifier


def test_the_source_that_trains_the_tokenizer_has_the_same_version(
    api: Api, spec: dict, world: Any, versions: list[str]
) -> None:
    mixture_spec(spec, "builtin:python-stdlib", "dataset:corpus", "dataset:corpus@1")
    spec["training"]["tokenizer"] = {"trained_on": "dataset:corpus"}
    resolved = submitted(api, spec).resolved_spec["training"]
    sources = [part["source"] for part in resolved["data"]["mixture"]]
    assert sources == ["builtin:python-stdlib", "dataset:corpus@2", "dataset:corpus@1"]
    assert resolved["tokenizer"]["trained_on"] == "dataset:corpus@2"


def test_one_version_under_two_names_is_refused(api: Api, spec: dict, world: Any, versions: list[str]) -> None:
    ((pointer, code, detail),) = problems(api, mixture_spec(spec, "dataset:corpus@2", "dataset:corpus"))
    assert (pointer, code) == ("/training/data/mixture/1/source", "conflict")
    assert "are the same version, dataset:corpus@2" in detail


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("dataset:corpus@7", "has no version 7 (it has 2, 1); `athanor dataset versions corpus`"),
        ("dataset:corpus@fresh", "has no alias 'fresh' (its aliases: clean)"),
        ("dataset:corpsu@1", "did you mean dataset:corpus?"),
    ],
)
def test_an_unknown_version_is_answered_with_what_there_is(
    api: Api, spec: dict, world: Any, versions: list[str], source: str, says: str
) -> None:
    done(api.send("PUT", f"datasets/{versions[0]}/aliases/clean"))
    spec["training"]["data"] = {"source": source}
    ((pointer, code, detail),) = problems(api, spec)
    assert (pointer, code) == ("/training/data/source", "dataset_missing")
    assert says in detail


def test_evaluations_are_of_the_version_that_was_newest_when_the_job_was_submitted(
    api: Api, spec: dict, world: Any, versions: list[str], bucket: str
) -> None:
    done(add(api, "held-out", new_version=False))
    tasks = [
        {"name": name, "kind": "loss", "source": f"dataset:{source}"}
        for name, source in (("first", "corpus"), ("second", "held-out"))
    ]
    evaluation = {"tasks": tasks, "sequence_length": 64}
    spec["output"] = {"register": "bot", "evaluation": evaluation}
    later = submitted(api, spec).resolved_spec["output"]["evaluation"]
    assert [each["source"] for each in later["tasks"]] == ["dataset:corpus@2", "dataset:held-out@1"]
    tasks[1]["source"] = "dataset:corpus@2"
    ((pointer, _, detail),) = problems(api, spec)
    assert pointer == "/output/evaluation/tasks/1/source"
    assert "same version" in detail


def test_a_report_is_compared_with_the_version_that_was_newest_when_the_job_was_submitted(
    api: Api, world: Any, versions: list[str], bucket: str
) -> None:
    done(add(api, "held-out", text=b"questions", new_version=False))
    report = {"sequence_length": 64, "evaluation": ["dataset:held-out"]}
    prepare = {"data": {"source": "dataset:corpus"}, "report": report}
    written = {"version": 1, "name": "r", "resources": {"cluster": "fake"}, "prepare": prepare}
    job = submitted(api, written)
    assert job.resolved_spec["prepare"]["report"]["evaluation"] == ["dataset:held-out@1"]
    done(add(api, "held-out", text=b"other questions"))
    first = Dataset.objects.get(name="held-out", version=1)
    assert [row.id for row in data_reports.compared_rows(job.team, spec_of(job))] == [first.id]
    report["evaluation"] = ["dataset:held-out@1", "dataset:missing"]
    ((pointer, code, _),) = problems(api, written)
    assert (pointer, code) == ("/prepare/report/evaluation/1", "dataset_missing")


def test_an_evaluation_job_names_the_versions_that_it_reads(
    api: Api, submit: Callable[..., Job], versions: list[str]
) -> None:
    artifact, _ = finished_model(submit)
    evaluation = {
        "model": f"model:{artifact.id}",
        "tasks": [{"name": "held-out", "kind": "loss", "source": "dataset:corpus"}],
        "sequence_length": 64,
    }
    job = submitted(api, {"version": 1, "name": "e", "resources": {"cluster": "fake"}, "evaluation": evaluation})
    assert job.resolved_spec["evaluation"]["tasks"][0]["source"] == "dataset:corpus@2"
    assert job.resolved_spec["training"]["data"]["mixture"][0]["source"] == "dataset:corpus@2"
    assert job.dataset_ids == [versions[1]]


def test_an_alias_is_moved_and_removed_in_the_audit_trail(
    api: Api, versions: list[str], api_of: Callable[..., Api], make_user: Callable[..., User], team: Team
) -> None:
    for number in (0, 1, 1):
        shown = done(api.send("PUT", f"datasets/{versions[number]}/aliases/clean"))
        assert (shown["version"], shown["aliases"]) == (number + 1, ["clean"])
    assert done(api.send("GET", f"datasets/{versions[0]}"))["aliases"] == []
    records = AuditEvent.objects.filter(action="dataset.alias_move").order_by("seq")
    moves = [(each.before["version"], each.after["version"]) for each in records]
    assert moves == [(None, 1), (1, 2)], "the third request changed nothing"
    assert api.send("DELETE", f"datasets/{versions[0]}/aliases/clean").status_code == 404
    viewer = api_of(make_user("vera", team, Role.VIEWER), team)
    for method in ("PUT", "DELETE"):
        assert viewer.send(method, f"datasets/{versions[1]}/aliases/clean").status_code == 403
    assert api.send("DELETE", f"datasets/{versions[1]}/aliases/clean").status_code == 204
    assert not DatasetAlias.objects.exists()
    assert AuditEvent.objects.filter(action="dataset.alias_remove").get().before["version"] == 2


def test_the_same_alias_names_versions_of_several_data_sets(api: Api, versions: list[str], bucket: str) -> None:
    other = done(add(api, "other", new_version=False))["id"]
    for identifier in (versions[0], other):
        done(api.send("PUT", f"datasets/{identifier}/aliases/clean"))
    assert DatasetAlias.objects.count() == 2


def test_only_versions_of_uploads_have_aliases(api: Api, submit: Callable[..., Job]) -> None:
    answer = api.send("PUT", f"datasets/{submit().dataset_id}/aliases/clean")
    assert (answer.status_code, answer.json()["code"]) == (422, "no_versions")


def test_the_number_of_a_deleted_version_is_not_used_again(
    api: Api, spec: dict, world: Any, versions: list[str]
) -> None:
    deletion = done(api.send("DELETE", f"datasets/{versions[1]}"))
    assert deletion["name"] == "corpus@2"
    assert trained(api, spec, "dataset:corpus").dataset_id == versions[0]
    assert done(add(api))["version"] == 3
    done(api.send("POST", f"deletions/{deletion['id']}:restore"))
    numbers = [row["version"] for row in done(api.send("GET", "datasets?versions=all&name=corpus"))["items"]]
    assert sorted(numbers) == [1, 2, 3]


def test_a_name_that_is_free_again_continues_its_numbers(api: Api, versions: list[str]) -> None:
    for identifier in versions:
        done(api.send("DELETE", f"datasets/{identifier}"))
    assert add(api).status_code == 404, "nothing to add a version to"
    assert done(add(api, new_version=False))["version"] == 3


def test_a_deletion_from_before_there_were_numbers_is_restored_unless_its_number_is_taken(
    api: Api, bucket: str
) -> None:
    first = done(add(api, new_version=False))["id"]
    deletion = done(api.send("DELETE", f"datasets/{first}"))["id"]
    Deletion.objects.filter(pk=deletion).update(version=None)
    second = done(add(api, new_version=False))["id"]
    Dataset.objects.filter(pk=second).update(version=1)
    taken = api.send("POST", f"deletions/{deletion}:restore")
    refused(taken, "dataset_exists", "delete that one first")
    done(api.send("DELETE", f"datasets/{second}"))
    done(api.send("POST", f"deletions/{deletion}:restore"))
    assert Dataset.objects.get(pk=first).name == "corpus"


def test_a_deletion_names_what_descends_from_the_version(
    api: Api, submit: Callable[..., Job], spec: dict, versions: list[str]
) -> None:
    attempt = drive.start(submit(training={**spec["training"], "data": {"source": "dataset:corpus@1"}}))
    registered(api, exported(attempt))
    Job.objects.filter(pk=attempt.job_id).update(status=JobStatus.SUCCEEDED)
    done(api.send("PUT", f"datasets/{versions[0]}/aliases/clean"))
    preview = done(api.send("GET", f"datasets/{versions[0]}/deletion"))
    assert [used["id"] for used in preview["used_by"]] == [attempt.job_id]
    assert (preview["name"], preview["registered"], preview["aliases"]) == ("corpus@1", ["bot@1"], ["clean"])
    other = done(api.send("GET", f"datasets/{versions[1]}/deletion"))
    assert (other["used_by"], other["registered"], other["aliases"]) == ([], [], [])
    refused = api.send("DELETE", f"datasets/{versions[0]}")
    assert (refused.status_code, refused.json()["code"]) == (409, "dataset_in_use")
    assert "athanor dataset alias corpus clean --remove" in refused.json()["remedy"]
    api.send("DELETE", f"datasets/{versions[0]}/aliases/clean")
    done(api.send("DELETE", f"datasets/{versions[0]}"))


def test_lineage_shows_the_version_and_the_alias_that_named_it(
    api: Api, spec: dict, world: Any, versions: list[str]
) -> None:
    done(api.send("PUT", f"datasets/{versions[0]}/aliases/clean"))
    job = trained(api, spec, "dataset:corpus@clean")
    found = lineage(api, job.id)
    assert node(found, versions[0])["name"] == "corpus@1"
    assert edges(found) == {(job.id, "trained_on", versions[0])}
    assert [edge["reference"] for edge in found["edges"]] == ["dataset:corpus@clean"]
    assert lineage(api, versions[0])["edges"] == found["edges"]
    by_number = trained(api, spec, "dataset:corpus@1")
    assert [edge["reference"] for edge in lineage(api, by_number.id)["edges"]] == [""]
    assert edges(lineage(api, versions[1])) == set()


def test_each_version_has_its_own_key_and_tokenised_forms(api: Api, world: Any, versions: list[str]) -> None:
    rows = {row.id: row for row in Dataset.objects.filter(pk__in=versions)}
    keys = {part["key"] for row in rows.values() for file in row.files for part in file["parts"]}
    assert len(keys) == 2
    assert all(storage.get(key) is not None for key in keys)
    prepared = submitted(api, prepare_spec("dataset:corpus@1"))
    states = {
        row["version"]: row["preparation"]["state"] for row in done(api.send("GET", "datasets?versions=all"))["items"]
    }
    assert states == {1: "running", 2: "none"}
    assert prepared.dataset_ids == [versions[0]]


def test_the_documentation_of_a_model_has_the_weight_of_each_version(
    api: Api, submit: Callable[..., Job], spec: dict, versions: list[str]
) -> None:
    parts = [{"source": "dataset:corpus@1", "weight": 3}, {"source": "dataset:corpus@2", "weight": 1}]
    attempt = drive.start(submit(training={**spec["training"], "data": {"mixture": parts}}))
    found = documentation(api, registered(api, exported(attempt)))
    weights = [fact(found, "1.2(c)", "Weight in the mixture", each) for each in versions]
    assert weights == ["3", "1"]


def test_another_team_has_versions_of_its_own(
    api: Api, versions: list[str], api_of: Callable[..., Api], make_user: Callable[..., User], other_team: Team
) -> None:
    stranger = api_of(make_user("eve", other_team), other_team)
    assert done(add(stranger, new_version=False))["version"] == 1
    assert stranger.send("PUT", f"datasets/{versions[0]}/aliases/clean").status_code == 404
    assert done(stranger.send("GET", "datasets?versions=all&name=corpus"))["items"][0]["version"] == 1


def diff(api: Api, *contents: bytes) -> Any:
    """Return the difference between two versions, each the content of a tar archive."""
    ids = []
    for number, content in enumerate(contents):
        query = f"name=books&new_version={'true' if number else 'false'}"
        answer = api.generic("POST", f"/api/v1/datasets?{query}", content, content_type="application/x-tar")
        ids.append(done(answer)["id"])
    return done(api.send("GET", f"datasets/{ids[1]}/diff?from={ids[0]}"))


def test_a_diff_counts_files_and_rows_by_their_content(api: Api, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("athanor.artifacts.uploads.PART_PLAINTEXT_BYTES", 30)  # rows are cut between parts
    rows = [b'{"text": "row %d"}\n' % number for number in range(6)]
    found = diff(
        api,
        tar_of(a__jsonl=rows[0] + rows[1] + rows[1] + rows[2], b__txt=b"same text\n", gone__txt=b"one\n\ntwo"),
        tar_of(a__jsonl=rows[3] + rows[1] + rows[0], b__txt=b"same text\n", new__txt=b"two"),
    )
    assert {name: found[name] for name in ("added", "removed", "changed", "same", "unknown")} == {
        "added": ["new.txt"], "removed": ["gone.txt"], "changed": ["a.jsonl"], "same": ["b.txt"], "unknown": [],
    }  # fmt: skip
    # Both have row 0, row 1 once, "same text" and "two".
    assert found["rows"] == {"added": 1, "removed": 3, "common": 4}
    assert found["note"] == ""
    assert (found["before"]["version"], found["after"]["version"]) == (1, 2)
    records = AuditEvent.objects.filter(action="dataset.diff").order_by("seq")
    assert [each.target_id for each in records] == [found["before"]["id"], found["after"]["id"]]


def test_files_of_equal_size_are_compared_by_content(api: Api, bucket: str) -> None:
    found = diff(api, tar_of(a__txt=b"one", b__txt=b"same"), tar_of(a__txt=b"two", b__txt=b"same"))
    assert (found["changed"], found["same"]) == (["a.txt"], ["b.txt"])


def test_large_versions_are_compared_without_reading_them(
    api: Api, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_diff, "MAX_BYTES", 6)
    monkeypatch.setattr("athanor.artifacts.previews.read_part", None)
    found = diff(api, tar_of(a__txt=b"one", b__txt=b"same"), tar_of(a__txt=b"three", b__txt=b"same"))
    assert (found["changed"], found["unknown"], found["rows"]) == (["a.txt"], ["b.txt"], None)
    assert "no content was compared" in found["note"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(tar_of(a__txt=b"1\n2\n3\n4"), "more than 3 different rows"), (tar_of(a__parquet=PARQUET), "files of parquet")],
)
def test_rows_that_are_not_compared_are_noted(
    api: Api, bucket: str, monkeypatch: pytest.MonkeyPatch, content: bytes, says: str
) -> None:
    monkeypatch.setattr(dataset_diff, "MAX_ROWS", 3)
    found = diff(api, content, content)
    assert (found["rows"], len(found["same"])) == (None, 1)
    assert says in found["note"]


def test_a_diff_needs_the_right_to_read_both(
    api: Api, versions: list[str], api_of: Callable[..., Api], make_user: Callable[..., User], other_team: Team
) -> None:
    stranger = api_of(make_user("eve", other_team), other_team)
    own = done(add(stranger, new_version=False))["id"]
    assert stranger.send("GET", f"datasets/{own}/diff?from={versions[0]}").status_code == 404
    assert stranger.send("GET", f"datasets/{versions[0]}/diff?from={own}").status_code == 404
    assert api.send("GET", f"datasets/{versions[0]}/diff").json()["errors"][0]["pointer"] == "/from"


def test_data_that_is_not_an_upload_is_not_compared(api: Api, submit: Callable[..., Job], versions: list[str]) -> None:
    answer = api.send("GET", f"datasets/{versions[0]}/diff?from={submit().dataset_id}")
    assert (answer.status_code, answer.json()["code"]) == (422, "no_versions")
