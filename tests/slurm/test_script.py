"""What is handed to sbatch, to the letter. After a change that is meant: `ATHANOR_WRITE_GOLDEN=1 pytest` this file."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from athanor.backends.base import BackendRejected, Submission
from athanor.backends.plan import LaunchPlan
from athanor.backends.slurm import rest
from athanor.backends.slurm.backend import SlurmBackend
from athanor.backends.slurm.script import AGENT_RESTARTS, NODE_UNUSABLE, RAN_BEFORE, with_options

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


def test_the_script_of_a_replacement_is_as_it_was() -> None:
    config, changes = CASES["everything"]
    text = backend(**config).render_replacement(plan(**changes), node_index=3, number=2).text
    file = GOLDEN / "replacement.sh"
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
    """srun that runs its command here, in a process group of its own, and scontrol that knows nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec setsid --wait "$@"\n')
    (programs / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    (programs / "scancel").write_text("#!/bin/sh\nexit 0\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    (tmp_path / "shared").mkdir()
    return tmp_path


def run(place: Path, status: int = 0, work: str = "work", **variables: str) -> int:
    return run_agent(place, ["sh", "-c", f"exit {status}"], {}, work, **variables).returncode


def run_agent(
    place: Path, command: list[str], changes: dict[str, Any], work: str = "work", **variables: str
) -> subprocess.CompletedProcess[str]:
    chosen = backend(log_directory=str(place / "shared"), work_directory=str(place / work), command=command)
    return run_job(place, chosen.render(plan(**changes)), **variables)


def run_job(place: Path, submission: Submission, **variables: str) -> subprocess.CompletedProcess[str]:
    asked: Any = submission.payload
    environment = {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0", **variables,
    }  # fmt: skip
    text = with_options(asked)
    return subprocess.run(["bash"], input=text, text=True, env=environment, capture_output=True, check=False)


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


# Each start appends the folder that it runs in to `starts`; then SCRIPT decides by their number, `$n`.
COUNTED = 'pwd >>"$0"; n=$(wc -l <"$0"); {script}'


def counted(place: Path, script: str, **changes: Any) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    starts = place / "starts"
    ended = run_agent(place, ["sh", "-c", COUNTED.format(script=script), str(starts)], changes)
    return ended, starts.read_text().splitlines()


def test_a_killed_agent_of_a_run_that_may_lose_a_node_starts_again_in_its_folder(stand_ins: Path) -> None:
    ended, starts = counted(stand_ins, '[ "$n" -gt 2 ] || kill -KILL $$', spare_nodes=1)
    assert ended.returncode == 0, ended.stderr
    assert starts == [f"{stand_ins}/work/{plan().backend_name}/0"] * 3
    assert ended.stderr.count("athanor: signal 9 ended the agent of node n1") == 2
    assert (stand_ins / "shared" / f"{plan().backend_name}.end").read_text() == "0 7\n"
    assert not (stand_ins / "work" / plan().backend_name / "0").exists()


def test_an_agent_that_is_killed_again_and_again_ends_as_it_was_killed(stand_ins: Path) -> None:
    ended, starts = counted(stand_ins, "kill -KILL $$", nodes=2, min_nodes=1)
    assert (ended.returncode, len(starts)) == (128 + 9, 1 + AGENT_RESTARTS)


@pytest.mark.parametrize(
    ("script", "changes", "status"),
    [
        ("exit 83", {"spare_nodes": 1}, 83),  # it ended by itself
        ("exit 255", {"spare_nodes": 1}, 255),  # so did this one: no signal has this number
        ("kill -TERM $$", {"spare_nodes": 1}, 128 + 15),  # it was asked to end
        ("kill -TERM $PPID; kill -KILL $$", {"spare_nodes": 1}, 128 + 9),  # its job step was asked to end
        ("kill -KILL $$", {}, 128 + 9),  # no node is expendable
    ],
)
def test_other_agents_run_once(stand_ins: Path, script: str, changes: dict[str, Any], status: int) -> None:
    ended, starts = counted(stand_ins, script, **changes)
    assert (ended.returncode, len(starts)) == (status, 1)


RANKS = """
import os, signal, subprocess, sys
starts = open(sys.argv[1], "a+")
starts.seek(0)
before = starts.read()
if not before:
    # The second is the time that a rank needs to end, while the kernel frees the memory of its GPU.
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])  # it stands for that rank
    print(rank.pid, file=starts, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7 if os.path.exists(f"/proc/{before.strip()}/exe") else 0)
"""


def test_an_agent_starts_again_only_when_the_ranks_of_the_killed_one_have_ended(stand_ins: Path) -> None:
    ended = run_agent(stand_ins, [sys.executable, "-c", RANKS, str(stand_ins / "rank")], {"spare_nodes": 1})
    assert ended.returncode == 0, ended.stderr
    assert "signal 9" in ended.stderr


def replacement(place: Path, status: int) -> subprocess.CompletedProcess[str]:
    """Run the job that replaces node 3 of an attempt of four."""
    command = ["sh", "-c", f"pwd; exit {status}"]
    chosen = backend(log_directory=str(place / "shared"), work_directory=str(place / "work"), command=command)
    asked = chosen.render_replacement(plan(nodes=4, min_nodes=2), node_index=3, number=1)
    return run_job(place, asked, SLURM_JOB_ID="8")


def test_a_replacement_has_the_index_of_the_lost_node_and_files_of_its_own(stand_ins: Path) -> None:
    ended = replacement(stand_ins, 0)
    assert (ended.returncode, ended.stdout) == (0, f"{stand_ins}/work/{plan().backend_name}/3\n"), ended.stderr
    files = {file.name.removeprefix(f"{plan().backend_name}."): file for file in (stand_ins / "shared").iterdir()}
    assert set(files) == {"ended.3", "replaced.3.1.begun", "replaced.3.1.end"}
    assert files["replaced.3.1.end"].read_text() == "0 8\n"
    assert replacement(stand_ins, 0).returncode == RAN_BEFORE


def test_a_replacement_that_fails_does_not_count_as_a_good_end(stand_ins: Path) -> None:
    assert replacement(stand_ins, 83).returncode == 83
    assert not list((stand_ins / "shared").glob("*.ended.3"))


def test_a_replacement_runs_nothing_when_the_attempt_is_over(stand_ins: Path) -> None:
    (stand_ins / "shared" / f"{plan().backend_name}.end").write_text("0 7\n")
    ended = replacement(stand_ins, 0)
    assert (ended.returncode, ended.stdout) == (RAN_BEFORE, "")


# squeue, which counts its calls in `asked`.
SQUEUE = """#!/bin/bash
echo "$*" >>{place}/asked
[ "$(wc -l <{place}/asked)" -gt {listed} ] || exec echo "8 main athanor root R 0:10 1 n2"
{after}
"""


@pytest.mark.parametrize(
    ("listed", "after", "asked"),
    [
        (2, "exit 0", 3),  # it ran, and has ended
        (1, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", 2),  # and Slurm has forgotten it
        (0, "touch {name}.replaced.1.1.end; echo 'Unable to contact slurm controller' >&2; exit 1", 1),
    ],
)
def test_the_job_of_an_attempt_waits_for_the_agents_of_replacements(
    stand_ins: Path, listed: int, after: str, asked: int
) -> None:
    """The agent of its own node has failed, as srun reports of a lost one, and two ended well in other jobs."""
    name = stand_ins / "shared" / plan().backend_name
    squeue = stand_ins / "bin" / "squeue"
    squeue.write_text(SQUEUE.format(place=stand_ins, listed=listed, after=after.format(name=name)))
    squeue.chmod(0o755)
    name.with_suffix(".replaced.1.1.begun").write_text("8\n")
    name.with_suffix(".replaced.1.1.log").write_text("hello from node 1\n")
    for index in (1, 2):
        name.with_suffix(f".ended.{index}").touch()
    ended = run_agent(stand_ins, ["sh", "-c", "exit 1"], {"nodes": 3, "min_nodes": 2})
    assert ended.returncode == 0, ended.stderr
    assert (stand_ins / "asked").read_text().splitlines() == ["--noheader --states=RUNNING,SUSPENDED --jobs=8"] * asked
    assert ended.stdout.splitlines() == [
        "athanor: output of job 8, the replacement of a lost node",
        "hello from node 1",
    ]
