"""A model shared with another team is read by it, and by no third one; keys, revocation, rotation and erasure."""

import io
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from django.db import ProgrammingError, connection, transaction

from athanor.accounts.models import AuditEvent, PlatformRole, Team, User
from athanor.accounts.roles import Role
from athanor.artifacts import grants, keys, rotation, storage
from athanor.artifacts.evaluations import trained_on_ids
from athanor.artifacts.models import (
    Artifact,
    DataKey,
    EvaluationResult,
    GrantedKey,
    ModelAlias,
    ModelGrant,
    ModelVersion,
    RegisteredModel,
)
from athanor.compliance import erasure
from athanor.core import tenancy
from athanor.core.errors import Misconfigured
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import JobStatus
from tests.control_plane.answers import done, refused
from tests.control_plane.artifacts.test_base_models import FILES, agent_answer, finished_model, going_on, started
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import Api
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import StoredPart
from trainer.contract.model_signature import SIGNATURE_NAME, read_signature
from trainer.contract.run import RunConfig

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]
NAMED = "model:red/bot@production"


@pytest.fixture
def owner(api_of: Callable, make_user: Callable, team: Team) -> Api:
    """An administrator of team red, which owns the model."""
    return api_of(make_user("hal", team, Role.ADMIN), team)


@pytest.fixture
def reader(api_of: Callable, make_user: Callable, other_team: Team) -> Api:
    """An administrator of team blue, which the model is shared with."""
    return api_of(make_user("bea", other_team, Role.ADMIN), other_team)


@pytest.fixture
def stranger(api_of: Callable, make_user: Callable) -> Api:
    """An administrator of a third team."""
    team = Team.objects.create(name="green")
    return api_of(make_user("sam", team, Role.ADMIN), team)


@pytest.fixture
def shared(owner: Api, submit: Submit, other_team: Team, bucket: str) -> dict[str, Any]:
    """Version 1 of red's model, in production, which is shared with blue."""
    version = registered(owner, finished_model(submit)[0], "production")
    granted = done(owner.send("PUT", f"models/{version['model']['id']}/grants/blue"))
    assert (granted["team"]["name"], granted["granted_by"]) == ("blue", "hal")
    return version


def decrypted(answer: dict[str, Any]) -> dict[str, bytes]:
    """The plaintext of each file of a download, by its path."""
    encryptor = Encryptor(answer["data_key"])
    found = {}
    for file in answer["files"]:
        parts = [
            StoredPart.model_validate({name: part[name] for name in part if name != "url"}) for part in file["parts"]
        ]
        found[file["path"]] = b"".join(encryptor.decrypt(storage.get(part.key) or b"", part) for part in parts)
    return found


def test_the_team_sees_the_model_and_a_third_one_sees_nothing(
    shared: dict[str, Any], reader: Api, stranger: Api
) -> None:
    model, artifact = shared["model"]["id"], shared["artifact"]
    (listed,) = done(reader.send("GET", "models"))["items"]
    assert (listed["id"], listed["is_shared"], listed["team"]["name"], listed["versions"]) == (model, True, "red", 1)
    assert [alias["name"] for alias in done(reader.send("GET", f"models/{model}"))["aliases"]] == ["production"]
    (version,) = done(reader.send("GET", f"models/{model}/versions"))["items"]
    assert (version["digest"], version["job"]["id"], version["attempt"]) == (
        shared["digest"],
        shared["job"]["id"],
        None,
    )
    assert done(reader.send("GET", f"models/{model}/versions/1"))["artifact"] == artifact
    shown = done(reader.send("GET", f"artifacts/{artifact}"))
    assert (shown["team"]["name"], shown["authentic"]) == ("red", True)
    assert {file["path"] for file in shown["files"]} == set(FILES)
    assert done(stranger.send("GET", "models"))["items"] == []
    paths = [f"models/{model}", f"models/{model}/versions", f"models/{model}/versions/1", f"artifacts/{artifact}"]
    for path in (*paths, f"artifacts/{artifact}/archive", f"lineage?of={artifact}", f"lineage?of={model}@1"):
        assert stranger.send("GET", path).status_code == 404, path
    for action in ("download", "sign"):
        assert stranger.send("POST", f"artifacts/{artifact}:{action}").status_code == 404
    answer = stranger.send("POST", "jobs", going_on(NAMED))
    assert "shares no model 'bot' with team green" in answer.json()["errors"][0]["detail"]


def test_a_later_version_is_shared_too(shared: dict[str, Any], owner: Api, reader: Api, submit: Submit) -> None:
    later = registered(owner, finished_model(submit, {**FILES, "model.safetensors": b"newer"})[0])
    assert later["number"] == 2
    answer = done(reader.send("POST", f"artifacts/{later['artifact']}:download"))
    assert decrypted(answer)["model.safetensors"] == b"newer"


def test_the_team_downloads_and_verifies_it_and_both_trails_say_so(
    shared: dict[str, Any], owner: Api, reader: Api, team: Team, other_team: Team
) -> None:
    artifact = shared["artifact"]
    assert decrypted(done(reader.send("POST", f"artifacts/{artifact}:download"))) == FILES
    signature = reader.send("POST", f"artifacts/{artifact}:sign").content
    listed = done(reader.send("GET", f"teams/{team.id}/signing-keys"))["items"]
    signed = read_signature(signature, {key["fingerprint"]: key["public_key"] for key in listed}, {})
    assert signed.record is not None
    assert (signed.record.team, signed.record.artifact) == ("red", artifact)
    archive = b"".join(reader.send("GET", f"artifacts/{artifact}/archive").streaming_content)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert names == {*FILES, SIGNATURE_NAME}
    for trail, action in ((team, "artifact.shared_download"), (other_team, "artifact.download")):
        rows = AuditEvent.objects.filter(action=action, target_id=artifact, team_id=trail.id)
        assert [row.actor for row in rows] == ["bea", "bea"]
    for action in ("model.grant", "artifact.sign"):
        assert AuditEvent.objects.filter(action=action, team_id=team.id).exists()
    (granted,) = AuditEvent.objects.filter(action="model.grant", team_id=other_team.id)
    assert (granted.actor, granted.after) == ("hal", {"name": "bot", "owner": "red", "team": "blue"})
    assert AuditEvent.objects.filter(action="model.grant").count() == 2, "repeating it changes nothing"


def test_the_team_changes_nothing(shared: dict[str, Any], owner: Api, reader: Api) -> None:
    model, artifact = shared["model"]["id"], shared["artifact"]
    refusals = (
        ("PATCH", "", {"card": "mine"}), ("DELETE", "", None), ("POST", "/versions", {"artifact": artifact}),
        ("DELETE", "/versions/1", None), ("PUT", "/aliases/mine", {"version": 1}),
        ("DELETE", "/aliases/production", None),
        ("GET", "/deletion", None), ("GET", "/versions/1/deletion", None),
        ("GET", "/versions/1/documentation", None), ("GET", "/versions/1/bom", None), ("GET", "/grants", None),
        ("PUT", "/grants/green", None), ("DELETE", "/grants/blue", None),
    )  # fmt: skip
    Team.objects.create(name="green")
    for method, path, body in refusals:
        answer = reader.send(method, f"models/{model}{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (403, "shared_model"), path
    assert reader.send("DELETE", f"artifacts/{artifact}").status_code == 404
    assert reader.send("GET", f"jobs/{shared['job']['id']}").status_code == 404
    own = done(reader.send("POST", "models", {"name": "bot"}))
    assert own["is_shared"] is False
    answer = reader.send("POST", f"models/{own['id']}/versions", {"artifact": artifact})
    assert answer.status_code == 404, "a version is registered by the team of its job alone"
    assert done(owner.send("GET", f"models/{model}"))["aliases"][0]["version"] == 1


def test_row_security_lets_it_read_exactly_this(shared: dict[str, Any], other_team: Team, submit: Submit) -> None:
    hidden, _ = finished_model(submit)  # of the same team, in no model
    tenancy.restrict([other_team.id])
    assert list(Artifact.objects.values_list("pk", flat=True)) == [shared["artifact"]]
    assert not Artifact.objects.filter(pk=hidden.pk).exists()
    seen = (RegisteredModel, ModelVersion, ModelAlias, ModelGrant, GrantedKey)
    assert [model._default_manager.count() for model in seen] == [1, 1, 1, 1, 1]
    assert (Job.objects.count(), Attempt.objects.count(), DataKey.objects.count()) == (0, 0, 0)
    for model in (*seen, Artifact):
        table = model._meta.db_table
        with connection.cursor() as cursor:
            for statement in (
                f"UPDATE {table} SET id = id",
                f"DELETE FROM {table}",
                f"SELECT 1 FROM {table} FOR UPDATE",
            ):
                cursor.execute(statement)
                assert cursor.rowcount == 0, statement
    version = ModelVersion.objects.get()
    with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
        ModelAlias.objects.create(model=version.model, name="mine", version=version, moved_at=version.created_at)
    with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
        ModelGrant.objects.create(model_id=version.model_id, owner_id=version.model.team_id, team=other_team)


def test_its_jobs_start_from_the_model_and_get_its_files_alone(shared: dict[str, Any], reader: Api) -> None:
    attempt = started(reader, NAMED)
    base = RunConfig.model_validate(agent_answer(attempt, "run").json()).base
    assert base is not None
    assert (base.name, {file.path for file in base.files}) == (f"model:{shared['artifact']}", set(FILES))
    part = next(file for file in base.files if file.path == "model.safetensors").parts[0]
    assert agent_answer(attempt, "storage:presign", {"operation": "get", "keys": [part.key]}).status_code == 200
    encryptor = Encryptor(agent_answer(attempt, "keys").json()["base"])
    assert encryptor.decrypt(storage.get(part.key) or b"", part) == b"weights"
    other = f"jobs/{shared['job']['id']}/checkpoints/1/rank0"
    for operation, key in (("get", other), ("put", part.key)):
        answer = agent_answer(attempt, "storage:presign", {"operation": operation, "keys": [key]})
        assert answer.json()["code"] == "outside_prefix"
    model = grants.artifact_for([attempt.job.team_id], shared["artifact"])
    assert model is not None
    assert trained_on_ids(attempt.job, model) is None, "what it was trained on is not on record for this team"
    graph = done(reader.send("GET", f"lineage?of={attempt.job_id}&direction=up"))
    assert {(node["kind"], node["state"]) for node in graph["nodes"] if node["kind"] == "model"} == {
        ("model", "stored")
    }
    assert shared["job"]["id"] not in {node["id"] for node in graph["nodes"]}
    assert graph["cut"] == ["team"]
    of_version = done(reader.send("GET", f"lineage?of={shared['model']['id']}@production"))
    kinds = sorted(node["kind"] for node in of_version["nodes"])
    assert kinds == ["alias", "model", "version"]
    assert {node["made_by"] for node in of_version["nodes"]} == {None}


def test_names_of_both_teams_do_not_collide(shared: dict[str, Any], reader: Api) -> None:
    assert "has no model 'bot'" in reader.send("POST", "jobs", going_on("model:bot@production")).json()["detail"]
    done(reader.send("POST", "models", {"name": "bot"}))
    problem = reader.send("POST", "jobs", going_on("model:blue/bot@production")).json()["errors"][0]["detail"]
    assert "model 'blue/bot' has no alias" in problem
    answer = done(reader.send("POST", "jobs", going_on(NAMED)))
    assert Job.objects.get(pk=answer["id"]).resolved_spec["training"]["model"]["base"] == f"model:{shared['artifact']}"


def test_access_ends_with_the_grant_also_for_jobs_that_run(
    shared: dict[str, Any], owner: Api, reader: Api, team: Team, other_team: Team
) -> None:
    model, artifact = shared["model"]["id"], shared["artifact"]
    attempt = started(reader, NAMED)
    base = RunConfig.model_validate(agent_answer(attempt, "run").json()).base
    assert base is not None
    part = base.files[0].parts[0]
    done(owner.send("DELETE", f"models/{model}/grants/blue"))
    assert owner.send("DELETE", f"models/{model}/grants/blue").status_code == 404
    for path in (f"models/{model}", f"models/{model}/versions/1", f"artifacts/{artifact}", f"lineage?of={artifact}"):
        assert reader.send("GET", path).status_code == 404, path
    assert reader.send("POST", f"artifacts/{artifact}:download").status_code == 404
    assert reader.send("GET", f"teams/{team.id}/signing-keys").status_code == 404
    assert done(reader.send("GET", "models"))["items"] == []
    answer = agent_answer(attempt, "run")
    assert answer.status_code == 422
    assert "the team that owns it no longer shares it" in answer.json()["errors"][0]["detail"]
    assert agent_answer(attempt, "keys").status_code == 422
    presigned = agent_answer(attempt, "storage:presign", {"operation": "get", "keys": [part.key]})
    refused(presigned, "base_not_found", "share it again")
    assert reader.send("POST", "jobs", going_on(NAMED)).status_code == 422
    assert reader.send("POST", "jobs", going_on(f"model:{artifact}")).status_code == 422
    graph = done(reader.send("GET", f"lineage?of={attempt.job_id}&direction=up"))
    (node,) = [node for node in graph["nodes"] if node["kind"] == "model"]
    assert (node["id"], node["name"], node["state"]) == (artifact, "", "hidden")
    assert not GrantedKey.objects.exists()
    ended = AuditEvent.objects.filter(action="model.grant_end")
    assert set(ended.values_list("team_id", flat=True)) == {team.id, other_team.id}


def test_only_administrators_share_and_only_with_another_team_that_exists(
    shared: dict[str, Any], api: Api, owner: Api, other_team: Team, operator: Api
) -> None:
    model = shared["model"]["id"]
    assert [row["team"]["name"] for row in done(api.send("GET", f"models/{model}/grants"))["items"]] == ["blue"]
    assert api.send("PUT", f"models/{model}/grants/blue").status_code == 403  # a member
    assert api.send("DELETE", f"models/{model}/grants/blue").status_code == 403
    refused(owner.send("PUT", f"models/{model}/grants/red"), "own_team", "name another team")
    assert owner.send("PUT", f"models/{model}/grants/nowhere").status_code == 404
    done(operator.send("DELETE", f"teams/{other_team.id}"))
    assert owner.send("PUT", f"models/{model}/grants/blue").status_code == 404


def test_a_deletion_names_who_loses_access_and_ends_it(shared: dict[str, Any], owner: Api, reader: Api) -> None:
    model = shared["model"]["id"]
    started(reader, NAMED)
    for path in (f"models/{model}/deletion", f"models/{model}/versions/1/deletion"):
        found = done(owner.send("GET", path))
        assert [row["team"]["name"] for row in found["grants"]] == ["blue"]
        assert found["blocked_by"] == [], "a job of another team is not shown, and does not prevent it"
    done(owner.send("DELETE", f"models/{model}/aliases/production"))
    done(owner.send("DELETE", f"models/{model}"))
    assert reader.send("GET", f"artifacts/{shared['artifact']}").status_code == 404
    assert AuditEvent.objects.filter(action="model.grant_end", target_id=model).count() == 2


def test_rotations_of_both_teams_leave_it_readable(
    shared: dict[str, Any], reader: Api, team: Team, other_team: Team
) -> None:
    before = bytes(GrantedKey.objects.get().wrapped)
    assert rotation.rotate_team(team) > 0
    assert bytes(GrantedKey.objects.get().wrapped) == before, "it is wrapped by the key of the team that reads"
    assert rotation.rotate_team(other_team) > 0
    assert bytes(GrantedKey.objects.get().wrapped) != before
    assert decrypted(done(reader.send("POST", f"artifacts/{shared['artifact']}:download"))) == FILES


def test_a_granted_key_of_another_row_does_not_open(
    shared: dict[str, Any], owner: Api, reader: Api, submit: Submit
) -> None:
    later = registered(owner, finished_model(submit)[0])
    first, second = GrantedKey.objects.order_by("pk")
    GrantedKey.objects.filter(pk=second.pk).update(wrapped=first.wrapped)
    key = grants.artifact_for([second.team_id], later["artifact"])
    assert key is not None
    with pytest.raises(Misconfigured):
        keys.data_key_of(key)


def test_results_of_one_team_are_neither_shown_to_the_other_nor_promote_for_it(
    shared: dict[str, Any], owner: Api, reader: Api
) -> None:
    model, artifact = shared["model"]["id"], shared["artifact"]

    def evaluated(by: Api) -> None:
        attempt = started(by, f"model:{artifact}")
        EvaluationResult.objects.create(
            attempt=attempt, job=attempt.job, team_id=attempt.job.team_id, artifact_id=artifact, name="facts",
            metric="accuracy", source="dataset:facts", value=0.9, n=1, tokens=1, base=f"model:{artifact}",
        )  # fmt: skip

    evaluated(reader)
    gate = {"version": 1, "require": ["accuracy>=0.8"]}
    assert owner.send("PUT", f"models/{model}/aliases/better", gate).json()["code"] == "not_evaluated"
    evaluated(owner)
    for client, path in ((reader, "versions/1"), (owner, "versions/1")):
        (result,) = done(client.send("GET", f"models/{model}/{path}"))["evaluations"]
        (compared,) = done(client.send("GET", f"models/{model}/evaluations"))["items"]
        assert result["job"]["id"] == compared["result"]["job"]["id"]
        assert done(client.send("GET", f"jobs/{result['job']['id']}")), "of one's own team"
    done(owner.send("PUT", f"models/{model}/aliases/better", gate))


@pytest.fixture
def operator(make_user: Callable[..., User]) -> Api:
    """A platform administrator, in a team of their own."""
    user = make_user("olga", Team.objects.create(name="operators"))
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def test_erasing_the_owner_destroys_the_keys_that_others_wrap(
    shared: dict[str, Any], reader: Api, operator: Api, team: Team, other_team: Team
) -> None:
    attempt = started(reader, NAMED)
    result = EvaluationResult.objects.create(
        team=other_team, job=attempt.job, attempt=attempt, artifact_id=shared["artifact"], name="facts",
        metric="accuracy", source="x", value=0.5, n=1, tokens=1, base=f"model:{shared['artifact']}",
    )  # fmt: skip
    Job.objects.filter(team=team).update(status=JobStatus.CANCELLED)
    assert done(operator.send("GET", f"teams/{team.id}/deletion"))["contents"]["model_grants"] == 1
    deletion = done(operator.send("DELETE", f"teams/{team.id}?permanently=true"))
    assert done(reader.send("GET", "models"))["items"] == [], "hidden from its deletion on"
    assert reader.send("GET", f"artifacts/{shared['artifact']}").status_code == 404
    assert erasure.run_due() == 1
    assert not GrantedKey.objects.exists()
    assert not ModelGrant.objects.exists()
    certificate = done(operator.send("GET", f"deletions/{deletion['id']}/certificate"))
    assert certificate["keys"]["grantedkey"]["count"] == 1
    assert any("shared" in sentence for sentence in certificate["remains"])
    ended = AuditEvent.objects.filter(action="model.grant_end")
    assert set(ended.values_list("team_id", flat=True)) == {team.id, other_team.id}
    result.refresh_from_db()
    assert (result.artifact_id, result.base) == (None, f"model:{shared['artifact']}"), "it is the other team's"


def test_erasing_the_reader_ends_its_access_and_the_owner_registers_on(
    shared: dict[str, Any], owner: Api, operator: Api, other_team: Team, submit: Submit
) -> None:
    done(operator.send("DELETE", f"teams/{other_team.id}"))
    assert registered(owner, finished_model(submit)[0])["number"] == 2, "while it can be restored"
    assert GrantedKey.objects.count() == 2
    deletion = done(operator.send("GET", "deletions"))["items"][0]
    done(operator.send("POST", f"deletions/{deletion['id']}:purge"))
    assert erasure.run_due() == 1
    assert not GrantedKey.objects.exists()
    assert not ModelGrant.objects.exists()
    assert registered(owner, finished_model(submit)[0])["number"] == 3
