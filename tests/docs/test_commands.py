"""Every shell command of README and docs is run as it stands, in the order of its page, on a new stack.

A block marked `console` also shows output: each line of it must be in what the command prints.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from athanor.backends.facts import Finding, Level, NodeFacts, NodeState
from athanor.backends.fake.backend import World
from deploy.local.administrator import Administrator
from deploy.local.environment import with_repository_on_path
from deploy.local.handle import wait_until
from tests.bench.platform_stack import settings_of
from tests.e2e.administration import write_server_part
from tests.e2e.conftest import FINAL, TINY, Stack
from tests.pages import EXAMPLES, REPOSITORY, Example
from tests.worlds import ServedWorld
from trainer.contract.preflight import PreflightReport, report_line

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(500)]
LANGUAGES = ("sh", "console")
PROGRAMS = ("athanor ", "make ", "curl ", "python ", "manage.py ", "kubectl ", ". ", "$ ")
# What is not run here, by the place of its block, and why.
NOT_RUN = {
    "make demo": "the first of README's two commands: `make bench BENCH=--demo` runs it",
    "make test": "it is what runs this test",
    "make quota-demo": "tests/e2e/test_quota_demo.py runs it",
    "make gpu-kit": "downloads wheels; tests/trainer/test_gpu_kit.py runs a kit",
    "python gpu_kit/run.py": "the same",
    "make images": "needs buildah and minutes; `make compose-test` runs what it has built",
    "(umask 077; podman run": "needs podman: `make compose-test` runs it",
    "podman-compose": "needs podman: `make compose-test` runs it",
    "python manage.py backup": "writes to /srv: tests/chaos/test_backup.py runs the three commands",
    "python manage.py verify_backup": "writes to /srv: tests/chaos/test_backup.py runs the three commands",
    "python manage.py restore": "writes to /srv: tests/chaos/test_backup.py runs the three commands",
    "export ATHANOR_METRICS_TOKEN": "is for a new start: tests/control_plane/monitoring/test_prometheus.py scrapes",
    "curl --fail --header": "is for a new start: tests/control_plane/monitoring/test_prometheus.py scrapes",
    ".venv/bin/python -m deploy.monitoring": "tests/control_plane/monitoring/test_alerts.py checks what it writes",
    "promtool": "needs promtool: tests/control_plane/monitoring/test_alerts.py runs it",
    "python -m deploy.audit refresh": "needs advisory services: tests/deploy/test_audit.py runs it with doubles",
    "python -m deploy.images.lock": "needs uv and a package index: tests/deploy/test_lock.py checks what it wrote",
    "athanor support-bundle": "tests/cli/test_support_bundle.py runs it",
    "tar -xzf case-17": "unpacks what the command before would have written",
    "athanor model convert saved": "needs a checkpoint: tests/trainer/test_distributed_checkpoint.py converts some",
    "athanor model merge": "needs two models: tests/trainer/test_merging.py merges some",
    "make docs": "`make setup` runs the same",
    "make release": "makes a tag; tests/deploy/test_release.py builds a release",
    "ssh-keygen -Y verify": "needs a release: tests/deploy/test_release.py checks one",
    "cd trainer && find": "needs a checkout: tests/trainer/test_versions.py compares it with what attempts report",
    "sha256sum --check": "needs a release: tests/deploy/test_release.py checks one",
    "oras copy": "needs a registry of images",
    "kubectl create namespace": "needs a Kubernetes cluster",
    "kubectl -n athanor": "needs a Kubernetes cluster",
    "helm upgrade": "needs a Kubernetes cluster; tests/deploy/test_helm_values.py renders these values",
    "sudo ": "changes the host; tests/deploy/test_systemd_units.py checks the units and files",
    "npm --prefix frontend": "`make setup` runs the same",
    "systemctl status": "needs systemd",
    "make up": "the stack of these tests runs already",
    "athanor webhook": "needs a receiver: tests/e2e/test_administration.py has one",
    "TOKEN=$(kubectl": "needs a Kubernetes cluster",
    "kubectl config view": "needs a Kubernetes cluster",
    'chmod 600 "$ATHANOR_CLUSTER_CONFIG_DIR/training.kubeconfig"': "needs the file of the command before it",
    "athanor cluster add training.yaml": "needs a Kubernetes cluster; iron.yaml in clusters.md runs the same command",
    "athanor cluster pool training": "needs a Kubernetes cluster; clusters.md runs the same command",
    "athanor preflight --cluster training": "needs a Kubernetes cluster",
    "mkdir -p ~/.config/systemd": "writes to the user's own folder",
    "python -m deploy.local unit": "tests/deploy/test_systemd.py verifies what it prints",
    "systemctl --user": "needs systemd",
    "loginctl": "needs systemd",
    "python -m trainer.simulation": "takes seconds each: tests/trainer/test_recovery_simulation.py runs it",
    "athanor dataset report chat": "needs an upload: dispatch/test_reporting_jobs.py makes and reads one by the API",
    "athanor team data-policy --require-report": "changes the team: artifacts/test_data_reports.py does by the API",
    "python -m trainer data-report": "needs data: tests/trainer/test_data_report.py runs it",
    "export ATHANOR_TEST_KUBECONFIG": "needs a Kubernetes cluster",
    ".venv/bin/python -m pytest tests/backends tests/kubernetes/test_real.py": "needs a Kubernetes cluster",
}
# Runbooks have commands for nodes, and for clusters of every kind; these can be followed on a stack.
RUNBOOKS = "docs/runbooks/"
OF_A_RUNBOOK = ("athanor ", "curl -s http://127.0.0.1:8700/")
ELSEWHERE = "a runbook's command for a node, or for a cluster of one kind"
ANY_ID = re.compile(r"[a-z]{3,4}_[0-9A-Z]{26}")


@dataclass(frozen=True)
class Command:
    place: str
    text: str
    shown: list[str]
    """Lines of output that the page shows."""

    @property
    def is_refused(self) -> bool:
        return any(line.startswith("athanor: ") for line in self.shown)

    @property
    def reason_not_run(self) -> str | None:
        if self.place.startswith(RUNBOOKS) and not self.text.startswith(OF_A_RUNBOOK):
            return ELSEWHERE
        return next((reason for start, reason in NOT_RUN.items() if self.text.startswith(start)), None)


def commands_of(example: Example) -> list[Command]:
    lines = [line.strip() for line in re.sub(r"\\\n\s*(?:\| )?", " ", example.text).splitlines() if line.strip()]
    if example.language == "sh":
        texts = [line.partition(" #")[0].strip() for line in lines]
        return [Command(example.place, text, []) for text in texts]
    found: list[Command] = []
    for line in lines:
        if line.startswith("$ "):
            found.append(Command(example.place, line[2:], []))
        else:
            found[-1].shown.append(line)
    return found


COMMANDS = [command for each in EXAMPLES if each.language in LANGUAGES for command in commands_of(each)]


def page(name: str) -> list[Command]:
    found = [each for each in COMMANDS if each.place.startswith(f"{name}:") and not each.reason_not_run]
    assert found, name
    return found


@dataclass
class Reader:
    """Follows the pages in a shell of their own."""

    stack: Stack
    folder: Path
    replaced: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "home").mkdir()
        local = Path(sys.executable).parent
        self.replaced = {
            "http://127.0.0.1:8700": self.stack.url,
            "https://athanor.example": self.stack.url,
            ". .venv/bin/activate": f". {local}/activate" if (local / "activate").exists() else "true",
            "curl -N": "curl --max-time 3 -N",
        }
        if shutil.which("uuidgen") is None:
            self.replaced["uuidgen"] = "cat /proc/sys/kernel/random/uuid"
        self.environment = with_repository_on_path(
            {
                **self.stack.environment,
                **settings_of(self.stack),
                "HOME": str(self.folder / "home"),
                "PATH": f"{local}{os.pathsep}{os.environ['PATH']}",
                "ATHANOR_TOKEN": self.stack.token,
                "ATHANOR_URL": self.stack.url,
            }
        )
        (self.folder / "manage.py").symlink_to(REPOSITORY / "manage.py")

    def follow(self, command: Command) -> str:
        """Run it. AssertionError when it fails, or prints something else than the page shows."""
        text = command.text
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        environment = dict(self.environment)
        asked = ""
        if command.text.startswith("athanor login"):
            asked = f"{self.stack.password if '--username' in text else self.stack.token}\n"
        elif command.text.startswith("athanor"):  # who has logged in needs no variables
            environment = {n: v for n, v in environment.items() if n not in ("ATHANOR_TOKEN", "ATHANOR_URL")}
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", text],
            cwd=self.folder, env=environment, input=asked, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        said = f"{command.place}: {text}\n{done.stdout}{done.stderr}"
        stream_cut_off = "--max-time" in text and done.returncode == 28
        assert (done.returncode != 0) == command.is_refused or stream_cut_off, said
        for line in command.shown:
            pattern = ANY_ID.sub("[a-z]+_[0-9A-Z]+", re.escape(line).replace(re.escape("..."), ".*"))
            assert re.search(pattern, done.stdout + done.stderr), f"the page shows {line!r}\n{said}"
        return done.stdout + done.stderr

    def log_in_as_administrator(self) -> None:
        url, name = self.stack.url, self.stack.username
        self.follow(Command("setup", f"athanor login {url} --username {name} --team demo --platform", []))

    def follow_page(self, name: str) -> dict[str, str]:
        return {command.text: self.follow(command) for command in page(name)}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack(tmp_path_factory.mktemp("docs") / "data")
    running.up()
    yield running
    running.down()
    for process in running.job_processes():
        process.kill()


@pytest.fixture(scope="module")
def iron(stack: Stack) -> Iterator[ServedWorld]:
    """The cluster of docs/operations/clusters.md: its operator has written the server's part."""
    world = World()
    world.nodes = {
        name: NodeFacts(name, NodeState.READY, pools=("gpu",), accelerator="h100", slots=8, cpus=96, memory_bytes=2**40)
        for name in ("n6", "n7")
    }
    world.findings = [Finding("answer", Level.OK, "it answers")]
    world.report = report_line(PreflightReport(ranks=8, nodes=1, device="H100", seconds=9.0))
    served = ServedWorld(world)
    write_server_part(stack.data_dir, "iron", "fake_cluster", {"address": served.address})
    yield served
    served.close()


@pytest.fixture
def reader(stack: Stack, tmp_path: Path) -> Reader:
    made = Reader(stack, tmp_path)
    made.log_in_as_administrator()
    return made


def example_with(start: str, name: str = "docs/") -> str:
    """Return the first example that begins so, on the page of this name or below it."""
    return next(each.text for each in EXAMPLES if each.text.startswith(start) and each.place.startswith(name))


def test_every_block_of_shell_is_marked_and_every_exception_is_needed() -> None:
    unmarked = [
        each.place
        for each in EXAMPLES
        if each.language not in LANGUAGES and any(line.startswith(PROGRAMS) for line in each.text.splitlines())
    ]
    assert unmarked == []
    used = {reason for each in COMMANDS if (reason := each.reason_not_run)}
    assert used == {*NOT_RUN.values(), ELSEWHERE}
    pages = {each.place.partition(":")[0] for each in COMMANDS if not each.reason_not_run}
    assert {name for name in pages if not name.startswith(RUNBOOKS)} == {
        "docs/tutorial/first-run.md",
        *(
            f"docs/how-to/{name}.md"
            for name in (
                "alerts",
                "convert-a-model",
                "delete-data",
                "document-a-model",
                "evaluate-and-promote",
                "follow-events",
                "lineage",
                "registry-of-models",
                "replay",
                "retry-requests",
                "sign-and-verify",
                "submit-from-a-pipeline",
                "version-your-data",
            )  # fmt: skip
        ),
        *(
            f"docs/operations/{name}.md"
            for name in ("access", "audit", "budgets", "clusters", "quotas", "quotas-and-budgets")
        ),
    }


def test_the_commands_of_the_first_run(stack: Stack, reader: Reader) -> None:
    folder = reader.folder
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(2000)))
    for command in page("docs/tutorial/first-run.md"):
        said = reader.follow(command)
        if command.text.startswith("athanor submit --preset demo"):
            job = ANY_ID.findall(said)[0]
            reader.replaced["JOB_ID"] = job
            stack.wait_for_step(job, 1)
        elif command.text.startswith("athanor generate"):
            assert said.startswith("def ")
    assert (folder / "model" / "model.safetensors").exists()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_commands_of_a_pipeline(stack: Stack, reader: Reader) -> None:
    (reader.folder / "job.yaml").write_text(example_with("version: 1\nname: my-first-run"))
    (command,) = page("docs/how-to/submit-from-a-pipeline.md")
    made = json.loads(reader.follow(command))
    assert made["name"] == "my-first-run"
    stack.athanor("cancel", made["id"])


def test_the_commands_of_clusters(reader: Reader, iron: ServedWorld) -> None:
    (reader.folder / "iron.yaml").write_text("name: iron\nkind: fake_cluster\n")
    reader.follow_page("docs/operations/clusters.md")


@pytest.fixture(scope="module")
def copper(stack: Stack) -> Iterator[None]:
    """A cluster with two free nodes, for the runbooks: the last one cannot be put into quarantine."""
    world = World()
    world.nodes = {
        name: NodeFacts(name, NodeState.READY, pools=("gpu",), accelerator="h100", slots=8, memory_bytes=2**40)
        for name in ("n7", "n8")
    }
    world.findings = [Finding("answer", Level.OK, "it answers")]
    world.report = report_line(PreflightReport(ranks=8, nodes=1, device="H100", seconds=9.0))
    served = ServedWorld(world)
    write_server_part(stack.data_dir, "copper", "fake_cluster", {"address": served.address})
    yield
    served.close()


@pytest.mark.timeout(900)  # some seventy commands, each with a start of Python
@pytest.mark.usefixtures("copper")
def test_the_commands_of_runbooks(stack: Stack, reader: Reader) -> None:
    """Each command once, for a job that has ended; pause, resume and fork for one that waits.

    Before the pages on quotas, which leave a tree in which this job has too few slots.
    """
    (reader.folder / "copper.yaml").write_text("name: copper\nkind: fake_cluster\n")
    (reader.folder / "corpus.jsonl").write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(2000)))
    (reader.folder / "job.yaml").write_text(example_with("version: 1\nname: my-first-run"))
    (reader.folder / "ended.json").write_text(json.dumps({**TINY, "name": "ended", "preflight": True}))
    for command in ("cluster add copper.yaml", "cluster pool copper gpu --no-test", "dataset add corpus corpus.jsonl"):
        reader.follow(Command("setup", f"athanor {command}", []))
    job = ANY_ID.findall(stack.athanor("submit", str(reader.folder / "ended.json")).stdout)[0]
    stack.wait_for_end(job)
    found = stack.get(f"/jobs/{job}/checkpoints")["items"][0]["id"]
    reader.replaced |= {"CHECKPOINT": found, "CLUSTER": "copper", "NODE": "n7"}
    commands = {each.text: each for each in COMMANDS if each.place.startswith(RUNBOOKS) and not each.reason_not_run}
    later = ("--set", "training.steps=1000", "--set", "schedule.not_before=2998-01-01T00:00:00Z")
    waits = ANY_ID.findall(stack.athanor("fork", job, *later).stdout)[0]
    for text, command in commands.items():
        is_of_waiting = text.startswith(("athanor fork", "athanor pause", "athanor resume"))  # forks of it wait, too
        reader.replaced["JOB_ID"] = waits if is_of_waiting else job
        reader.follow(command)
    for each in stack.get("/jobs", limit=200)["items"]:
        if each["status"] not in FINAL:
            stack.athanor("cancel", each["id"])


def test_the_commands_of_quotas_and_budgets(reader: Reader) -> None:
    (reader.folder / "job.yaml").write_text(example_with("version: 1\nname: my-first-run"))
    (reader.folder / "scenario.yaml").write_text(example_with("nodes:"))
    reader.follow(Command("setup", "athanor quota set red --create", []))
    reader.follow_page("docs/operations/quotas-and-budgets.md")


def test_the_commands_of_quotas(stack: Stack, reader: Reader) -> None:
    for job in stack.get("/jobs", limit=200)["items"]:
        if job["status"] not in FINAL:
            stack.athanor("cancel", job["id"])
            stack.wait_for_end(job["id"])
    (reader.folder / "long.json").write_text(
        json.dumps({**TINY, "resources": {"processes_per_node": 1}, "training": {**TINY["training"], "steps": 10**6}})
    )
    jobs: list[str] = []
    for command in page("docs/operations/quotas.md"):
        if command.text.startswith("athanor quota set demo --grant cpu=1:1"):  # one runs on demo's own slot, one waits
            jobs = [ANY_ID.findall(stack.athanor("submit", str(reader.folder / "long.json")).stdout)[0] for _ in "12"]
            stack.wait_for_step(jobs[0], 1)
        reader.follow(command)
    tree: Any = json.loads(reader.follow(Command("tree", "athanor quota show --json", [])))
    assert {node["path"] for node in tree["nodes"]} >= {"research", "research/demo"}
    # The page ends with a limit by which the jobs of other pages would be refused.
    reader.follow(Command("limit", "athanor quota set demo --max-slots-per-job none", []))
    for job in reversed(jobs):
        stack.athanor("cancel", job)
        stack.wait_for_end(job)


def test_the_commands_of_budgets_which_follow_those_of_quotas(reader: Reader) -> None:
    said = reader.follow_page("docs/operations/budgets.md")
    assert "research/spring" in next(
        text for command, text in said.items() if command.startswith("athanor budget list")
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_commands_of_events(stack: Stack, reader: Reader) -> None:
    (command,) = page("docs/how-to/follow-events.md")
    said = reader.follow(command)
    assert "HTTP" not in said
    assert said.startswith((":", "id:", "event:", "retry:")), said


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_commands_of_retries(reader: Reader) -> None:
    (command,) = page("docs/how-to/retry-requests.md")
    made = json.loads(reader.follow(command))
    assert (made["url"], bool(made["secret"])) == ("https://example.org/hook", True)


def test_the_commands_of_alerts(reader: Reader) -> None:
    shown = reader.follow_page("docs/how-to/alerts.md")
    rules = shown["athanor alert rules"]
    assert "low MFU" in rules
    assert "budget_used" in rules
    assert shown["athanor alert read"].strip() == "0 unread"
    assert "Europe/Berlin" in shown["athanor alert preferences --digest-at none --critical-immediately"]


def test_the_commands_of_versions_of_data(reader: Reader) -> None:
    rows = [json.dumps({"text": f"line {number}"}) + "\n" for number in range(5)]
    (reader.folder / "books.jsonl").write_text("".join(rows[:4]))
    (reader.folder / "corrected.jsonl").write_text("".join(rows[1:]))
    shown = reader.follow_page("docs/how-to/version-your-data.md")
    compared = shown["athanor dataset diff books@1 books@reviewed"]
    assert "rows       1 added, 1 removed, 3 common" in compared
    assert "1 removed: books.jsonl" in compared
    assert "dataset books@1" in shown["athanor delete dataset:books@1 --preview"]


def test_the_commands_of_the_registry(stack: Stack, reader: Reader) -> None:
    spec = reader.folder / "registered.yaml"
    spec.write_text(example_with("version: 1\nname: support-bot", "docs/how-to/registry-of-models.md"))
    job = ANY_ID.findall(stack.athanor("submit", str(spec)).stdout)[0]
    stack.wait_for_end(job)
    reader.replaced["JOB_ID"] = job
    (reader.folder / "card.md").write_text("# Support bot\n")
    stack.athanor("model", "register", "support-bot", job, "--alias", "production")
    traced = json.loads(stack.athanor("lineage", job, "--up", "--json").stdout)
    reader.replaced["DATASET_ID"] = next(node["id"] for node in traced["nodes"] if node["kind"] == "dataset")
    shown = reader.follow_page("docs/how-to/lineage.md")
    made_of = shown["athanor lineage model:support-bot@production --up"]
    assert "trained on dataset builtin:python-stdlib" in made_of
    assert "tokenised from" in made_of
    assert "trained job support-bot" in shown["athanor lineage DATASET_ID --down"]
    reader.follow_page("docs/how-to/document-a-model.md")
    assert "FLOPs of these steps" in (reader.folder / "support-bot.md").read_text()
    for command in page("docs/how-to/sign-and-verify.md"):
        output = reader.follow(command)
        if command.text == "athanor signing-key list":
            listed = json.loads(reader.follow(Command("setup", "athanor signing-key list --json", [])))
            reader.replaced["KEY_ID"] = next(key["id"] for key in listed if key["state"] == "active")
        elif command.text.startswith("athanor model verify"):
            assert "files as signed, model 'support-bot'" in output
    questions = [{"question": "import", "choices": ["os", "zzz"], "answer": 0}] * 3
    for name, rows in (("held-out", [{"text": "import os\n"}, {"text": "return self\n"}]), ("facts", questions)):
        (reader.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stack.athanor("model", "alias", "support-bot", "candidate", "1")
    (reader.folder / "evaluate.yaml").write_text(example_with("version: 1\nname: evaluate-support-bot"))
    shown = reader.follow_page("docs/how-to/evaluate-and-promote.md")
    assert "accuracy_normalised" in shown["athanor model evaluations support-bot"]
    for command in page("docs/how-to/convert-a-model.md"):
        output = reader.follow(command)
        if command.text.startswith("athanor model convert"):
            assert "n = 2 documents" in output
            assert "as signed by the key" in output
    Administrator(stack.credentials).call("POST", "teams", {"name": "blue"})
    stack.athanor("download", job, str(reader.folder / "small-llama"))
    (reader.folder / "small-llama" / "model.sig").unlink()
    shown = reader.follow_page("docs/how-to/registry-of-models.md")
    assert "small-llama@1, candidate: imported" in "".join(shown.values())
    assert (reader.folder / "SMALL" / "model.safetensors").exists()
    assert "blue can read it as model:" in shown["athanor model share support-bot blue"]
    assert "no longer shared with blue" in shown["athanor model share support-bot blue --remove"]
    assert "candidate=1" in shown["athanor model list"]
    assert (reader.folder / "DIR" / "model.safetensors").exists()
    assert "named by alias production" in shown["athanor model delete support-bot 1 --preview"]


def test_the_commands_of_replays(stack: Stack, reader: Reader) -> None:
    (reader.folder / "train.yaml").write_text(example_with("version: 1\nname: replayable"))
    shown = reader.follow_page("docs/how-to/replay.md")
    assert shown["athanor verify replayable"].count("equal") == 2


def test_the_commands_of_deletion(stack: Stack, reader: Reader) -> None:
    admin = Administrator(stack.credentials)
    team = admin.call("POST", "teams", {"name": "gone"})
    deletion = admin.call("DELETE", f"teams/{team['id']}?permanently=true")

    def is_erased() -> bool:
        rows = admin.call("GET", "deletions")["items"]
        return [row["state"] for row in rows if row["id"] == deletion["id"]] == ["purged"]

    wait_until(is_erased, "the team is erased", 120)
    certificate = admin.call("GET", f"deletions/{deletion['id']}/certificate")
    (reader.folder / "certificate.json").write_text(json.dumps(certificate))
    reader.follow_page("docs/how-to/delete-data.md")


def test_the_commands_of_access(reader: Reader) -> None:
    reader.follow_page("docs/operations/access.md")
    assert (reader.folder / "token.txt").read_text().startswith("ath_")


def test_the_commands_of_the_audit_trail(reader: Reader) -> None:
    anchored = "from workers.tasks import anchor_audit; anchor_audit()"
    reader.follow(Command("setup", f'python manage.py shell -c "{anchored}"', []))
    (anchors,) = [Path(place.removeprefix("file:")) for place in reader.environment["ATHANOR_AUDIT_ANCHORS"].split(",")]
    lines = anchors.read_text().splitlines()
    (reader.folder / "syslog.txt").write_text("".join(f"<110>1 host athanor - - - {line}\n" for line in lines))
    said = reader.follow_page("docs/operations/audit.md")
    verified = [text for command, text in said.items() if command.startswith("python manage.py verify_audit")]
    assert all("is whole" in text or "an intact export" in text for text in verified), said
    assert "anchors agree" in said["python manage.py verify_audit --anchors syslog.txt"]
