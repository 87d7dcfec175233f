"""Lineage: the graph of what was made from what is that of the records, in the caller's teams, within its limits."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.accounts.roles import Role
from athanor.artifacts import deletions, keys, registry
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, PreparedDataset
from athanor.jobs.models import Job
from athanor.specs.v1 import JobSpec
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_base_models import finished_model, started
from tests.control_plane.artifacts.test_data_of_jobs import manifest_of
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import SPEC, Api
from trainer.contract.encryption import authenticate
from trainer.contract.manifest import DatasetManifest
from trainer.contract.recipe import dataset_recipes

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]


def lineage(api: Api, of: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = done(api.send("GET", f"lineage?of={of}{query}"))
    ids = [node["id"] for node in found["nodes"]]
    assert len(ids) == len(set(ids))
    assert {end for edge in found["edges"] for end in (edge["source_id"], edge["target_id"])} <= set(ids)
    return found


def edges(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(edge["target_id"], edge["relation"], edge["source_id"]) for edge in found["edges"]}


def node(found: dict[str, Any], identifier: str) -> dict[str, Any]:
    (one,) = [node for node in found["nodes"] if node["id"] == identifier]
    return one


@pytest.fixture
def administrator(api_of: Callable[..., Api], make_user: Callable[..., Any], team: Team) -> Api:
    return api_of(make_user("hal", team, Role.ADMIN), team)


def test_a_version_is_traced_to_its_data_over_the_model_that_it_started_from(
    api: Api, submit: Submit, bucket: str
) -> None:
    artifact, first = finished_model(submit)
    model = registered(api, artifact, "production")["model"]["id"]
    second = started(api, "model:bot@production").job
    found = lineage(api, f"{model}@production", "&direction=down")
    assert edges(found) == set()  # nothing is made from a name
    found = lineage(api, second.id, "&direction=up")
    assert edges(found) == {
        (second.id, "base", artifact.id),
        (second.id, "trained_on", second.dataset_id),
        (artifact.id, "made_by", first.id),
        (first.id, "trained_on", first.dataset_id),
    }
    assert [edge["reference"] for edge in found["edges"] if edge["relation"] == "base"] == ["model:bot@production"]
    assert node(found, second.dataset_id)["state"] == "builtin"
    assert found["cut"] == []
    up = edges(lineage(api, f"{model}@production", "&direction=up"))
    assert {(f"{model}@production", "alias_of", f"{model}@1"), (f"{model}@1", "version_of", artifact.id)} < up
    down = lineage(api, first.id, "&direction=down")
    assert edges(down) == {
        (artifact.id, "made_by", first.id),
        (f"{model}@1", "version_of", artifact.id),
        (f"{model}@production", "alias_of", f"{model}@1"),
        (second.id, "base", artifact.id),
    }
    assert edges(lineage(api, first.dataset_id)) >= edges(down) | {(first.id, "trained_on", first.dataset_id)}


def test_a_version_and_its_export_have_the_digest_that_was_registered(api: Api, submit: Submit, bucket: str) -> None:
    artifact, job = finished_model(submit)
    version = registered(api, artifact)
    found = lineage(api, artifact.id)
    assert node(found, artifact.id)["digest"] == version["digest"]
    assert node(found, f"{version['model']['id']}@1")["digest"] == version["digest"]
    assert node(found, job.id)["digest"] == job.spec_digest
    assert node(found, artifact.id)["made_by"] == job.id


def test_a_tokenised_form_is_between_the_data_and_the_jobs_of_its_recipe(api: Api, bucket: str, world: Any) -> None:
    dataset = upload(api, b"text", name="one").json()["id"]
    other = upload(api, b"text", name="two").json()["id"]
    trains = {**SPEC, "training": {**SPEC["training"], "data": {"source": "dataset:one"}}}
    jobs = [Job.objects.get(pk=done(api.send("POST", "jobs", trains))["id"]) for _ in range(2)]
    wants_more = {**trains, "training": {**trains["training"], "tokenizer": {"vocab_size": 3000}}}
    elsewhere = Job.objects.get(pk=done(api.send("POST", "jobs", wants_more))["id"])
    attempts = [drive.start(job) for job in [*jobs, elsewhere]]
    waits = Job.objects.get(pk=done(api.send("POST", "jobs", trains))["id"])
    recipe = recipe_of(jobs[0])
    row = PreparedDataset.objects.create(
        dataset_id=dataset, recipe=recipe, manifest=prepared(attempts[0], dataset, recipe), job=jobs[0]
    )
    form = f"prep_{row.pk}"
    found = lineage(api, form)
    assert edges(found) == {
        (form, "prepared_from", dataset),
        (jobs[0].id, "trained_on", form),
        (jobs[1].id, "trained_on", form),
    }
    assert node(found, form)["made_by"] == jobs[0].id
    assert (node(found, form)["name"], node(found, form)["state"]) == ("one@1, tokenised", "stored")
    assert len(node(found, form)["digest"]) == len(node(found, dataset)["digest"]) == 64
    of_data = lineage(api, dataset)
    assert {target for target, relation, _ in edges(of_data) if relation == "trained_on"} == {
        *(job.id for job in jobs), elsewhere.id, waits.id,
    }  # fmt: skip
    assert lineage(api, other)["edges"] == []
    PreparedDataset.objects.filter(pk=row.pk).update(forgotten_at=timezone.now())
    assert node(lineage(api, jobs[1].id), form)["state"] == "discarded"
    late = drive.start(Job.objects.get(pk=done(api.send("POST", "jobs", trains))["id"])).job
    assert form not in {node["id"] for node in lineage(api, late.id)["nodes"]}


def test_a_base_in_a_bucket_is_named_by_its_address_alone(api: Api, submit: Submit) -> None:
    job = submit()
    job.resolved_spec["training"]["model"]["base"] = "s3://corp/models/seven/"
    job.save(update_fields=["resolved_spec"])
    found = lineage(api, job.id, "&direction=up")
    assert (job.id, "base", "s3://corp/models/seven/") in edges(found)
    base = node(found, "s3://corp/models/seven/")
    assert (base["kind"], base["state"], base["digest"]) == ("external", "external", None)


def test_a_job_is_found_from_each_part_of_its_mixture(api: Api, submit: Submit, team: Team) -> None:
    job = submit()
    other = Dataset.objects.create(team=team, name="builtin:other", origin=Dataset.Origin.BUILTIN)
    Job.objects.filter(pk=job.pk).update(more_dataset_ids=[other.id])
    assert edges(lineage(api, other.id, "&direction=down")) == {(job.id, "trained_on", other.id)}
    assert edges(lineage(api, job.id)) == {(job.id, "trained_on", other.id), (job.id, "trained_on", job.dataset_id)}


def test_what_a_preparing_job_made_is_traced_to_it(api: Api, bucket: str, world: Any) -> None:
    dataset = upload(api, b"text", name="one").json()["id"]
    prepares = {
        "version": 1,
        "name": "p",
        "resources": SPEC["resources"],
        "prepare": {"data": {"source": "dataset:one"}},
    }
    job = Job.objects.get(pk=done(api.send("POST", "jobs", prepares))["id"])
    recipe = recipe_of(job)
    manifest = prepared(drive.start(job), dataset, recipe)
    row = PreparedDataset.objects.create(dataset_id=dataset, recipe=recipe, manifest=manifest, job=job)
    assert edges(lineage(api, f"prep_{row.pk}")) == {
        (f"prep_{row.pk}", "prepared_from", dataset),
        (f"prep_{row.pk}", "made_by", job.id),
        (job.id, "prepares", dataset),
    }
    assert edges(lineage(api, job.id)) == {(f"prep_{row.pk}", "made_by", job.id), (job.id, "prepares", dataset)}


def test_deleted_things_are_named_with_their_digest(api: Api, submit: Submit, user: Any, bucket: str) -> None:
    dataset = Dataset.objects.get(pk=upload(api, b"text", name="one").json()["id"])
    digest = node(lineage(api, dataset.id), dataset.id)["digest"]
    deletions.delete(dataset, user)
    found = node(lineage(api, dataset.id), dataset.id)
    assert (found["name"], found["state"], found["digest"]) == ("one@1", "deleted", digest)
    artifact, job = finished_model(submit)
    version = registered(api, artifact)
    registry.delete(registry.RegisteredModel.objects.get(name="bot"), user)
    Job.objects.filter(pk=job.pk).update(status="succeeded")
    deletions.delete(Artifact.objects.select_related("job__team").get(pk=artifact.id), user, permanently=True)
    found = lineage(api, job.id, "&direction=down")
    was = node(found, f"{version['model']['id']}@1")
    assert (was["name"], was["state"], was["digest"]) == ("bot@1", "deleted", version["digest"])
    assert (node(found, artifact.id)["state"], node(found, artifact.id)["digest"]) == ("deleted", version["digest"])
    assert deletions.purge_due() == 1
    assert node(lineage(api, job.id), artifact.id)["state"] == "purged"


def test_checkpoints_are_those_that_are_stored_or_were_deleted(api: Api, submit: Submit, user: Any) -> None:
    attempt = drive.start(submit())
    stored = {"job": attempt.job, "attempt": attempt, "generation": 0, "size_bytes": 1, "manifest": {}}
    kept, retired, deleted = (Checkpoint.objects.create(step=step, **stored) for step in (1, 2, 3))
    Checkpoint.objects.filter(pk=retired.pk).update(retired_at=timezone.now())
    Job.objects.filter(pk=attempt.job_id).update(status="succeeded")
    deletions.delete(Checkpoint.objects.select_related("job__team").get(pk=deleted.pk), user)
    found = lineage(api, attempt.job_id, "&direction=down")
    assert {(each["id"], each["state"]) for each in found["nodes"]} - {(attempt.job_id, "succeeded")} == {
        (kept.id, "intact"), (deleted.id, "deleted"),
    }  # fmt: skip
    assert edges(lineage(api, retired.id, "&direction=up")) >= {(retired.id, "made_by", attempt.job_id)}


def test_downloads_are_shown_to_those_who_may_read_the_audit_trail(
    api: Api, administrator: Api, submit: Submit, bucket: str
) -> None:
    artifact, _ = finished_model(submit)
    for _ in range(2):
        done(api.send("POST", f"artifacts/{artifact.id}:download"))
    found = lineage(administrator, artifact.id)
    assert (f"{artifact.id}:ada", "download_of", artifact.id) in edges(found)
    assert node(found, f"{artifact.id}:ada")["name"] == "ada, 2 times"
    assert "download" not in {each["kind"] for each in lineage(api, artifact.id)["nodes"]}


def test_a_fork_of_another_teams_job_shows_no_more_than_its_id(
    api: Api, submit: Submit, api_of: Callable, make_user: Callable, other_team: Team
) -> None:
    origin = submit(name="secret-plan")
    own, strange = submit(), submit()
    Job.objects.filter(pk__in=[own.pk, strange.pk]).update(forked_from=origin)
    Job.objects.filter(pk=strange.pk).update(team=other_team)
    down = lineage(api, origin.id, "&direction=down")
    assert edges(down) == {(own.id, "forked_from", origin.id)}
    stranger = api_of(make_user("sam", other_team), other_team)
    found = lineage(stranger, strange.id)
    assert node(found, origin.id) == {
        "id": origin.id, "kind": "job", "name": "", "state": "hidden", "digest": None, "time": None, "made_by": None,
    }  # fmt: skip
    assert edges(found) == {(strange.id, "forked_from", origin.id)}


def test_nothing_of_another_team_is_found(
    submit: Submit, api: Api, api_of: Callable, make_user: Callable, other_team: Team, bucket: str
) -> None:
    artifact, job = finished_model(submit)
    model = registered(api, artifact, "production")["model"]["id"]
    checkpoint = Checkpoint.objects.create(
        job=job, attempt=artifact.attempt, generation=0, step=1, size_bytes=1, manifest={}
    )
    row = PreparedDataset.objects.create(dataset_id=job.dataset_id, recipe="0" * 64, manifest={}, job=job)
    ids = [artifact.id, job.id, f"{model}@1", f"{model}@production", checkpoint.id, f"prep_{row.pk}", job.dataset_id]
    stranger = api_of(make_user("sam", other_team, Role.ADMIN), other_team)
    for identifier in ids:
        assert done(api.send("GET", f"lineage?of={identifier}"))["of"] == identifier
        answer = stranger.send("GET", f"lineage?of={identifier}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("of", ["mdl_1@2@3", "prep_x", "prep_1²", "mdl_1@99999999999999999999", "job_%00", "dset_"])
def test_what_is_not_there_is_not_found(of: str, api: Api) -> None:
    assert api.send("GET", f"lineage?of={of}").status_code in (404, 422)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "required"),
        ("of=team_1", "unknown_kind"),
        ("of=mdl_1", "unknown_kind"),
        ("of=job_1&limit=0", "range"),
        ("of=job_1&depth=51", "range"),
        ("of=job_1&direction=left", "invalid_parameter"),
    ],
)
def test_wrong_requests_are_refused_with_the_parameter(query: str, code: str, api: Api) -> None:
    answer = api.send("GET", f"lineage?{query}")
    assert answer.status_code == 422
    assert code in (answer.json()["code"], answer.json()["errors"][0]["code"])


def forks_in_a_row(submit: Submit, count: int) -> list[Job]:
    jobs = [submit() for _ in range(count)]
    for earlier, later in zip(jobs, jobs[1:], strict=False):
        Job.objects.filter(pk=later.pk).update(forked_from=earlier)
    return jobs


def test_a_depth_that_cuts_is_reported_and_one_that_does_not_is_not(api: Api, submit: Submit) -> None:
    jobs = forks_in_a_row(submit, 3)
    short = lineage(api, jobs[0].id, "&direction=down&depth=1")
    assert ([each["id"] for each in short["nodes"]], short["cut"]) == ([jobs[0].id, jobs[1].id], ["depth"])
    exact = lineage(api, jobs[0].id, "&direction=down&depth=2")
    assert (len(exact["nodes"]), exact["cut"]) == (3, [])


def test_a_limit_that_cuts_is_reported_and_one_that_does_not_is_not(api: Api, submit: Submit) -> None:
    jobs = forks_in_a_row(submit, 3)
    short = lineage(api, jobs[2].id, "&direction=up&limit=2")
    assert (len(short["nodes"]), short["cut"]) == (2, ["nodes"])
    assert lineage(api, jobs[2].id, "&direction=up&limit=4")["cut"] == []
    many = [submit() for _ in range(3)]
    Job.objects.filter(pk__in=[job.pk for job in many]).update(forked_from=jobs[0])
    wide = lineage(api, jobs[0].id, "&direction=down&limit=2")
    assert (len(wide["nodes"]), "nodes" in wide["cut"]) == (2, True)


def test_a_loop_in_the_records_ends(api: Api, submit: Submit) -> None:
    jobs = forks_in_a_row(submit, 2)
    Job.objects.filter(pk=jobs[0].pk).update(forked_from=jobs[1])
    found = lineage(api, jobs[0].id, "&direction=up")
    assert {each["id"] for each in found["nodes"]} == {jobs[0].id, jobs[1].id, jobs[0].dataset_id}


def test_the_number_of_statements_does_not_depend_on_the_size_of_a_level(
    administrator: Api, api: Api, submit: Submit, bucket: str
) -> None:
    artifact, job = finished_model(submit)
    Checkpoint.objects.create(job=job, attempt=artifact.attempt, generation=0, step=1, size_bytes=1, manifest={})

    def statements() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            lineage(administrator, job.dataset_id)
        return len(queries)

    done(api.send("POST", f"artifacts/{artifact.id}:download"))
    registered(api, artifact, "production")
    started(api, f"model:{artifact.id}")
    size = len(lineage(administrator, job.dataset_id)["nodes"])  # the first request of a token writes its time of use
    before = statements()
    for number in range(2):
        more, origin = finished_model(submit)
        done(api.send("POST", f"artifacts/{more.id}:download"))
        registered(api, more, f"alias-{number}")
        Job.objects.filter(pk=started(api, f"model:{more.id}").job_id).update(status="succeeded")
        Checkpoint.objects.create(job=origin, attempt=more.attempt, generation=0, step=1, size_bytes=1, manifest={})
    assert len(lineage(administrator, job.dataset_id)["nodes"]) >= size + 10
    assert statements() == before


def recipe_of(job: Job) -> str:
    """Return the recipe by which the job's only data set is tokenised."""
    spec = JobSpec.model_validate(job.resolved_spec)
    (recipe,) = dataset_recipes(spec.data.parts, spec.tokenizer, job.dataset_ids)
    return recipe


def prepared(attempt: Any, dataset: str, recipe: str) -> Any:
    made = DatasetManifest.model_validate(manifest_of(attempt, dataset, recipe))
    return authenticate(made, keys.encryptor(dataset, attempt.job.team)).model_dump(mode="json")
