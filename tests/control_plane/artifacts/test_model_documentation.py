"""The documentation of a version: what is on record, of all jobs in which its weights were trained, and the card."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.artifacts.models import Artifact, DataReport, EvaluationResult
from athanor.backends.fake.backend import World
from athanor.budgets.models import Meter, PoolPricing, UsageHour
from athanor.clusters.models import Pool
from athanor.compliance.card_sections import card_sections
from athanor.compliance.training_history import Run
from athanor.jobs.models import Attempt, Job
from athanor.telemetry.models import Progress
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.artifacts.test_base_models import FILES, exported, finished_model, going_on
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import SPEC, Api
from trainer.contract.manifest import ModelManifest
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]
HOUR = datetime(2026, 1, 1, tzinfo=UTC)
CARD = """Words before.

# Intended use
Answers questions.
### Not for
Medicine.

```
# Licence
in a block of code
```

## Licence
Apache-2.0

## DATA ##

## Data
a second one
"""


def documentation(api: Api, version: dict[str, Any]) -> dict[str, Any]:
    path = f"models/{version['model']['id']}/versions/{version['number']}/documentation"
    found: dict[str, Any] = done(api.send("GET", path))
    return found


def item(found: dict[str, Any], number: str) -> dict[str, Any]:
    (one,) = [item for item in found["items"] if item["number"] == number]
    return one


def fact(found: dict[str, Any], number: str, name: str, of: str) -> str | None:
    (one,) = [fact for fact in item(found, number)["facts"] if (fact["name"], fact["of"]) == (name, of)]
    value: str | None = one["value"]
    return value


def used(job: Job, slot_hours: int) -> None:
    """Meter a number of slot hours of the job's only attempt."""
    now = timezone.now()
    Meter.objects.create(
        attempt=job.attempts.get(), job=job, slots=1, began_at=now, metered_until=now, due_at=now, closed=True,
        slot_seconds=slot_hours * 3600,
    )  # fmt: skip


def test_the_method_names_the_loss_and_the_average() -> None:
    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 64}
    fields = {
        "model": {"base": "model:x", "shape": shape}, "steps": 10, "tokens_per_step": 64, "sequence_length": 64,
        "data": {"source": "dataset:x", "format": "unpaired", "packing": "documents", "long_documents": "drop"},
        "preference": {"loss": "kto"}, "ema": {"decay": 0.99},
    }  # fmt: skip
    run = Run(
        Job(), Attempt(), None, Artifact(), ModelManifest.model_construct(), TrainingSpec.model_validate(fields), []
    )
    assert run.method == (
        "KTO on data of format unpaired, from model:x, all weights, averaged over steps (EMA, decay 0.99)"
    )


def test_sections_of_a_card_end_at_the_next_heading_of_their_level() -> None:
    sections = card_sections(CARD)
    assert sections["intended use"].startswith("Answers questions.")
    assert "Apache-2.0" in sections["intended use"], "a section has the sections below it"
    assert sections["not for"].startswith("Medicine.")
    assert sections["licence"] == "Apache-2.0"
    assert sections["data"] == "", "of two, the first"


def test_statements_come_from_the_card_and_those_left_are_named(api: Api, submit: Submit, bucket: str) -> None:
    artifact, _ = finished_model(submit)
    version = registered(api, artifact)
    assert all(each["missing"] == (each["heading"] is not None) for each in documentation(api, version)["items"])
    api.send("PATCH", f"models/{version['model']['id']}", {"card": CARD})
    found = documentation(api, version)
    assert (found["model"], found["version"], found["digest"]) == ("bot", 1, version["digest"])
    assert item(found, "1.1(f)")["statement"] == "Apache-2.0"
    assert not item(found, "1.1(f)")["missing"]
    assert item(found, "1.2(c)")["missing"], "an empty section is no statement"
    assert item(found, "1.2(e)")["heading"] is None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_every_record_that_is_named_can_be_read(
    is_deleted: bool, api: Api, submit: Submit, bucket: str, world: World
) -> None:
    dataset = upload(api, b"text to train on", name="corpus").json()["id"]
    job = submit(training={**SPEC["training"], "data": {"source": "dataset:corpus"}})
    drive.end(world, drive.start(job), EndClass.COMPLETED)
    artifact = Artifact.objects.get(job=job, kind=Artifact.Kind.MODEL)
    if is_deleted:
        done(api.send("DELETE", f"datasets/{dataset}"))
    found = documentation(api, registered(api, artifact, "production"))
    assert fact(found, "1.2(c)", "Data set", dataset) == ("corpus@1 (deleted)" if is_deleted else "corpus@1 (stored)")
    records = {fact["record"] for item in found["items"] for fact in item["facts"]}
    assert records
    for record in records:
        done(api.send("GET", record.removeprefix("/")))


def test_compute_data_and_energy_are_those_of_the_chain_of_base_models(api: Api, submit: Submit, bucket: str) -> None:
    base, first = finished_model(submit)
    dataset = upload(api, b"text to train on", name="corpus").json()["id"]
    spec = going_on(f"model:{base.id}", data={"source": "dataset:corpus"})
    second = Job.objects.get(pk=done(api.send("POST", "jobs", spec))["id"])
    artifact = exported(drive.start(second))
    used(first, slot_hours=3)
    used(second, slot_hours=1)
    Progress.objects.update_or_create(job=second, defaults={"trained_tokens": 6400.0, "trained_seconds": 1800.0})
    found = documentation(api, registered(api, artifact))
    assert found["limits"] == []
    assert str(fact(found, "1.2(b)", "Method", second.id)).endswith(f"from model:{base.id}, all weights")
    assert "from scratch" in str(fact(found, "1.2(b)", "Method", first.id))
    assert str(fact(found, "1.2(c)", "Data set", dataset)).startswith("corpus@1 ")
    assert str(fact(found, "1.2(c)", "Data set", first.dataset_id)).startswith("builtin:")
    assert fact(found, "1.2(d)", "Tokens of the steps in the model", second.id) == "5,120"  # 10 steps of 512
    per_token = float(str(fact(found, "1.2(d)", "FLOPs of these steps, forward and backward", second.id))) / 5120
    every = float(str(fact(found, "1.2(d)", "FLOPs of all steps, repeated ones too", second.id)))
    assert every == pytest.approx(per_token * 6400, rel=1e-3)
    assert fact(found, "1.2(d)", "Time of all steps", second.id) == "0.5 hours"
    assert fact(found, "1.2(d)", "FLOPs of all steps, repeated ones too", first.id) is None
    assert fact(found, "1.2(d)", "Slot time of all attempts", first.id) == "3 slot hours"
    assert fact(found, "1.2(e)", "Energy", first.id) is None, "a pool without watts"
    parts = [fact(found, "1.2(d)", "FLOPs of these steps, forward and backward", job.id) for job in (first, second)]
    total = fact(found, "1.2(d)", "FLOPs of the steps in the model, all jobs", "bot@1")
    assert float(str(total)) == pytest.approx(sum(float(str(part)) for part in parts), rel=1e-3)


def test_the_bill_of_materials_is_valid_and_has_the_chain(api: Api, submit: Submit, bucket: str, pool: Pool) -> None:
    base, first = finished_model(submit)
    upload(api, b"text to train on", name="corpus")
    spec = going_on(f"model:{base.id}", data={"source": "dataset:corpus"})
    second = Job.objects.get(pk=done(api.send("POST", "jobs", spec))["id"])
    version = registered(api, exported(drive.start(second)))
    UsageHour.objects.create(
        team=second.team, project="p", pool=pool, accelerator="cpu", hour=HOUR, slot_seconds=3600, job=second
    )
    PoolPricing.objects.create(pool=pool, watts_per_slot=500)
    api.send("PATCH", f"models/{version['model']['id']}", {"card": CARD})
    bom = done(api.send("GET", f"models/{version['model']['id']}/versions/1/bom"))
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom))
    assert problem is None, problem
    model = bom["metadata"]["component"]
    assert [each["bom-ref"] for each in bom["components"]] == [base.id, second.dataset_id, first.dataset_id]
    assert bom["dependencies"] == [
        {"ref": model["bom-ref"], "dependsOn": sorted([base.id, second.dataset_id])},
        {"ref": base.id, "dependsOn": [first.dataset_id]},
    ]
    assert model["licenses"] == [{"license": {"name": "Apache-2.0"}}]
    assert sorted(file["name"] for file in model["components"]) == sorted(FILES)
    (energy,) = model["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    assert (energy["activity"], energy["activityEnergyCost"]) == ("fine-tuning", {"value": 0.5, "unit": "kWh"})
    assert "co2CostEquivalent" not in energy, "of a grid without a known intensity"


def test_evaluations_and_the_newest_data_report_are_in_both(api: Api, submit: Submit, bucket: str) -> None:
    artifact, job = finished_model(submit)
    version = registered(api, artifact)
    attempt = artifact.attempt
    for value, trained_on in ((0.25, {}), (0.5, {job.dataset_id: job.id})):
        evaluating = submit(name=f"evaluate-{value}")
        EvaluationResult.objects.create(
            team=job.team, job=evaluating, attempt=attempt, artifact=artifact, base=f"model:{artifact.id}",
            name="facts", metric="accuracy", source="dataset:facts", value=value, n=40, tokens=400,
            low=value - 0.1, high=value + 0.1,
            trained_on=trained_on,
        )  # fmt: skip
    for critical in (3, 2):
        reporting = drive.start(submit(name=f"report-{critical}"))
        newest = DataReport.objects.create(
            dataset_id=job.dataset_id, job=reporting.job, attempt=reporting, manifest={}, digest="ab" * 32,
            size_bytes=1, critical=critical, warning=1, info=0,
        )  # fmt: skip
    found = documentation(api, version)
    expected = "0.5 on dataset:facts, n 40, 95 % interval 0.4 to 0.6; the model was trained on this data"
    assert fact(found, "2.1", "facts.accuracy", "bot@1") == expected
    report = fact(found, "1.2(c)", "Newest data report", newest.id)
    assert report == "2 kinds of critical findings, 1 of warnings"
    assert fact(found, "1.2(c)", "SHA-256 of this report", newest.id) == "ab" * 32
    bom = done(api.send("GET", f"models/{version['model']['id']}/versions/1/bom"))
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom))
    assert problem is None, problem
    (metric,) = bom["metadata"]["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert metric == {
        "type": "facts.accuracy", "value": "0.5", "slice": "dataset:facts",
        "confidenceInterval": {"lowerBound": "0.4", "upperBound": "0.6"},
    }  # fmt: skip
    files = bom["metadata"]["component"]["components"]
    weights = hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    assert {"alg": "SHA-256", "content": weights} in [digest for file in files for digest in file["hashes"]]


def test_weights_from_elsewhere_are_a_limit(api: Api, submit: Submit, bucket: str) -> None:
    base, _ = finished_model(submit)
    second = Job.objects.get(pk=done(api.send("POST", "jobs", going_on(f"model:{base.id}")))["id"])
    artifact = exported(drive.start(second))
    version = registered(api, artifact)
    second.resolved_spec["training"]["model"]["base"] = "s3://others/llama/"
    second.save()
    (limit,) = documentation(api, version)["limits"]
    assert "s3://others/llama/" in limit
    assert second.id in limit


def test_a_new_model_of_the_shape_of_a_base_has_no_weights_of_it(api: Api, submit: Submit, bucket: str) -> None:
    base, first = finished_model(submit)
    spec = going_on(f"model:{base.id}")
    spec["training"]["model"]["weights"] = "random"
    second = Job.objects.get(pk=done(api.send("POST", "jobs", spec))["id"])
    found = documentation(api, registered(api, exported(drive.start(second))))
    assert found["limits"] == []
    assert first.id not in {fact["of"] for item in found["items"] for fact in item["facts"]}


def test_of_another_team_there_is_none(
    api: Api, submit: Submit, bucket: str, api_of: Callable[..., Api], make_user: Callable[..., Any], other_team: Team
) -> None:
    stranger = api_of(make_user("eve", other_team), other_team)
    version = registered(api, finished_model(submit)[0])
    path = f"models/{version['model']['id']}/versions"
    refused(stranger.send("GET", f"{path}/1/documentation"), "not_found")
    refused(api.send("GET", f"{path}/2/documentation"), "not_found")
