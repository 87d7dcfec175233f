"""The versions of the programs that trained a version, which its attempt reported, in all three documents."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from athanor.accounts.models import Team
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_base_models import agent_answer, exported, finished_model
from tests.control_plane.artifacts.test_model_documentation import documentation, fact
from tests.control_plane.artifacts.test_model_provenance import provenance
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import Api
from trainer.contract.run import Batch, ProgressEvent

pytestmark = pytest.mark.django_db
SOFTWARE = {
    "trainer": "0.1.0", "trainer_sha256": "ab" * 32, "python": "3.12", "torch": "2.13.0+cu130", "cuda": "13.0",
    "nccl": "2.28.3", "driver_branch": "",
}  # fmt: skip


@pytest.fixture
def version(api: Api, submit: Callable[..., Job], bucket: str) -> dict[str, Any]:
    attempt = drive.start(submit(name="first"))
    events = [
        ProgressEvent(time=datetime.now(UTC), type="software.found", data=data)
        for data in ({**SOFTWARE, "python": "3.11"}, SOFTWARE)  # a restart on another image
    ]
    batch = Batch(writer="rank-0", sequence=0, events=events)
    assert agent_answer(attempt, "progress", batch.model_dump(mode="json")).status_code == 200
    return registered(api, exported(attempt))


def test_the_documentation_has_the_newest_versions(api: Api, version: dict[str, Any]) -> None:
    found, job = documentation(api, version), version["job"]["id"]
    names = ("Version of Athanor's trainer", "SHA-256 of the trainer's source", "PyTorch", "Other programs")
    values = [fact(found, "1.2(b)", name, job) for name in names]
    assert values == ["0.1.0", "ab" * 32, "2.13.0+cu130", "Python 3.12, CUDA 13.0, NCCL 2.28.3"]


def test_the_bill_of_materials_has_the_trainer_beside_torch(api: Api, version: dict[str, Any]) -> None:
    bom = done(api.send("GET", f"models/{version['model']['id']}/versions/1/bom"))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom)) is None
    torch, trainer = bom["components"][-2:]
    assert (torch["purl"], trainer["version"]) == ("pkg:pypi/torch@2.13.0", "0.1.0")
    assert {"name": "athanor:sha256_of_source", "value": "ab" * 32} in trainer["properties"]
    assert {torch["bom-ref"], trainer["bom-ref"]} <= set(bom["dependencies"][0]["dependsOn"])


def test_the_provenance_has_them(api: Api, team: Team, version: dict[str, Any]) -> None:
    build = provenance(api, team, version).predicate["buildDefinition"]
    assert build["internalParameters"]["software"] == {name: value for name, value in SOFTWARE.items() if value}
    assert build["resolvedDependencies"][-1]["uri"] == "pkg:pypi/torch@2.13.0"


def test_trainers_that_did_not_report_them_leave_them_out(
    api: Api, team: Team, submit: Callable[..., Job], bucket: str
) -> None:
    artifact, job = finished_model(submit)
    version = registered(api, artifact)
    assert "software" not in provenance(api, team, version).predicate["buildDefinition"]["internalParameters"]
    found = documentation(api, version)
    assert fact(found, "1.2(b)", "Version of Athanor's trainer", job.id) is None
