"""What is handed to sbatch, to the letter. After a change that is meant: `ATHANOR_WRITE_GOLDEN=1 pytest` this file."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from athanor.backends.base import BackendRejected
from athanor.backends.plan import LaunchPlan
from athanor.backends.slurm import rest
from athanor.backends.slurm.backend import SlurmBackend
from athanor.backends.slurm.script import NODE_UNUSABLE, RAN_BEFORE, with_options

GOLDEN = Path(__file__).with_name("golden")
HOSTILE = "x'; touch /tmp/owned; $(touch /tmp/owned) `id` \"\n#SBATCH --wrap=id\nrm -rf /"


def backend(**config: Any) -> SlurmBackend:
    return SlurmBackend(**{"log_directory": "/shared/athanor", **config})


def plan(**changes: Any) -> LaunchPlan:
    facts: dict[str, Any] = {
        "attempt_id": "att_01J8ZZZZZZZZZZZZZZZZZZZZZZ",
        "backend_name": "athanor-01j8zzzzzzzzzzzzzzzzzzzzzz",
        "job_id": "job_01J8YYYYYYYYYYYYYYYYYYYYYY",
        "job_name": "first run",
        "nodes": 1,
        "processes_per_node": 2,
        "accelerator": "cpu",
        "time_limit_seconds": 3600,
        "environment": {"ATHANOR_AGENT_URL": "https://athanor.example/api/agent/v1"},
        "secrets": {"ATHANOR_ATTEMPT_TOKEN": "planted-secret"},
    }
    return LaunchPlan(**{**facts, **changes})


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "everything": (
        {
            "partition": "gpu",
            "qos": "usual",
            "qos_by_priority": {"high": "urgent"},
            "account": "all",
            "teams": {"research": {"account": "research-gpu"}},
            "pools": {"big": {"partition": "big,bigger", "constraint": "nvlink&ib"}},
            "gres": {"h100-80gb": "gpu:h100"},
            "command": ["/opt/athanor/bin/python", "-m", "trainer.agent"],
            "work_directory": "/scratch/my jobs",
            "profile": {"fabric": "infiniband", "hcas": "mlx5", "cache_directory": "/scratch/cache"},
        },
        {
            "nodes": 4,
            "spare_nodes": 1,
            "processes_per_node": 8,
            "cpus_per_process": 12,
            "accelerator": "h100-80gb",
            "memory_bytes_per_node": 900 * 1024**3,
            "team": "research",
            "pool": "big",
            "priority": "high",
            "exclusive": True,
            "max_switches": 1,
            "avoid_nodes": ("node17", "node03"),
        },
    ),
    "hostile": (
        {"command": ["python3", "-c", HOSTILE], "work_directory": "/tmp/it's $(here)"},
        {"job_name": HOSTILE, "job_id": HOSTILE, "team": HOSTILE, "pool": HOSTILE, "environment": {"A": HOSTILE}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scripts_are_as_they_were(name: str) -> None:
    config, changes = CASES[name]
    text = backend(**config).render(plan(**changes)).text
    file = GOLDEN / f"{name}.sh"
    if os.environ.get("ATHANOR_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()
    assert "planted-secret" not in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_plan_for_one_node_names_it_to_slurm() -> None:
    text = backend().render(plan(only_node="node17")).text
    assert "#SBATCH --nodelist=node17" in text.splitlines()
    asked: Any = backend().render(plan(only_node="node17")).payload
    assert rest.later_fields(asked, {})["required_nodes"] == ["node17"]
    assert rest.fields_of_38(asked, {})["nodelist"] == "node17"


def test_a_run_that_may_shrink_survives_the_loss_of_nodes() -> None:
    alone, shrinking = (backend().render(plan(nodes=4, min_nodes=fewest)).text for fewest in (None, 2))
    assert "--no-kill" not in alone
    assert "#SBATCH --no-kill" in shrinking
    assert '[ "$ended" -ge 2 ] && status=0' in shrinking


def test_a_hostile_value_is_in_no_option() -> None:
    """sbatch reads options up to the first command; what looks like one behind it is text."""
    config, changes = CASES["hostile"]
    lines = backend(**config).render(plan(**changes)).text.splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line for line in lines[:first_command] if line.startswith("#SBATCH")]
    assert options == lines[1 : len(options) + 1]
    assert len(options) == 12
    assert not any("wrap" in option for option in options)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"backend_name": "athanor-$(id)"}, "backend name"),
        ({"avoid_nodes": ("n1\n#SBATCH --wrap=id",)}, "node to avoid"),
        ({"only_node": "n1,n2"}, "node"),
        ({"accelerator": "h100; id"}, "gres of accelerator"),
        ({"environment": {"A B": "1"}}, "environment variable"),
        ({"environment": {"A": "\0"}}, "zero byte"),
    ],
)
def test_what_can_be_no_word_of_slurm_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BackendRejected, match=named):
        backend().render(plan(**changes))


def test_a_team_without_a_rule_has_the_account_of_its_name() -> None:
    assert "--account=ath_research\n" in backend(account_prefix="ath_").render(plan(team="Research")).text
    with pytest.raises(BackendRejected, match="account of team"):
        backend(account_prefix="ath_").render(plan(team="a b"))


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """srun that runs its command here, and scontrol that knows nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n')
    (programs / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    (programs / "scancel").write_text("#!/bin/sh\nexit 0\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    (tmp_path / "shared").mkdir()
    return tmp_path


def run(place: Path, status: int = 0, work: str = "work", **variables: str) -> int:
    chosen = backend(
        log_directory=str(place / "shared"), work_directory=str(place / work), command=["sh", "-c", f"exit {status}"]
    )
    asked = chosen.render(plan()).payload
    environment = {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0", **variables,
    }  # fmt: skip
    return subprocess.run(["bash"], input=with_options(asked), text=True, env=environment, check=False).returncode  # type: ignore[arg-type]


def test_the_script_ends_as_the_agent_did_writes_it_down_and_runs_once(stand_ins: Path) -> None:
    assert run(stand_ins, 83) == 83
    name = plan().backend_name
    assert (stand_ins / "shared" / f"{name}.end").read_text() == "83 7\n"
    assert run(stand_ins, 0) == RAN_BEFORE
    assert (stand_ins / "shared" / f"{name}.end").read_text() == "83 7\n"


def test_a_start_that_slurm_repeats_runs_nothing(stand_ins: Path) -> None:
    assert run(stand_ins, 0, SLURM_RESTART_COUNT="1") == RAN_BEFORE
    assert not list((stand_ins / "shared").iterdir())


def test_a_node_that_cannot_make_its_folder_says_so(stand_ins: Path) -> None:
    (stand_ins / "file").write_text("")
    assert run(stand_ins, 0, work="file") == NODE_UNUSABLE


def test_a_shell_reads_back_what_the_script_says() -> None:
    command = ["python3", "-c", HOSTILE]
    text = backend(command=command).render(plan()).text
    assert shlex.join(command) in text
