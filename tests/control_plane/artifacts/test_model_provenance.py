"""The signed provenance of a version: its files, spec, data sets and base model, as they are on record."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Team
from athanor.artifacts.models import Artifact
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_base_models import exported, finished_model, going_on
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import Api
from trainer.contract.model_signature import SignatureRefused, SignedProvenance, read_provenance

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(submit: Callable[..., Job], bucket: str) -> Artifact:
    return finished_model(submit)[0]


def path_of(version: dict[str, Any]) -> str:
    return f"models/{version['model']['id']}/versions/{version['number']}/provenance"


def public_keys(api: Api, team: Team) -> dict[str, str]:
    listed = done(api.send("GET", f"teams/{team.id}/signing-keys"))["items"]
    return {key["fingerprint"]: key["public_key"] for key in listed}


def provenance(api: Api, team: Team, version: dict[str, Any]) -> SignedProvenance:
    bundle = done(api.send("POST", path_of(version)))
    return read_provenance(json.dumps(bundle).encode(), public_keys(api, team), {})


def test_it_names_the_files_the_spec_and_the_job_and_is_signed_by_the_team(
    api: Api, team: Team, model: Artifact, bucket: str
) -> None:
    found = provenance(api, team, registered(api, model))
    assert found.files == {file["path"]: file["plaintext_sha256"] for file in model.manifest["files"]}
    build, run = found.predicate["buildDefinition"], found.predicate["runDetails"]
    job = model.job
    assert build["externalParameters"] == {"spec": job.spec}
    assert build["internalParameters"]["resolved_spec"] == job.resolved_spec
    assert build["internalParameters"]["step"] == model.step
    assert run["metadata"]["invocationId"].endswith(f"/api/v1/jobs/{job.id}")
    (event,) = AuditEvent.objects.filter(action="artifact.sign_provenance")
    assert (event.target_id, event.after["fingerprint"]) == (model.id, found.fingerprint)


def test_data_sets_and_the_base_model_are_dependencies_with_their_digests(
    api: Api, team: Team, model: Artifact, submit: Callable[..., Job], bucket: str
) -> None:
    version = registered(api, model)
    dataset = done(upload(api, b"a text of the team\n" * 50))
    spec = going_on(f"model:{model.id}", data={"source": f"dataset:{dataset['name']}"})
    second = Job.objects.get(pk=done(api.send("POST", "jobs", spec))["id"])
    found = provenance(api, team, registered(api, exported(drive.start(second)), name="tuned"))
    resources = found.predicate["buildDefinition"]["resolvedDependencies"]
    (base,) = [each for each in resources if each["uri"].endswith(model.id)]
    assert base["digest"] == {"athanorManifestSha256": version["digest"]}
    (data,) = [each for each in resources if each["uri"].endswith(f"/datasets/{dataset['id']}")]
    nodes = done(api.send("GET", f"lineage?of={second.id}&direction=up"))["nodes"]
    assert [node["digest"] for node in nodes if node["id"] == dataset["id"]] == list(data["digest"].values())


def test_one_byte_changed_or_another_key_is_refused(api: Api, team: Team, model: Artifact, bucket: str) -> None:
    bundle = done(api.send("POST", path_of(registered(api, model))))
    payload = bundle["dsseEnvelope"]["payload"]
    bundle["dsseEnvelope"]["payload"] = payload.replace(payload[40], "A" if payload[40] != "A" else "B", 1)
    with pytest.raises(SignatureRefused, match="changed after it was signed"):
        read_provenance(json.dumps(bundle).encode(), public_keys(api, team), {})


def test_only_members_of_the_team_get_one(
    api: Api, api_of: Callable, make_user: Callable, other_team: Team, model: Artifact
) -> None:
    version = registered(api, model)
    stranger = api_of(make_user("eve", other_team, "admin"), other_team)
    assert stranger.send("POST", path_of(version)).status_code == 404
    assert api.send("POST", path_of({**version, "number": 2})).status_code == 404
