"""Claims of preparations: one holder at a time, in whatever order requests come, and a former one registers nothing."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from athanor.artifacts import datasets, keys, preparations
from athanor.artifacts.models import PreparationClaim, PreparedDataset
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from tests.control_plane.artifacts.test_data_of_jobs import AgentClient, manifest_of, prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import upload
from trainer.contract.encryption import authenticate
from trainer.contract.manifest import DatasetManifest
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import EndClass, PreparationRequest

pytestmark = pytest.mark.django_db
LONG_AGO = "2026-01-01T00:00:00Z"


class Node:
    """An agent of an attempt, as far as preparations go."""

    def __init__(self, attempt: Attempt, recipe: str) -> None:
        self.attempt, self.client, self.dataset_id = attempt, AgentClient(attempt), attempt.job.dataset_id
        self.recipe = recipe

    def claim(self, token: str | None = None, **changes: str) -> dict[str, Any]:
        body = {"dataset_id": self.dataset_id, "recipe": self.recipe, "token": token, **changes}
        answer = self.client("POST", "preparations:claim", body)
        assert answer.status_code == 200, answer.content
        return answer.json()

    def release(self, token: str, data_error: str = "") -> None:
        body = {"dataset_id": self.dataset_id, "recipe": self.recipe, "token": token, "data_error": data_error}
        assert self.client("POST", "preparations:release", body).status_code == 200

    def manifest(self) -> dict[str, Any]:
        made = DatasetManifest.model_validate(manifest_of(self.attempt, self.dataset_id, self.recipe))
        made = authenticate(made, keys.encryptor(self.dataset_id, self.attempt.job.team))
        return made.model_dump(mode="json")

    def register(self, token: str, manifest: dict[str, Any] | None = None) -> Any:
        body = {"token": token, "manifest": manifest or self.manifest()}
        return self.client("POST", "preparations:register", body)


@pytest.fixture
def start(api: Any, world: Any, bucket: str) -> Callable[[], Node]:
    """Return a function that starts a job which prepares the same data as the others."""
    upload(api, b"text", name="one")

    def make() -> Node:
        attempt = drive.start(submitted(api, prepare_spec("dataset:one")))
        data = preparations.JobSpec.model_validate(attempt.job.resolved_spec)
        (recipe,) = dataset_recipes(data.data.parts, data.tokenizer, attempt.job.dataset_ids)
        return Node(attempt, recipe)

    return make


def test_the_first_that_asks_prepares_and_the_others_wait_for_its_result(start: Callable[[], Node]) -> None:
    first, second = start(), start()
    granted = first.claim()
    assert (granted["state"], granted["renew_seconds"]) == ("prepare", preparations.RENEW_SECONDS)
    waits = second.claim()
    assert (waits["state"], waits["token"], waits["job_id"]) == ("wait", None, first.attempt.job_id)
    manifest = first.manifest()
    for _ in range(2):  # the reply may be lost
        assert first.register(granted["token"], manifest).status_code == 201
    found = second.claim()
    assert (found["state"], found["prepared"]) == ("prepared", PreparedDataset.objects.get().manifest)
    assert not PreparationClaim.objects.exists()


def test_a_holder_renews_also_after_its_lease_expired_unless_another_has_taken_over(start: Callable[[], Node]) -> None:
    first, second = start(), start()
    token = first.claim()["token"]
    for _ in range(2):
        PreparationClaim.objects.update(lease_until=LONG_AGO)
        assert first.claim(token)["token"] == token
    assert second.claim()["state"] == "wait"
    PreparationClaim.objects.update(lease_until=LONG_AGO)
    taken = second.claim()["token"]
    assert taken != token
    assert first.claim(token) == {**first.claim(token), "state": "wait", "token": None}
    refused = first.register(token)
    assert (refused.status_code, refused.json()["code"]) == (409, "preparation_lost")
    assert not PreparedDataset.objects.exists()
    first.release(token)
    assert second.claim(taken)["state"] == "prepare", "a former holder ends nothing"
    assert second.register(taken).status_code == 201
    assert first.register(token).status_code == 409, "not over the other's either"
    assert PreparedDataset.objects.get().job_id == second.attempt.job_id


def test_an_agent_that_asks_twice_is_granted_it_twice_and_only_the_newer_counts(start: Callable[[], Node]) -> None:
    node = start()
    lost, newer = node.claim()["token"], node.claim()["token"]
    assert lost != newer
    assert node.register(lost).status_code == 409
    assert node.register(newer).status_code == 201


def test_a_claim_ends_with_its_attempt(start: Callable[[], Node], world: Any) -> None:
    first, second = start(), start()
    first.claim()
    drive.end(world, first.attempt, EndClass.PROCESS_KILLED)
    assert second.claim()["state"] == "prepare"


def test_an_error_in_the_data_reaches_those_that_exist_and_no_later_attempt(start: Callable[[], Node]) -> None:
    first, second = start(), start()
    token = first.claim()["token"]
    first.release(token, "line 7 has no field 'text'")
    failed = second.claim()
    assert (failed["state"], failed["because"], failed["job_id"]) == (
        "failed", "line 7 has no field 'text'", first.attempt.job_id,
    )  # fmt: skip
    later = start()
    assert later.claim()["state"] == "prepare"
    assert second.claim()["state"] == "wait", "somebody tries again"


def test_a_holder_that_gives_up_leaves_it_to_another(start: Callable[[], Node]) -> None:
    first, second = start(), start()
    first.release(first.claim()["token"])
    assert second.claim()["state"] == "prepare"


def test_a_trainer_of_an_earlier_version_registers_without_a_claim(start: Callable[[], Node]) -> None:
    holder, earlier = start(), start()
    token = holder.claim()["token"]
    assert earlier.client("POST", "datasets", earlier.manifest()).status_code == 201
    assert holder.register(token).status_code == 409
    assert holder.claim()["state"] == "prepared"
    assert PreparedDataset.objects.get().job_id == earlier.attempt.job_id


def test_what_was_forgotten_is_claimed_again(start: Callable[[], Node], api: Any) -> None:
    first = start()
    first.register(first.claim()["token"])
    api.delete(f"/api/v1/datasets/{first.dataset_id}/preparations")
    second, third = start(), start()
    assert [second.claim()["state"], third.claim()["state"]] == ["prepare", "wait"]


def test_a_job_claims_only_what_it_uses(
    start: Callable[[], Node], api: Any, api_of: Any, make_user: Any, other_team: Any, world: Any
) -> None:
    node = start()
    stranger_api = api_of(make_user("eve", other_team), other_team)
    upload(stranger_api, b"text", name="hers")
    stranger = AgentClient(drive.start(submitted(stranger_api, prepare_spec("dataset:hers"))))
    body = {"dataset_id": node.dataset_id, "recipe": node.recipe}
    assert stranger("POST", "preparations:claim", body).status_code == 403
    token = node.claim()["token"]
    stranger("POST", "preparations:release", {**body, "token": token, "data_error": "nothing works"})
    assert node.claim(token)["state"] == "prepare"
    stolen = stranger("POST", "preparations:register", {"token": token, "manifest": node.manifest()})
    assert stolen.status_code == 403
    refused = node.client("POST", "preparations:claim", {**body, "recipe": "0" * 64})
    assert (refused.status_code, refused.json()["code"]) == (422, "foreign_recipe")
    wrong = node.client("POST", "preparations:claim", {**body, "recipe": "x", "token": "y"})
    assert {item["pointer"] for item in wrong.json()["errors"]} == {"/recipe", "/token"}


def test_a_claim_that_meets_the_registration_of_another_leaves_nothing_behind(
    start: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data is registered between the two looks at whether it is."""
    first, late = start(), start()
    token = first.claim()["token"]
    manifest = first.manifest()
    look = datasets.known_preparation

    def look_and_register(dataset_id: str, recipe: str) -> Any:
        found = look(dataset_id, recipe)
        if found is None:
            monkeypatch.setattr(datasets, "known_preparation", look)
            assert first.register(token, manifest).status_code == 201
        return found

    monkeypatch.setattr(datasets, "known_preparation", look_and_register)
    assert late.claim()["state"] == "prepared"
    assert not PreparationClaim.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_that_ask_at_the_same_time_one_is_granted_it(start: Callable[[], Node]) -> None:
    nodes = [start() for _ in range(6)]

    def ask(node: Node) -> str:
        try:
            asked = PreparationRequest(dataset_id=node.dataset_id, recipe=node.recipe)
            attempt = Attempt.objects.select_related("job__team").get(pk=node.attempt.pk)
            return preparations.claim(attempt, asked).state
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            states = list(pool.map(ask, nodes))
            assert sorted(states) == ["prepare"] + ["wait"] * 5
            PreparationClaim.objects.all().delete()


@pytest.mark.django_db(transaction=True)
def test_a_registration_and_a_takeover_at_the_same_time_leave_one_result(start: Callable[[], Node], api: Any) -> None:
    first, second = start(), start()

    def close_after(work: Callable[[], Any]) -> Any:
        try:
            return work()
        finally:
            connection.close()

    manifest = first.manifest()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            token = first.claim()["token"]
            PreparationClaim.objects.update(lease_until=LONG_AGO)
            registered = pool.submit(close_after, lambda token=token: first.register(token, manifest).status_code)
            asked = pool.submit(close_after, lambda: second.claim()["state"])
            assert (registered.result(), asked.result()) in {(201, "prepared"), (409, "prepare"), (201, "wait")}
            assert Job.objects.count() == 2
            api.delete(f"/api/v1/datasets/{first.dataset_id}/preparations")
            PreparationClaim.objects.all().delete()


def test_a_token_that_was_never_granted_registers_nothing(start: Callable[[], Node]) -> None:
    assert start().register(str(uuid.uuid4())).status_code == 409
