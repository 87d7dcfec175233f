"""The examples of README and docs: YAML is sent to the API as it stands, commands are parsed by the real programs."""

import copy
import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from django.core.management import get_commands
from django.urls import resolve

from athanor.accounts.models import Team, User
from athanor.accounts.roles import PlatformRole, Role, Scope
from athanor.accounts.services import issue_token
from athanor.api import site
from athanor.api.document import content
from athanor.backends.registry import configuration
from athanor.cli.main import app
from athanor.clusters.models import Pool
from athanor.core.documents import load_yaml
from athanor.fleet import clusters
from athanor.scheduling.simulator.scenario import Scenario
from athanor.specs.v1 import JobSpec
from athanor.webhooks.envelope import signature
from tests.control_plane.conftest import SPEC, Api
from tests.pages import EXAMPLES, PAGES, REPOSITORY, Example
from trainer.contract.training import TrainingSpec

pytestmark = pytest.mark.django_db
COMMAND = re.compile(r"^[ ]*(?:\$ )?((?:athanor|make|curl|python|\S*/python|torchrun) .*)$")
# What an example names and a new installation does not have: its errors are the right ones.
NOT_HERE = {"dataset_missing", "base_not_found", "unknown_secret", "unknown_job"}
# As in docs/operations/slurm.md.
SERVER_PART = {
    "kind": "slurm",
    "config": {"command": ["python", "-m", "trainer.agent"]},
}
SLURMRESTD = "https://slurm.example/"
MESH_RANKS = 16  # of the meshes that are shown


DOCUMENTS = [each for each in EXAMPLES if each.language in ("yaml", "json")]


def commands() -> dict[str, str]:
    """Each command of the pages, of blocks and of running text, with the place where it stands."""
    found = {}
    for example in EXAMPLES:
        for line in re.sub(r"\\\n\s*", " ", example.text).splitlines():
            if command := COMMAND.match(line):
                for part in re.split(r"; | [|>] \S+.*$", command[1].partition(" #")[0]):
                    if part:
                        found[part.strip()] = example.place
    return found


COMMANDS = commands()


@pytest.fixture
def admin(team: Team, make_user: Any) -> Api:
    user = make_user("root", team, Role.ADMIN)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    user.refresh_from_db()
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 'docs', scopes=list(Scope))[1]}")
    return client


def test_the_pages_have_examples() -> None:
    assert len(DOCUMENTS) >= 12
    assert len(COMMANDS) >= 30


@pytest.mark.parametrize("example", DOCUMENTS, ids=lambda each: each.place)
def test_a_document_is_taken_as_it_stands(
    example: Example, admin: Api, world: Any, tmp_path: Path, settings: Any
) -> None:
    data = json.loads(example.text) if example.language == "json" else load_yaml(example.text)
    if example.language == "json" and "config" in data:  # the server's own part
        assert set(data["config"]) <= set(configuration(data["kind"]).model_fields)
    elif "config" in data:
        settings.ATHANOR = settings.ATHANOR.model_copy(update={"cluster_config_dir": tmp_path})
        for name in ("slurm_key", "slurm_hosts", "training.kubeconfig"):
            (tmp_path / name).write_text("")
        (tmp_path / "hpc.cluster.json").write_text(json.dumps(SERVER_PART))
        clusters.build_backend(data["kind"], data["config"], data["name"])
    elif "organisation" in data:
        for name in re.findall(r"teams:\n\s+([a-z]+):", example.text):
            Team.objects.get_or_create(name=name)
        preview = admin.generic("POST", "/api/v1/quotas:preview", example.text, content_type="application/yaml")
        assert preview.status_code == 200, preview.content
    elif "pools" in data:
        Scenario.model_validate(data)
    elif "publicUrl" in data:  # tests/deploy/test_helm_values.py renders them
        assert set(data) <= set(load_yaml((REPOSITORY / "deploy/helm/athanor/values.yaml").read_text()))
    elif "scrape_configs" in data:
        (scrape,) = data["scrape_configs"]
        assert scrape["job_name"].startswith("athanor"), "the alert AthanorDown expects it"
        assert scrape["authorization"].keys() == {"credentials_file"}
    else:
        Pool.objects.update(slots_per_node=64)
        answers = [admin.send("POST", "jobs:plan", whole) for whole in _wholes(data)]
        assert any(_is_right(answer) for answer in answers), [answer.content for answer in answers]


def test_the_example_of_windows_is_submitted_as_yaml(admin: Api, world: Any) -> None:
    """It ended the command line with a traceback, and answered 500."""
    (windows,) = [each for each in DOCUMENTS if "not_before" in each.text]
    tomorrow = windows.text.replace("2026-03", "2099-03")
    body = f"{json.dumps(SPEC)[:-1].removeprefix('{')}"
    written = "{" + body + ", " + tomorrow.replace("schedule:\n", '"schedule": {').replace("\n  ", ", ").strip() + "}}"
    written = written.replace("{  ", "{").replace("{, ", "{")
    for path in ("jobs:plan", "jobs"):
        answer = admin.generic("POST", f"/api/v1/{path}", written, content_type="application/yaml")
        assert answer.status_code in (200, 201), answer.content
    assert answer.json()["spec"]["schedule"]["not_before"] == "2099-03-10T22:00:00Z"


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("athanor ")])
def test_a_command_of_athanor_has_the_arguments_that_are_shown(command: str) -> None:
    parse(typer.main.get_command(app), shlex.split(command)[1:])


def parse(command: Any, arguments: list[str], parent: Any = None) -> None:
    """Parse as the program would, without running it. Raises typer's UsageError; a file need not be there."""
    try:
        context = command.make_context(command.name, list(arguments), parent=parent)
    except typer.BadParameter as error:
        if "does not exist" not in error.message:
            raise
        return
    if hasattr(command, "commands"):
        _, inner, remaining = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None, arguments
        parse(inner, remaining, context)


def test_commands_that_messages_and_texts_name_are_there() -> None:
    """A remedy that names a command nobody has leads nowhere."""
    root: Any = typer.main.get_command(app)
    sources = [*PAGES, *(REPOSITORY / "platform").rglob("*.py"), *(REPOSITORY / "frontend" / "src").rglob("*.tsx")]
    wrong = []
    for path in sources:
        for name, inner in re.findall(r"`athanor ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", path.read_text()):
            command = root.commands.get(name)
            if command is None or (inner and inner not in getattr(command, "commands", [inner])):
                wrong.append(f"{path.relative_to(REPOSITORY)}: athanor {name} {inner}")
    assert wrong == []


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("make ")])
def test_a_target_of_make_is_there(command: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    named = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert set(named) <= targets


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("curl ") and SLURMRESTD not in each])
def test_a_request_of_curl_goes_to_an_operation_of_the_api(command: str) -> None:
    found = re.findall(r"(/api/v1/[\w:/$.{}-]+)", command)
    if not found:  # another address of the web
        (other,) = re.findall(r"://[^/\s]+(/\S+)", command)
        assert resolve(other).func is not site.unknown
        return
    (path,) = found
    known = [re.escape(each).replace(r"\{", "{") for each in json.loads(content())["paths"]]
    assert any(re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", each), path) for each in known), path


def test_commands_of_manage_py_are_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"manage\.py ([a-z_]+)", page.read_text())}
    assert named
    assert named <= set(get_commands())


def _is_right(answer: Any) -> bool:
    return answer.status_code == 200 or {each["code"] for each in answer.json()["errors"]} <= NOT_HERE


def _wholes(fragment: dict[str, Any]) -> list[dict[str, Any]]:
    """Complete specs with a fragment in its place: fields of the spec, or of its `training`."""
    base = copy.deepcopy(SPEC)
    base["training"] |= {"steps": 10_000, "tokens_per_step": 4096}
    wholes = []
    if set(fragment) <= set(JobSpec.model_fields):
        inner = {**base["training"], **fragment.get("training", {})}
        task = {} if {"prepare", "evaluation", "replay", "export"} & fragment.keys() else {"training": inner}
        rest = {name: part for name, part in base.items() if name != "training"}
        wholes.append({**rest, **fragment, "resources": base["resources"], **task})
    if set(fragment) <= set(TrainingSpec.model_fields):
        resources = {**base["resources"], "processes_per_node": MESH_RANKS if "parallelism" in fragment else 1}
        if "expert" in fragment.get("parallelism", {}):
            base["training"]["model"] = {"preset": "moe-1m"}
        wholes.append({**base, "resources": resources, "training": {**base["training"], **fragment}})
    return wholes


def test_the_receiver_of_webhooks_that_is_shown_tells_genuine_deliveries_from_others() -> None:
    (shown,) = [each for each in EXAMPLES if each.language == "python" and "is_genuine" in each.text]
    receiver: dict[str, Any] = {}
    exec(shown.text, receiver)
    is_genuine, now = receiver["is_genuine"], int(time.time())
    sent = signature(["old", "new"], now, '{"id": "1"}')
    assert is_genuine("new", sent, b'{"id": "1"}')
    assert is_genuine("old", sent, b'{"id": "1"}')
    assert not is_genuine("another", sent, b'{"id": "1"}')
    assert not is_genuine("new", sent, b'{"id": "2"}')
    assert not is_genuine("new", signature(["new"], now - 3600, '{"id": "1"}'), b'{"id": "1"}')
