"""Data reports: only members read them, only the job that makes one registers it, and they go with their data set."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Team
from athanor.accounts.roles import Role, Scope
from athanor.accounts.services import issue_token
from athanor.artifacts import data_reports, deletions, keys, manifests, storage, unreferenced, usage
from athanor.artifacts.models import DataKey, DataReport, Dataset, Deletion
from athanor.backups import referenced
from athanor.core.errors import Conflict
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_data_of_jobs import AgentClient, mixture_spec, prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_lineage import edges, lineage, node
from tests.control_plane.artifacts.test_manifests import rewrite
from tests.control_plane.conftest import Api
from trainer.contract.data_findings import FINDINGS
from trainer.contract.data_report import MAX_REPORT_BYTES, REPORT_NAME, Finding, SourceReport
from trainer.contract.data_report import DataReport as Content
from trainer.contract.encryption import Encryptor, authenticate, new_keyset
from trainer.contract.manifest import DataReportManifest, StoredFile
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
LONG_AGO = "2026-01-01T00:00:00Z"


def report_spec(*sources: str, **fields: Any) -> dict[str, Any]:
    spec = prepare_spec(*sources, **fields)
    spec["prepare"]["report"] = {"sequence_length": 64}
    return spec


def content_of(*kinds: str, source: str = "dataset:one", title: str = "") -> Content:
    findings = [
        Finding(
            kind=kind, severity=FINDINGS[kind].severity, title=title or FINDINGS[kind].title, count=1, share=0.5,
            places=[], remedy=FINDINGS[kind].remedy,
        )
        for kind in kinds
    ]  # fmt: skip
    split = {"documents": 1, "tokens": 4, "learned_tokens": 4, "text_bytes": 9}
    lengths = {"bounds": [64], "counts": [1, 0], "longest": 4, "mean": 4.0, "cut_documents": 0, "lost_tokens": 0}
    packing = {"none": 1, "documents": 1, "alone": 1, "padding": 0.5}
    of_source = SourceReport(
        source=source, format="text", read_bytes=9, rows=1, vocab_size=300, overlap=None, findings=findings, preview=[],
        splits={"train": split, "validation": split}, lengths=lengths, packing=packing, scripts={"LATIN": 1.0},
    )  # fmt: skip
    return Content(sequence_length=64, packing="none", long_documents="cut", sources=[of_source])


def stored_report(
    attempt: Attempt, dataset_id: str, content: bytes, digest: str, key: str | None = None
) -> dict[str, Any]:
    """Store a report as an agent does; `key`: another than the data set's. Return its manifest."""
    encryptor = Encryptor(key) if key else keys.encryptor(dataset_id, attempt.job.team)
    prefix = f"jobs/{attempt.job_id}/data-report/{attempt.number}/{dataset_id}/"
    ciphertext, part = encryptor.encrypt(content, f"{prefix}{REPORT_NAME}-000.part")
    storage.put(part.key, ciphertext)
    manifest = DataReportManifest(
        job_id=attempt.job_id, attempt_id=attempt.id, dataset_id=dataset_id, digest=digest,
        created_at=datetime.now(UTC), files=[StoredFile(path=REPORT_NAME, parts=[part])],
    )  # fmt: skip
    return authenticate(manifest, encryptor).model_dump(mode="json")


def register(attempt: Attempt, dataset_id: str, content: Content) -> DataReport:
    manifest = stored_report(attempt, dataset_id, content.content, content.digest)
    answer = AgentClient(attempt)("POST", "data-reports", manifest)
    assert answer.status_code == 201, answer.content
    return DataReport.objects.get(pk=answer.json()["id"])


def refused(answer: Any, code: str) -> str:
    assert answer.status_code in (403, 404, 409, 422), answer.content
    assert answer.json()["code"] == code
    return str(answer.json()["detail"])


@pytest.fixture
def dataset(api: Api, world: Any, bucket: str) -> str:
    return str(upload(api, b"text", name="one").json()["id"])


@pytest.fixture
def attempt(api: Api, dataset: str) -> Attempt:
    """Return the attempt of a job that reports on the data set."""
    return drive.start(submitted(api, report_spec("dataset:one")))


def test_a_report_is_read_by_members_with_the_scope_for_content_and_by_no_other_team(
    api: Api, attempt: Attempt, dataset: str, api_of: Callable, make_user: Callable, team: Team, other_team: Team
) -> None:
    row = register(attempt, dataset, content_of("email"))
    path = f"datasets/{dataset}/report"
    assert done(api.send("GET", path))["report"]["sources"][0]["findings"][0]["kind"] == "email"
    viewer = make_user("vera", team, Role.VIEWER)
    assert done(api_of(viewer, team).send("GET", path))["digest"] == row.digest
    stranger = api_of(make_user("sam", other_team), other_team)
    refused(stranger.send("GET", path), "not_found")
    assert stranger.send("GET", "datasets").json()["items"] == []
    refused(stranger.send("GET", f"lineage?of={row.id}"), "not_found")
    reader = Api()
    token = issue_token(viewer, team, "reader", scopes=frozenset({Scope.READ}))[1]
    reader.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    refused(reader.send("GET", path), "role_missing")
    readings = AuditEvent.objects.filter(action="dataset.report", target_id=dataset)
    assert sorted(event.actor for event in readings) == ["ada", "vera"]


def test_the_report_of_a_job_is_found_by_its_id_and_the_newest_without_one(
    api: Api, attempt: Attempt, dataset: str
) -> None:
    first = register(attempt, dataset, content_of("email"))
    second = register(drive.start(submitted(api, report_spec("dataset:one"))), dataset, content_of("not_json"))
    path = f"datasets/{dataset}/report"
    assert done(api.send("GET", path))["id"] == second.id
    assert done(api.send("GET", f"{path}?job={attempt.job_id}"))["id"] == first.id
    assert done(api.send("GET", "datasets"))["items"][0]["report"]["findings"] == {
        "critical": 1, "warning": 0, "info": 0,
    }  # fmt: skip
    assert "by job_none of" in refused(api.send("GET", f"{path}?job=job_none"), "not_found")


def test_registering_again_returns_the_same_report(attempt: Attempt, dataset: str) -> None:
    manifest = stored_report(attempt, dataset, content_of().content, content_of().digest)
    ids = {AgentClient(attempt)("POST", "data-reports", manifest).json()["id"] for _ in range(2)}
    assert len(ids) == 1


def test_an_attempt_registers_reports_of_its_own_data_sets_only(api: Api, attempt: Attempt) -> None:
    foreign = upload(api, b"other", name="two").json()["id"]
    manifest = stored_report(attempt, foreign, content_of().content, content_of().digest)
    refused(AgentClient(attempt)("POST", "data-reports", manifest), "foreign_dataset")
    assert not DataReport.objects.exists()


def test_a_job_that_prepares_or_trains_registers_no_report(api: Api, dataset: str, spec: dict) -> None:
    spec["training"]["data"] = {"source": "dataset:one"}
    for other in (prepare_spec("dataset:one"), spec):
        attempt = drive.start(submitted(api, other))
        manifest = stored_report(attempt, dataset, content_of().content, content_of().digest)
        refused(AgentClient(attempt)("POST", "data-reports", manifest), "no_report_job")
    assert not DataReport.objects.exists()


def nan(content: bytes) -> bytes:
    return content.replace(b'"share":0.5', b'"share":NaN')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content + b" " * MAX_REPORT_BYTES, f"at most {MAX_REPORT_BYTES} are allowed"),
        (nan, "its manifest names"),
        (lambda content: content.replace(b'"email"', b'"E-MAIL <b>"'), "sources/0/findings/0/kind"),
        (lambda content: content[:-1], "is no data report"),
        (lambda content: content.replace(b'"count":1', b'"count":2'), "its manifest names"),
        (lambda _: b"", "is no data report"),
    ],
    ids=["too large", "NaN", "unknown kind", "cut", "changed", "empty"],
)
def test_content_that_is_no_report_is_not_registered(
    attempt: Attempt, dataset: str, change: Callable[[bytes], bytes], message: str
) -> None:
    content = content_of("email")
    assert change(content.content) != content.content
    manifest = stored_report(attempt, dataset, change(content.content), content.digest)
    assert message in refused(AgentClient(attempt)("POST", "data-reports", manifest), "invalid_data_report")
    assert not DataReport.objects.exists()


def test_a_manifest_that_names_a_smaller_report_than_it_stored_is_refused(attempt: Attempt, dataset: str) -> None:
    content = content_of("email", title="x" * MAX_REPORT_BYTES)
    manifest = DataReportManifest.model_validate(
        stored_report(attempt, dataset, content.content, content.digest)
    ).model_dump(mode="json")
    manifest["files"][0]["parts"][0]["plaintext_size"] = 10
    encryptor = keys.encryptor(dataset, attempt.job.team)
    forged = authenticate(DataReportManifest.model_validate(manifest), encryptor).model_dump(mode="json")
    refused(AgentClient(attempt)("POST", "data-reports", forged), "invalid_data_report")


def test_a_forged_manifest_is_neither_registered_nor_read(api: Api, attempt: Attempt, dataset: str) -> None:
    content = content_of("email")
    wrong_key = stored_report(attempt, dataset, content.content, content.digest, key=new_keyset())
    refused(AgentClient(attempt)("POST", "data-reports", wrong_key), "manifest_not_authentic")
    row = register(attempt, dataset, content)
    forgery = copy.deepcopy(row.manifest)
    forgery["files"][0]["parts"][0]["sha256"] = "0" * 64
    rewrite("artifacts_datareport", row.pk, forgery)
    refused(api.send("GET", f"datasets/{dataset}/report"), "manifest_not_authentic")
    rewrite("artifacts_datareport", row.pk, row.manifest)
    DataReport.objects.filter(pk=row.pk).update(digest="0" * 64)
    refused(api.send("GET", f"datasets/{dataset}/report"), "manifest_not_authentic")


def test_a_report_that_is_damaged_in_the_store_is_not_shown(api: Api, attempt: Attempt, dataset: str) -> None:
    row = register(attempt, dataset, content_of("email"))
    key = row.manifest["files"][0]["parts"][0]["key"]
    content = storage.get(key) or b""
    storage.put(key, content[:-1] + bytes([content[-1] ^ 1]))
    refused(api.send("GET", f"datasets/{dataset}/report"), "data_report_damaged")
    storage.delete([key])
    assert "is not in the object store" in refused(api.send("GET", f"datasets/{dataset}/report"), "data_report_damaged")


def test_markup_in_rows_is_returned_as_json_text(api: Api, attempt: Attempt, dataset: str) -> None:
    register(attempt, dataset, content_of("email", title="<script>alert(1)</script>"))
    answer = api.send("GET", f"datasets/{dataset}/report")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.json()["report"]["sources"][0]["findings"][0]["title"] == "<script>alert(1)</script>"


def test_a_job_has_not_completed_without_the_report_of_each_data_set(api: Api, dataset: str, world: Any) -> None:
    other = upload(api, b"other", name="two").json()["id"]
    ends = []
    for reported in ([dataset], [dataset, other]):
        attempt = drive.start(submitted(api, report_spec("dataset:one", "dataset:two")))
        for each in reported:
            register(attempt, each, content_of())
        drive.report(attempt, EndClass.COMPLETED)
        world.finish(attempt.backend_name, 0)
        drive.settle()
        ends.append(Attempt.objects.get(pk=attempt.pk).reason)
    assert ends == ["platform_error", "completed"]


def test_a_report_is_counted_kept_and_deleted_with_its_data_set(
    api: Api, attempt: Attempt, dataset: str, team: Team
) -> None:
    before = usage.stored_bytes([team.id])[team.id]
    row = register(attempt, dataset, content_of("email"))
    key = row.manifest["files"][0]["parts"][0]["key"]
    assert usage.stored_bytes([team.id])[team.id] == before + row.size_bytes
    assert key in unreferenced._referenced(attempt.job)
    assert key in [part.key for part in referenced.parts()]
    Job.objects.filter(pk=attempt.job_id).update(status="succeeded")
    preview = done(api.send("GET", f"datasets/{dataset}/deletion"))
    assert preview["contents"] == {"data_reports": 1}
    assert preview["size_bytes"] == Dataset.objects.get(pk=dataset).size_bytes + row.size_bytes
    deletion = done(api.send("DELETE", f"datasets/{dataset}"))
    refused(api.send("GET", f"datasets/{dataset}/report"), "not_found")
    assert node(lineage(api, row.id), row.id)["state"] == "deleted"
    done(api.send("POST", f"deletions/{deletion['id']}:restore"))
    assert done(api.send("GET", f"datasets/{dataset}/report"))["id"] == row.id
    done(api.send("DELETE", f"datasets/{dataset}"))
    Deletion.objects.update(purge_after=LONG_AGO)
    assert deletions.purge_due() == 1
    assert storage.size_of(key) is None
    assert not DataReport.objects.exists()
    assert not DataKey.objects.filter(owner=dataset).exists()


def test_a_report_is_in_the_lineage_of_its_data_set_with_its_digest(api: Api, attempt: Attempt, dataset: str) -> None:
    row = register(attempt, dataset, content_of("email"))
    expected = {
        (row.id, "report_on", dataset), (row.id, "made_by", attempt.job_id), (attempt.job_id, "reports_on", dataset),
    }  # fmt: skip
    found = lineage(api, dataset, "&direction=down")
    assert edges(found) == expected
    shown = node(found, row.id)
    assert (shown["kind"], shown["digest"], shown["made_by"]) == ("report", row.digest, attempt.job_id)
    assert edges(lineage(api, row.id, "&direction=up")) == expected


def test_a_manifest_of_a_report_is_bound_to_its_data_set(api: Api, attempt: Attempt, dataset: str) -> None:
    row = register(attempt, dataset, content_of("email"))
    other = upload(api, b"other", name="two").json()["id"]
    DataReport.objects.filter(pk=row.pk).update(dataset_id=other)
    with pytest.raises(Conflict, match="was changed, or is another"):
        manifests.of_report(DataReport.objects.get(pk=row.pk))
    assert data_reports.find(Dataset.objects.get(pk=other)).pk == row.pk


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"resources": {"nodes": 2}}, "/resources/nodes"),
        ({"prepare": {"data": {"source": "dataset:one", "format": "preference", "packing": "documents",
                               "long_documents": "drop"}, "report": {"sequence_length": 64}}}, "/prepare/data/format"),
        ({"prepare": {"data": {"source": "dataset:one"}, "report": {"sequence_length": 4}}},
         "/prepare/report/sequence_length"),
    ],
)  # fmt: skip
def test_a_job_that_can_make_no_report_is_refused(api: Api, dataset: str, change: dict, pointer: str) -> None:
    answer = api.send("POST", "jobs", {**report_spec("dataset:one"), **change})
    assert answer.status_code == 422
    assert [item["pointer"] for item in answer.json()["errors"]] == [pointer], answer.content


class TestPolicy:
    """A team can require a data report without critical findings."""

    @pytest.fixture
    def admin(self, api_of: Callable, make_user: Callable, team: Team) -> Api:
        return api_of(make_user("hal", team, Role.ADMIN), team)

    @pytest.fixture
    def training(self, spec: dict) -> dict[str, Any]:
        return mixture_spec(spec, "dataset:one", "dataset:two")

    def set(self, admin: Api, team: Team, *, required: bool) -> None:
        answer = admin.put(f"/api/v1/teams/{team.id}/data-policy", {"requires_data_report": required}, format="json")
        assert done(answer)["requires_data_report"] is required

    def test_it_is_off_by_default_and_set_by_administrators_of_the_team(
        self, api: Api, admin: Api, team: Team, other_team: Team, api_of: Callable, make_user: Callable
    ) -> None:
        path, body = f"/api/v1/teams/{team.id}/data-policy", {"requires_data_report": True}
        assert done(api.send("GET", f"teams/{team.id}"))["requires_data_report"] is False
        refused(api.put(path, body, format="json"), "role_missing")
        stranger = api_of(make_user("sam", other_team, Role.ADMIN), other_team)
        refused(stranger.put(path, body, format="json"), "not_found")
        for _ in range(2):
            self.set(admin, team, required=True)
        (event,) = AuditEvent.objects.filter(action="team.data_policy")
        assert event.after == {"requires_data_report": True}

    def test_training_is_refused_on_data_without_a_report_and_with_critical_findings(
        self, api: Api, admin: Api, attempt: Attempt, dataset: str, team: Team, training: dict
    ) -> None:
        other = upload(api, b"other", name="two").json()["id"]
        done(api.send("POST", "jobs", training))
        self.set(admin, team, required=True)
        problems = api.send("POST", "jobs", training).json()["errors"]
        assert [(item["pointer"], item["code"]) for item in problems] == [
            (f"/training/data/mixture/{number}/source", "data_report_required") for number in range(2)
        ]
        assert "athanor dataset report one@1 --make" in problems[0]["detail"]
        job = submitted(api, report_spec("dataset:one", "dataset:two"))  # data may be reported on, and prepared
        submitted(api, prepare_spec("dataset:one"))
        reporting = drive.start(job)
        register(reporting, dataset, content_of("email"))
        register(reporting, other, content_of("not_json", "github_token", "email"))
        (problem,) = api.send("POST", "jobs", training).json()["errors"]
        assert "of two@1 has not_json, github_token;" in problem["detail"]
        assert "athanor dataset report two" in problem["detail"]
        register(drive.start(submitted(api, report_spec("dataset:two"))), other, content_of("email"))
        done(api.send("POST", "jobs", training))

    def test_a_job_that_waits_for_the_report_is_checked_before_its_first_attempt(
        self, api: Api, admin: Api, attempt: Attempt, dataset: str, team: Team, spec: dict, world: Any
    ) -> None:
        self.set(admin, team, required=True)
        spec["training"]["data"] = {"source": "dataset:one"}
        assert api.send("POST", "jobs", spec).status_code == 422
        waiting = submitted(api, {**spec, "after": [attempt.job_id]})
        register(attempt, dataset, content_of("not_json"))
        drive.report(attempt, EndClass.COMPLETED)
        world.finish(attempt.backend_name, 0)
        drive.settle()
        drive.scheduling.admit()
        drive.dispatch()
        waiting.refresh_from_db()
        assert (waiting.status, waiting.reason) == ("failed", "data_error")
        assert "the newest data report of one@1 has not_json" in waiting.reason_detail
        assert not waiting.attempts.exists()

    def test_a_job_that_has_started_continues(
        self, api: Api, admin: Api, dataset: str, team: Team, spec: dict, world: Any
    ) -> None:
        spec["training"]["data"] = {"source": "dataset:one"}
        spec["retry"] = {"max_free": 3}
        attempt = drive.run(submitted(api, spec))
        self.set(admin, team, required=True)
        drive.end(world, attempt, EndClass.STORAGE_ERROR)
        job = Job.objects.get(pk=attempt.job_id)
        assert job.status == "queued", "a retry"
        Job.objects.filter(pk=job.pk).update(act_after=None)
        drive.scheduling.admit()
        drive.dispatch()
        assert job.attempts.count() == 2
