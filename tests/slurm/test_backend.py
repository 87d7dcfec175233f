"""What Slurm itself may do to a job, on a real one, beyond the conformance suite."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from athanor.backends.base import BackendRejected, Cause, Handle, Phase, Presence
from athanor.backends.facts import Level, NodeState
from athanor.backends.slurm.commands import submitting
from athanor.backends.slurm.script import RAN_BEFORE, JobRequest, with_options
from deploy.local.handle import wait_until
from tests.backends.cases.slurm import SlurmCase
from tests.slurm.cluster import SlurmCluster


def running(case: SlurmCase, **changes: object) -> Handle:
    handle = case.backend.submit(case.submission(**changes))
    wait_until(lambda: case.observe(handle).phase is Phase.RUNNING and case.starts(handle) >= 1, "it runs", 30)
    return handle


def test_a_controller_that_is_away_and_comes_back_loses_nothing(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    handle = running(slurm_commands)
    slurm.stop_controller()
    slurm.start_controller()
    assert slurm_commands.observe(handle).presence is Presence.PRESENT
    slurm.wait_for_nodes()
    slurm_commands.finish(handle, 64)
    assert slurm_commands.until(handle, Presence.FINISHED).exit_status == 64
    assert slurm_commands.starts(handle) == 1


def test_one_that_slurm_forgot_has_told_its_end_and_is_not_begun_again(
    slurm_commands: SlurmCase, slurm: SlurmCluster
) -> None:
    slurm.configure(min_job_age_seconds=2)
    try:
        submission = slurm_commands.submission()
        handle = slurm_commands.backend.submit(submission)
        slurm_commands.finish(handle, 67)
        wait_until(lambda: slurm_commands.starts(handle) == 1, "it has started", 30)
        name = f"--name={handle.backend_name}"
        wait_until(lambda: not slurm.run("squeue", "-h", "--states=all", name).strip(), "Slurm forgot it", 100)
    finally:
        slurm.configure(min_job_age_seconds=600)
    ended = slurm_commands.observe(handle)
    assert (ended.presence, ended.exit_status) == (Presence.FINISHED, 67)
    assert slurm_commands.backend.submit(submission) == handle
    assert slurm_commands.starts(handle) == 1
    (slurm.log_directory / f"{handle.backend_name}.end").unlink()
    known = Presence.FINISHED if slurm.keeps_accounts else Presence.ABSENT
    assert slurm_commands.observe(handle).presence is known
    assert slurm_commands.backend.submit(submission) == handle


def test_where_the_log_directory_is_away_nothing_is_taken_to_be_absent(
    slurm_commands: SlurmCase, slurm: SlurmCluster
) -> None:
    hidden = slurm.log_directory.with_name("hidden")
    slurm.log_directory.rename(hidden)
    try:
        assert slurm_commands.observe(Handle("athanor-0000")).presence is Presence.UNKNOWN
    finally:
        hidden.rename(slurm.log_directory)


def test_one_that_an_admin_lets_begin_anew_has_ended_and_runs_no_second_time(
    slurm_commands: SlurmCase, slurm: SlurmCluster
) -> None:
    handle = running(slurm_commands)
    assert "Requeue=0" in slurm.run("scontrol", "show", "job", handle.backend_id)
    slurm.run("scontrol", "update", f"JobId={handle.backend_id}", "Requeue=1")
    slurm.run("scontrol", "requeue", handle.backend_id)
    ended = slurm_commands.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.PREEMPTED
    assert ended.restarts == 1
    # Not within the second of its end, which a busy node learns of late: it would take the new start for the old one
    # and refuse its credential.
    slurm.run("scontrol", "update", f"JobId={handle.backend_id}", "EligibleTime=now+4")
    wait_until(
        lambda: f"ExitCode={RAN_BEFORE}:0" in slurm.run("scontrol", "show", "job", handle.backend_id),
        "its second start ended",
        60,
    )
    assert slurm_commands.starts(handle) == 1
    again = slurm_commands.until(handle, Presence.FINISHED)  # its exit code is known before its node has finished it
    assert again.cause is Cause.PREEMPTED


def test_of_two_jobs_of_one_name_one_runs(slurm_commands: SlurmCase) -> None:
    """As when sbatch is done there after its caller gave up, and is called again."""
    submission = slurm_commands.submission()
    assert isinstance(submission.payload, JobRequest)
    handle = slurm_commands.backend.submit(submission)
    command = ["sbatch", "--parsable"]
    environment = {**slurm_commands.cluster.environment, **submission.environment, **submission.secrets}
    second = subprocess.run(
        command, input=with_options(submission.payload), env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert second != handle.backend_id

    def refused() -> list[str]:
        reported = [slurm_commands.cluster.run("scontrol", "show", "job", each) for each in (handle.backend_id, second)]
        return [text for text in reported if f"ExitCode={RAN_BEFORE}:0" in text]

    wait_until(lambda: len(refused()) == 1, "the one that came second, whichever, has ended", 30)
    wait_until(lambda: slurm_commands.starts(handle) == 1, "the other has started", 30)
    assert slurm_commands.observe(handle).presence is Presence.PRESENT
    assert slurm_commands.observe(Handle(handle.backend_name)).presence is Presence.PRESENT
    slurm_commands.finish(handle)
    assert slurm_commands.until(handle, Presence.FINISHED).exit_status == 0


def test_what_is_new_takes_one_round_trip_and_what_is_not_is_looked_for(slurm_commands: SlurmCase) -> None:
    submission = slurm_commands.submission()
    assert isinstance(submission.payload, JobRequest)
    slurm_commands.backend.submit(slurm_commands.submission())  # the cluster's configuration is known from now on
    before = slurm_commands.calls()
    handle = slurm_commands.backend.submit(submission)
    assert slurm_commands.backend.submit(submission) == handle
    assert slurm_commands.calls() == before + 2
    # What ran is not new, though that file is gone, ...
    asked = Path(submission.payload.began).with_suffix(".asked")
    wait_until(lambda: slurm_commands.starts(handle) == 1, "it has started", 30)
    asked.unlink()
    assert slurm_commands.backend.submit(submission) == handle
    # ... and what was only about to be asked for is asked for.
    other = slurm_commands.submission()
    asked.with_name(f"{other.backend_name}.asked").touch()
    second = slurm_commands.backend.submit(other)
    assert int(second.backend_id) > int(handle.backend_id)
    assert slurm_commands.backend.submit(other) == second


def test_a_program_that_is_cut_off_on_its_way_does_nothing(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    submission = slurm_commands.submission()
    assert isinstance(submission.payload, JobRequest)
    program = submitting(submission.payload, submission.environment, "END-of-it", with_accounting=True)
    for length in (len(program) // 4, len(program) // 2, program.index("END-of-it\nstatus"), len(program) - 3):
        cut = subprocess.run(
            ["/bin/sh", "-s"],
            input=program[:length],
            env=slurm.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (cut.returncode != 0, cut.stdout) == (True, "")
    assert not slurm.run("squeue", "--noheader", "--states=all", f"--name={submission.backend_name}")
    assert not list(slurm.log_directory.glob(f"{submission.backend_name}.*"))


def test_no_variable_of_a_job_changes_what_is_run_to_submit_it(slurm_commands: SlurmCase, tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "cat"):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\ntouch {owned}\n")
        program.chmod(0o755)
    plan = slurm_commands.plan()
    names = {"sbatch": f"{tmp_path}/bin/sbatch", "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "status": "0", "found": "1"}
    plan.environment.update(names)
    submission = slurm_commands.backend.render(plan)
    handle = slurm_commands.backend.submit(submission)
    assert int(handle.backend_id) > 0
    assert slurm_commands.backend.submit(submission) == handle
    assert not owned.exists()
    slurm_commands.backend.cancel(handle, force=True)


@pytest.mark.slow
def test_a_spare_node_keeps_the_run_when_one_is_lost(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    slurm.configure(node_timeout_seconds=3)
    handle = slurm_commands.backend.submit(slurm_commands.submission(nodes=2, spare_nodes=1))
    wait_until(lambda: slurm_commands.starts(handle) == 3, "three agents have started", 30)
    *_, last = slurm_commands.observe(handle).nodes
    slurm.kill_node(last)
    wait_until(lambda: last not in slurm_commands.observe(handle).nodes, "Slurm found out", 60)
    slurm.configure(node_timeout_seconds=8)
    assert slurm_commands.observe(handle).presence is Presence.PRESENT
    slurm_commands.finish(handle)
    ended = slurm_commands.until(handle, Presence.FINISHED, 60)
    assert ended.exit_status == 0
    assert ended.cause is None


def agent_of(case: SlurmCase, handle: Handle, index: int) -> psutil.Process:
    """The process that runs instead of the agent on one of the nodes."""
    folder = str(case.cluster.work_directory / handle.backend_name / str(index))
    found = [
        process for process in psutil.process_iter(["cwd", "cmdline"])
        if process.info["cwd"] == folder and str(case.signals) in (process.info["cmdline"] or [])
        and process.info["cmdline"][0] == sys.executable
    ]  # fmt: skip
    (agent,) = found
    return agent


def test_a_killed_agent_starts_again_on_its_node(slurm_commands: SlurmCase) -> None:
    handle = slurm_commands.backend.submit(slurm_commands.submission(nodes=2, min_nodes=1))
    wait_until(lambda: slurm_commands.starts(handle) == 2, "two agents have started", 30)
    agent_of(slurm_commands, handle, 1).kill()
    wait_until(lambda: slurm_commands.starts(handle) == 3, "the killed one has started again", 30)
    assert slurm_commands.observe(handle).phase is Phase.RUNNING
    assert "signal 9 ended the agent of node" in slurm_commands.backend.logs(handle).text
    slurm_commands.finish(handle)
    ended = slurm_commands.until(handle, Presence.FINISHED, 60)
    assert (ended.exit_status, ended.cause) == (0, None)
    assert slurm_commands.starts(handle) == 3


def test_no_agent_starts_again_in_a_job_that_is_cancelled(slurm_commands: SlurmCase) -> None:
    handle = slurm_commands.backend.submit(slurm_commands.submission(nodes=2, min_nodes=1))
    wait_until(lambda: slurm_commands.starts(handle) == 2, "two agents have started", 30)
    slurm_commands.backend.cancel(handle, force=True)
    assert slurm_commands.until(handle, Presence.FINISHED, 60).presence is Presence.FINISHED
    assert slurm_commands.starts(handle) == 2
    assert "athanor: signal" not in slurm_commands.backend.logs(handle).text


def test_what_a_job_asks_for_is_what_slurm_gives(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    slurm_commands.use("import time; time.sleep(60)")
    handle = slurm_commands.backend.submit(
        slurm_commands.submission(
            nodes=1, processes_per_node=2, accelerator="a100", cpus_per_process=3, memory_bytes_per_node=2 * 1024**3,
            avoid_nodes=("n3",), max_switches=1, priority="high",
        )
    )  # fmt: skip
    slurm_commands.until(handle, Presence.PRESENT)
    wait_until(lambda: slurm_commands.observe(handle).phase is Phase.RUNNING, "it runs", 30)
    reported = slurm.run("scontrol", "--oneliner", "show", "job", handle.backend_id)
    for part in ("TresPerNode=gres:gpu:a100:2", "NumCPUs=6", "MinMemoryNode=2G", "ExcNodeList=n3", "Switches=1"):
        assert part in reported
    assert "planted-secret" not in reported
    assert slurm_commands.observe(handle).nodes == ("n4",)
    (n4,) = [node for node in slurm_commands.backend.nodes() if node.name == "n4"]
    assert (n4.accelerator, n4.slots, n4.slots_used) == ("a100", 2, 2)
    assert n4.topology == ("spine", "leaf2")
    assert n4.pools == ("main", "urgent")
    slurm_commands.backend.cancel(handle, force=True)
    slurm_commands.until(handle, Presence.FINISHED)


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("way", ["slurm_commands", "slurm_rest"])
def test_a_plan_for_one_node_runs_there(request: pytest.FixtureRequest, way: str, node: str) -> None:
    case: SlurmCase = request.getfixturevalue(way)
    handle = case.backend.submit(case.submission(only_node=node))
    wait_until(lambda: case.observe(handle).phase is Phase.RUNNING, "it runs", 30)
    assert case.observe(handle).nodes == (node,)
    case.finish(handle)
    case.until(handle, Presence.FINISHED)


def test_what_slurm_cannot_give_is_refused_for_good(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    for changes in ({"accelerator": "b900"}, {"accelerator": "h100", "processes_per_node": 3}):
        with pytest.raises(BackendRejected, match="Slurm refused it"):
            slurm_commands.backend.submit(slurm_commands.submission(**changes))
    assert not slurm.run("squeue", "-h").strip()


def test_the_agents_know_where_they_are(slurm_commands: SlurmCase) -> None:
    handle = running(slurm_commands, nodes=4)
    wait_until(lambda: slurm_commands.starts(handle) == 4, "all have started", 30)
    files = [slurm_commands.signals / f"environment-{handle.backend_name}-{index}" for index in range(4)]
    reported = [json.loads(file.read_text()) for file in files]
    assert [each["ATHANOR_NODE_NAME"] for each in reported] == ["n1", "n2", "n3", "n4"]
    assert [each["ATHANOR_NODE_TOPOLOGY"] for each in reported] == ["spine/leaf1"] * 2 + ["spine/leaf2"] * 2
    assert {each["ATHANOR_NODE_ADDRESS"] for each in reported} == {"127.0.0.1"}
    folders = [Path(each["ATHANOR_WORK_DIR"]) for each in reported]
    assert len(set(folders)) == 4
    slurm_commands.finish(handle)
    slurm_commands.until(handle, Presence.FINISHED)
    assert not any(folder.exists() for folder in folders)


def test_the_token_is_on_no_command_line(slurm_commands: SlurmCase) -> None:
    handle = running(slurm_commands)
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert any("athanor" in line for line in lines)
    assert not [line for line in lines if "planted-secret" in line and "pytest" not in line]
    slurm_commands.finish(handle)


def test_a_node_that_a_job_drained_keeps_the_job(slurm_commands: SlurmCase) -> None:
    handle = running(slurm_commands)
    (name,) = slurm_commands.observe(handle).nodes
    slurm_commands.backend.drain(name, "a fan | has Reason=failed")
    (node,) = [node for node in slurm_commands.backend.nodes() if node.name == name]
    assert node.state is NodeState.DRAINED
    assert node.reason == "a fan | has Reason=failed"
    assert slurm_commands.observe(handle).phase is Phase.RUNNING
    slurm_commands.backend.undrain(name)
    slurm_commands.finish(handle)


def test_a_health_check_names_what_is_wrong(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    slurm_commands.use("", partition="nowhere", gres={"b900": "gpu:b900"}, log_directory="/nowhere/at/all")
    found = {finding.check: finding for finding in slurm_commands.backend.check_health().findings}
    assert found["partition"].level is Level.ERROR
    assert "main" in found["partition"].remedy
    assert found["gres"].level is Level.ERROR
    assert found["log directory"].level is Level.ERROR
    assert found["accounting"].level is (Level.OK if slurm.keeps_accounts else Level.WARNING)
    slurm_commands.use("")
    probe = slurm_commands.backend.check_health()
    assert probe.version.startswith("22.05")
    assert probe.facts["accelerators"] == ["a100", "h100"]
    assert probe.facts["topology"] is True
