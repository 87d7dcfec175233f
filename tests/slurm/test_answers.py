"""Answers of Slurm's commands and of slurmrestd from several of its versions, written down by its documentation."""

import json
from collections.abc import Iterator

import pytest

from athanor.backends.base import Cause, Phase, Presence
from athanor.backends.facts import NodeState
from athanor.backends.slurm import listing, parse, rest
from athanor.backends.slurm.parse import SlurmJob

NAME = "athanor-01j8zzzzzzzzzzzzzzzzzzzzzz"
NOW = 1_795_000_000


def squeue(state: str, *, exit_code: str = "0", reason: str = "None", **more: str) -> SlurmJob:
    values = {
        "restarts": "0",
        "used": "0:00",
        "left": "1:00:00",
        "start": "N/A",
        "preempted": "N/A",
        "nodes": "",
        "comment": f"athanor:{NAME}",
    }
    values |= more
    line = "|".join([
        "17", NAME, state, values["restarts"], exit_code, values["used"], values["left"], values["start"],
        values["preempted"], values["nodes"], reason, values["comment"], "\n",
    ])  # fmt: skip
    (job,) = listing.jobs([f"{NOW}\n".encode(), line.encode()])
    return job


@pytest.mark.parametrize(
    ("state", "presence", "phase", "cause"),
    [
        ("PENDING", Presence.PRESENT, Phase.PENDING, None),
        ("CONFIGURING", Presence.PRESENT, Phase.STARTING, None),
        ("RUNNING", Presence.PRESENT, Phase.RUNNING, None),
        ("SUSPENDED", Presence.PRESENT, Phase.RUNNING, None),
        ("SIGNALING", Presence.PRESENT, Phase.RUNNING, None),
        ("RESIZING", Presence.PRESENT, Phase.RUNNING, None),
        ("STOPPED", Presence.PRESENT, Phase.RUNNING, None),
        ("COMPLETING", Presence.PRESENT, Phase.ENDING, None),
        ("STAGE_OUT", Presence.PRESENT, Phase.ENDING, None),
        ("REQUEUE_HOLD", Presence.PRESENT, Phase.PENDING, None),
        ("SPECIAL_EXIT", Presence.PRESENT, Phase.PENDING, None),
        ("RESV_DEL_HOLD", Presence.PRESENT, Phase.PENDING, None),
        ("COMPLETED", Presence.FINISHED, None, None),
        ("FAILED", Presence.FINISHED, None, None),
        ("CANCELLED", Presence.FINISHED, None, Cause.CANCELLED),
        ("TIMEOUT", Presence.FINISHED, None, Cause.TIME_LIMIT),
        ("DEADLINE", Presence.FINISHED, None, Cause.TIME_LIMIT),
        ("PREEMPTED", Presence.FINISHED, None, Cause.PREEMPTED),
        ("NODE_FAIL", Presence.FINISHED, None, Cause.NODE_LOST),
        ("BOOT_FAIL", Presence.FINISHED, None, Cause.LAUNCH_FAILED),
        ("OUT_OF_MEMORY", Presence.FINISHED, None, Cause.OUT_OF_MEMORY),
        ("REVOKED", Presence.UNKNOWN, None, None),
        ("SOMETHING_OF_2031", Presence.UNKNOWN, None, None),
    ],
)
def test_every_state_has_one_meaning_and_none_is_guessed(
    state: str, presence: Presence, phase: Phase | None, cause: Cause | None
) -> None:
    seen = parse.to_observation(squeue(state))
    assert (seen.presence, seen.phase, seen.cause) == (presence, phase, cause)
    assert seen.native_state == state


def test_a_state_is_a_base_and_flags_in_every_spelling() -> None:
    assert parse.parse_state("CANCELLED by 1000") == {"CANCELLED"}  # sacct
    assert parse.parse_state("COMPLETED+") == {"COMPLETED"}  # sacct, cut off
    assert parse.parse_state(["RUNNING", "COMPLETING"]) == {"RUNNING", "COMPLETING"}  # slurmrestd since 0.0.40
    for state, phase in ((["CANCELLED", "COMPLETING"], Phase.ENDING), (["RUNNING", "CONFIGURING"], Phase.STARTING)):
        assert parse.to_observation(SlurmJob(1, NAME, parse.parse_state(state))).phase is phase
    ended = SlurmJob(1, NAME, parse.parse_state(["COMPLETED", "UPDATE_DB"]))
    assert parse.to_observation(ended).presence is Presence.FINISHED


def test_a_replacement_is_known_by_its_comment_and_any_other_comment_is_the_attempts() -> None:
    assert squeue("RUNNING", comment=f"athanor:{NAME}:3.1").replaces == (3, 1)
    for comment in ("", f"athanor:{NAME}", "an admin | wrote | this:1.2", f"athanor:{NAME}:3"):
        job = squeue("RUNNING", comment=comment)
        assert (job.comment, job.replaces) == (comment, None)
    record = {"job_id": 17, "name": NAME, "job_state": "RUNNING", "comment": f"athanor:{NAME}:3.1"}
    assert rest.job_of(record, None).replaces == (3, 1)
    assert rest.job_of({**record, "comment": None}, None).replaces is None


def test_the_nodes_of_replacements_count_while_they_run() -> None:
    own = parse.to_observation(squeue("RUNNING", nodes="n1"))
    states = ["PENDING", "RUNNING", "NODE_FAIL", "COMPLETED", "RUNNING"]
    others = [squeue(state, nodes=f"n{number}") for number, state in enumerate(states, 2)]
    assert parse.with_replacements(own, others).nodes == ("n1", "n3", "n6")
    ended = parse.to_observation(squeue("COMPLETED", nodes="n1"))
    assert parse.with_replacements(ended, others[1:4]).nodes == ("n1", "n3", "n5")


def test_replacements_are_reported_until_they_have_ended() -> None:
    own = parse.to_observation(squeue("RUNNING"))
    states = ["PENDING", "RUNNING", "NODE_FAIL", "COMPLETED", "COMPLETING", "CANCELLED by 0", "NEW_STATE"]
    others = [squeue(state, comment=f"athanor:{NAME}:1.{number}") for number, state in enumerate(states)]
    assert parse.with_replacements(own, others).replacements == {(1, 0), (1, 1), (1, 4), (1, 6)}
    assert parse.with_replacements(own, []).replacements == frozenset()


def test_exit_statuses_of_all_spellings() -> None:
    assert parse.to_observation(squeue("FAILED", exit_code="21248")).exit_status == 83  # as wait() reports it
    assert parse.to_observation(squeue("FAILED", exit_code="83:0")).exit_status == 83
    assert parse.to_observation(squeue("FAILED", exit_code="0:9")).exit_status == -9
    assert parse.to_observation(squeue("FAILED", exit_code="36608")).exit_status == -15  # a shell's 128 + 15
    assert parse.to_observation(squeue("COMPLETED")).exit_status == 0
    assert parse.to_observation(squeue("CANCELLED")).exit_status is None


def test_one_that_saved_its_state_within_its_grace_was_preempted_all_the_same() -> None:
    seen = parse.to_observation(squeue("FAILED", exit_code="16384", preempted=str(NOW - 5)))
    assert (seen.cause, seen.exit_status) == (Cause.PREEMPTED, 64)


def test_one_that_was_begun_anew_has_ended_but_not_while_its_processes_do() -> None:
    assert parse.to_observation(squeue("COMPLETING", restarts="1")).presence is Presence.PRESENT
    for state in ("PENDING", "RUNNING", "FAILED"):
        seen = parse.to_observation(squeue(state, restarts="1", exit_code="24832"))
        assert (seen.presence, seen.cause, seen.restarts) == (Presence.FINISHED, Cause.PREEMPTED, 1)


def test_times_are_spans_by_the_clusters_clock() -> None:
    waiting = parse.to_observation(squeue("PENDING", reason="Priority", start=str(NOW + 90)))
    assert waiting.starts_in_seconds == 90
    assert "higher priority" in waiting.explanation
    going = parse.to_observation(squeue("RUNNING", used="1-02:03:04", left="59:30", nodes="n[01-03],m7"))
    assert going.running_seconds == 93784
    assert going.seconds_left == 3570
    assert going.nodes == ("n01", "n02", "n03", "m7")
    assert parse.to_observation(squeue("RUNNING", left="UNLIMITED")).seconds_left is None


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("Resources", "nodes are free"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "drained"),
        ("QOSMaxGRESPerUser", "as much as it may"),
        ("AssocGrpCPUMinutesLimit", "as much as it may"),
        ("JobHeldAdmin", "admin"),
        ("PartitionTimeLimit", "more time"),
        ("NewReasonOf2031", ""),
    ],
)
def test_reasons_are_explained_and_none_is_made_up(reason: str, word: str) -> None:
    seen = parse.to_observation(squeue("PENDING", reason=reason))
    assert seen.native_reason == reason
    assert word in seen.explanation
    assert bool(seen.explanation) is bool(word)


def test_lines_that_are_not_ours_or_not_whole_are_left_out() -> None:
    lines = [
        f"{NOW}\n", "slurm: warning of a plugin\n", "5|interactive|RUNNING|0|0|0:01|1:00|N/A|N/A|n1|None|\n",
        f"6|{NAME}|RUNNING|0|0\n", f"7|x|{NAME}|RUNNING|0|0|0:01|1:00|N/A|N/A|n1|None|\n",
    ]  # fmt: skip
    assert list(listing.jobs(line.encode() for line in lines)) == []


def test_sacct_tells_each_start_of_a_job() -> None:
    lines = [f"9|{NAME}|PREEMPTED|0:0|12|n1", f"9|{NAME}|FAILED|97:0|1|n2", "9.batch|batch|FAILED|1:0|1|n2"]
    first, second = listing.accounted(lines)
    assert (first.restarts, second.restarts) == (0, 1)


NODES = {
    "20.11": "NodeName=n1 Arch=x86_64 CPUAlloc=4 CPUTot=64 CPULoad=0.1 ActiveFeatures=ib Gres=gpu:a100:8(S:0-1) "
    "GresUsed=gpu:a100:3(IDX:0-2) OS=Linux 5.4 RealMemory=1000 State=MIXED+DRAIN Partitions=a,b "
    "Reason=fan failed State=IDLE [root@2024-01-01T00:00:00]",
    "23.11": "NodeName=n1 CPUAlloc=4 CPUTot=64 ActiveFeatures=ib Gres=gpu:a100:8(S:0-1) GresUsed=gpu:a100:3(IDX:0-2) "
    "RealMemory=1000 State=MIXED+DRAIN ThreadsPerCore=1 Partitions=a,b Reason=fan failed State=IDLE [u@2024-01-01]",
}


@pytest.mark.parametrize("version", NODES)
def test_a_node_of_each_version(version: str) -> None:
    (node,) = listing.nodes([NODES[version]], {"n1": ("spine", "leaf")})
    assert (node.accelerator, node.slots, node.slots_used) == ("a100", 8, 3)
    assert node.state is NodeState.DRAINED
    assert node.reason == "fan failed State=IDLE"
    assert (node.cpus, node.memory_bytes, node.pools) == (64, 1000 * 1024**2, ("a", "b"))
    assert node.topology == ("spine", "leaf")


@pytest.mark.parametrize(
    ("state", "used", "free"),
    [("IDLE", "N/A", 8), ("MIXED", "N/A", 0), ("MIXED", "", 0), ("MIXED", "gpu:a100:2(IDX:0-1)", 6)],
)
def test_gpus_whose_use_is_not_told_are_not_taken_to_be_free(state: str, used: str, free: int) -> None:
    line = f"NodeName=n1 CPUTot=64 Gres=gpu:a100:8 {f'GresUsed={used} ' if used else ''}State={state}"
    (node,) = listing.nodes([line], {})
    assert node.slots - node.slots_used == free


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("IDLE", NodeState.READY), ("ALLOCATED", NodeState.READY), ("MIXED+PLANNED", NodeState.READY),
        ("IDLE*", NodeState.DOWN), ("DOWN", NodeState.DOWN), ("DOWN*+DRAIN", NodeState.DOWN),
        ("IDLE+DRAIN", NodeState.DRAINED), ("IDLE+POWERED_DOWN", NodeState.DOWN), ("RESERVED", NodeState.READY),
        ("ALLOCATED+DRAIN", NodeState.DRAINED), ("IDLE+MAINTENANCE", NodeState.DRAINED), ("NEW", NodeState.UNKNOWN),
    ],
)  # fmt: skip
def test_states_of_nodes(state: str, expected: NodeState) -> None:
    (node,) = listing.nodes([f"NodeName=n1 CPUTot=1 State={state}"], {})
    assert node.state is expected


def test_records_of_old_and_new_slurmrestd_say_the_same() -> None:
    old = {
        "job_id": 5, "name": NAME, "job_state": "FAILED", "exit_code": 21248, "start_time": NOW - 60, "end_time": NOW,
        "restart_cnt": 0, "preempt_time": 0, "nodes": "n[1-2]", "state_reason": "NonZeroExitCode",
    }  # fmt: skip

    def given(number: int) -> dict[str, object]:
        return {"set": True, "infinite": False, "number": number}

    new = {
        **old, "job_state": ["FAILED"], "start_time": given(NOW - 60), "end_time": given(NOW), "restart_cnt": given(0),
        "preempt_time": given(0), "exit_code": {"status": ["ERROR"], "return_code": given(83), "signal": {
            "id": {"set": False, "infinite": False, "number": 0}, "name": ""}},
    }  # fmt: skip
    assert rest.job_of(old, NOW) == rest.job_of(new, NOW)
    assert parse.to_observation(rest.job_of(new, NOW)).exit_status == 83


def test_a_long_answer_is_read_object_by_object() -> None:
    text = json.dumps(
        {"meta": {"a": [1]}, "jobs": [{"job_id": n, "name": "]},{" * 3} for n in range(50)], "errors": []}
    )

    def parts() -> Iterator[str]:
        for begin in range(0, len(text), 7):
            yield text[begin : begin + 7]

    assert [record["job_id"] for record in rest.streamed(parts(), "jobs")] == list(range(50))
    with pytest.raises(ValueError, match="ended within"):
        list(rest.streamed([text[: len(text) // 2]], "jobs"))
