"""The cause of a failure is distinguished from its consequences."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from tests.control_groups import memory_group
from tests.trainer.error_messages import MESSAGES
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.errors import TrainerError
from trainer.resilience.failures import (
    Failure,
    classify_exception,
    classify_exit,
    count_oom_kills,
    find_root_cause,
    judge_exception,
    read_failures,
    write_failure,
)
from trainer.resilience.kernel_log import KernelLog

NODE_STORAGE = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.EREMOTEIO,
)  # fmt: skip
PEER = RuntimeError("[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc] Connection closed by peer")


@pytest.mark.parametrize(
    ("error", "end_class"),
    [
        (TrainerError(EndClass.DATA_ERROR, "line 3"), EndClass.DATA_ERROR),
        (MemoryError(), EndClass.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), EndClass.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), EndClass.OUT_OF_MEMORY),
        (PEER, EndClass.COLLECTIVE_TIMEOUT),
        (ValueError("something of ours"), EndClass.INTERNAL_ERROR),
        *((OSError(number, os.strerror(number), "part"), EndClass.NODE_STORAGE_ERROR) for number in NODE_STORAGE),
        (RuntimeError("basic_ios::clear: No space left on device"), EndClass.NODE_STORAGE_ERROR),
        (SafetensorError("Error while serializing: I/O error: No space left on device"), EndClass.NODE_STORAGE_ERROR),
        (FileNotFoundError(errno.ENOENT, "no such file", "part"), EndClass.INTERNAL_ERROR),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), EndClass.OUT_OF_MEMORY),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), EndClass.NETWORK_ERROR),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), EndClass.NETWORK_ERROR),
        (OSError(errno.EHOSTUNREACH, "No route to host"), EndClass.NETWORK_ERROR),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), EndClass.DATA_ERROR),
        (ValueError("the value nccl is not a backend: Connection refused"), EndClass.INTERNAL_ERROR),
        (KeyError("CUDA error: uncorrectable ECC error encountered"), EndClass.INTERNAL_ERROR),
    ],
)
def test_an_exception_has_a_class(error: Exception, end_class: EndClass) -> None:
    assert classify_exception(error, 0).end_class is end_class


@pytest.mark.parametrize(("end_class", "message"), MESSAGES)
def test_a_message_has_a_class(end_class: EndClass, message: str) -> None:
    failure = classify_exception(RuntimeError(message), 0)
    assert failure.end_class is end_class
    assert failure.message.startswith(f"RuntimeError: {message.partition(chr(10))[0]}")


def test_a_cleanup_that_fails_too_does_not_hide_the_fault() -> None:
    try:
        try:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        finally:
            raise PEER
    except RuntimeError as error:
        assert classify_exception(error, 0).end_class is EndClass.GPU_FAULT


def _wrapped(cause: Exception) -> Exception:
    """Return `cause` as torch's pipelines raise it."""
    wrapper = RuntimeError("\n    [Stage 2] failed to run forward:\n    args: ()\n")
    wrapper.__cause__ = cause
    return wrapper


@pytest.mark.parametrize(
    ("cause", "end_class", "because_of_peer"),
    [
        (RuntimeError(*PEER.args), EndClass.COLLECTIVE_TIMEOUT, True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), EndClass.OUT_OF_MEMORY, False),
        (KeyError("expert"), EndClass.INTERNAL_ERROR, False),
    ],
)
def test_an_error_that_only_wraps_another_has_its_class_and_names_both(
    cause: Exception, end_class: EndClass, because_of_peer: bool
) -> None:
    failure = classify_exception(_wrapped(cause), 0)
    assert (failure.end_class, failure.because_of_peer) == (end_class, because_of_peer)
    assert failure.message.startswith(f"{type(cause).__name__}: ")
    assert "which led to RuntimeError: [Stage 2] failed to run forward: args: ()" in failure.message


def test_an_endless_chain_of_wrappers_still_has_a_class() -> None:
    error: Exception = ValueError("first")
    for _ in range(20):
        error = _wrapped(error)
    assert classify_exception(error, 0).end_class is EndClass.INTERNAL_ERROR


def test_an_error_that_explains_the_first_one_counts() -> None:
    error = TrainerError(EndClass.BAD_SPEC, "the model is too large")
    error.__cause__ = RuntimeError("CUDA error: out of memory")
    assert classify_exception(error, 0).end_class is EndClass.BAD_SPEC


def test_a_rank_that_lost_its_peer_does_not_hide_the_first_cause() -> None:
    peer = Failure(0, EndClass.COLLECTIVE_TIMEOUT, "peer", because_of_peer=True, at=1.0)
    cause = Failure(1, EndClass.OUT_OF_MEMORY, "cause", at=2.0)
    assert find_root_cause([peer, cause]) is cause


def test_a_killed_process_is_the_cause_of_the_reports_of_the_others() -> None:
    later = Failure(0, EndClass.INTERNAL_ERROR, "confused by the loss", at=5.0)
    assert find_root_cause([later, classify_exit(1, -signal.SIGKILL, had_oom_kill=False)]).rank == 1


def test_an_abort_while_another_rank_reports_its_cause_is_a_consequence() -> None:
    cause = Failure(0, EndClass.OUT_OF_MEMORY, "cause", at=5.0)
    assert find_root_cause([cause, classify_exit(1, -signal.SIGABRT, had_oom_kill=False)]) is cause


@pytest.mark.parametrize("cause", [EndClass.GPU_FAULT, EndClass.OUT_OF_MEMORY, EndClass.NODE_STORAGE_ERROR])
@pytest.mark.parametrize("at", [1.0, 9.0])
@pytest.mark.parametrize(
    "other", [EndClass.COLLECTIVE_TIMEOUT, EndClass.NETWORK_ERROR, EndClass.PROCESS_KILLED, EndClass.INTERNAL_ERROR]
)
def test_a_cause_counts_whichever_rank_reports_first(cause: EndClass, at: float, other: EndClass) -> None:
    found = Failure(3, cause, "cause", at=at)
    assert find_root_cause([Failure(0, other, "other", at=5.0), found, Failure(1, other, "other", at=6.0)]) is found


def test_only_peer_failures_left_still_name_one() -> None:
    peers = [Failure(rank, EndClass.COLLECTIVE_TIMEOUT, "peer", True, 3.0 - rank) for rank in range(2)]
    assert find_root_cause(peers).rank == 1


@pytest.mark.parametrize(
    ("code", "short", "end_class", "words"),
    [
        (-signal.SIGKILL, False, EndClass.PROCESS_KILLED, "SIGKILL"),
        (-signal.SIGKILL, True, EndClass.OUT_OF_MEMORY, "lack of memory"),
        (-signal.SIGSEGV, True, EndClass.INTERNAL_ERROR, "crashed with SIGSEGV"),
        (-signal.SIGABRT, True, EndClass.PROCESS_KILLED, "SIGABRT"),
        (-signal.SIGTERM, True, EndClass.PROCESS_KILLED, "SIGTERM"),
        (3, False, EndClass.INTERNAL_ERROR, "status 3"),
        (1, False, EndClass.INTERNAL_ERROR, "status 1"),
        (EXIT_STATUS[EndClass.NODE_STORAGE_ERROR], False, EndClass.NODE_STORAGE_ERROR, "could not write its report"),
    ],
)
def test_a_silent_death_is_classified_by_its_status(code: int, short: bool, end_class: EndClass, words: str) -> None:
    failure = classify_exit(2, code, had_oom_kill=short)
    assert failure.end_class is end_class
    assert words in failure.message


ABORTED = """
[rank1]:[E1126 10:17:22 ProcessGroupNCCL.cpp:2100] something else: Connection refused
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with: CUDA error: {}
CUDA kernel errors might be asynchronously reported at some other API call.
"""


@pytest.mark.parametrize(
    ("said", "end_class"),
    [
        ("uncorrectable ECC error encountered", EndClass.GPU_FAULT),
        ("device-side assert triggered", EndClass.DEVICE_EXCEPTION),
        ("invalid argument", EndClass.PROCESS_KILLED),
    ],
)
def test_a_process_that_aborts_names_the_error_on_stderr(said: str, end_class: EndClass) -> None:
    lines = ABORTED.format(said).splitlines()
    failure = classify_exit(1, -signal.SIGABRT, had_oom_kill=False, last_lines=lines)
    assert failure.end_class is end_class
    assert classify_exit(1, -signal.SIGKILL, had_oom_kill=False, last_lines=lines).end_class is EndClass.PROCESS_KILLED


XID = "3,901,100,-;NVRM: Xid (PCI:0000:3b:00): {}, pid=77, name=python, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"


@pytest.mark.parametrize(
    ("number", "end_class"),
    [(79, EndClass.GPU_FAULT), (48, EndClass.GPU_FAULT), (95, EndClass.GPU_FAULT), (31, EndClass.DEVICE_EXCEPTION)]
    + [(45, EndClass.PROCESS_KILLED)],
)
def test_the_kernel_log_explains_a_silent_death(tmp_path: Path, number: int, end_class: EndClass) -> None:
    path = tmp_path / "kmsg"
    path.write_text(XID.format(79))  # before the workers started
    log = KernelLog(path)
    assert log.gpu_error() is None
    with path.open("a") as file:
        file.write("6,902,200,-;unrelated\n" + XID.format(number))
    failure = classify_exit(2, -signal.SIGKILL, had_oom_kill=False, gpu_error=log.gpu_error())
    assert failure.end_class is end_class
    assert (f"NVRM: Xid (PCI:0000:3b:00): {number}" in failure.message) == (end_class is not EndClass.PROCESS_KILLED)
    log.close()


def test_a_fault_in_the_kernel_log_comes_before_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    log = KernelLog(path)
    path.write_text(XID.format(13) + XID.format(94))
    found = log.gpu_error()
    assert found is not None
    assert found[0] is EndClass.GPU_FAULT
    exception = classify_exception(RuntimeError("CUDA error: unspecified launch failure"), 0)
    judged = judge_exception(exception, found)
    assert (judged.end_class, judged.rank) == (EndClass.GPU_FAULT, 0)
    assert "Xid" in judged.message
    assert judge_exception(exception, None) is exception
    assert judge_exception(Failure(0, EndClass.DATA_ERROR, "data"), found).end_class is EndClass.DATA_ERROR
    log.close()


def test_without_a_kernel_log_nothing_is_known_of_gpus(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert log.gpu_error() is None
    log.close()


def test_failures_survive_their_process(tmp_path: Path) -> None:
    failure = classify_exception(TrainerError(EndClass.DATA_ERROR, "line 3"), 4)
    write_failure(tmp_path / "failures", failure)
    assert read_failures(tmp_path / "failures") == [failure]
    assert read_failures(tmp_path / "none") == []


def test_every_class_has_its_own_exit_status() -> None:
    assert set(EXIT_STATUS) == set(EndClass)
    assert len(set(EXIT_STATUS.values())) == len(EndClass)


CGROUPS = {
    "version 2": {
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        "sys/fs/cgroup/job/memory.events": "low 0\noom 2\noom_kill 3\noom_group_kill 0\n",
    },
    "version 1": {
        "proc/self/cgroup": "4:memory:/user/job\n3:cpu,cpuacct:/\n",
        "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/user/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    },
    "hybrid": {
        "proc/self/cgroup": "4:memory:/job\n1:name=systemd:/\n0::/job\n",
        "proc/self/mountinfo": (
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        ),
        "sys/fs/cgroup/unified/job/cgroup.events": "populated 1\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 3\n",
    },
    "version 1 in a container": {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 3\n",
    },
    "no counter of its own": {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/vmstat": "nr_free_pages 5\noom_kill 3\n",
    },
    "no control groups": {"proc/vmstat": "oom_kill 3\n"},
}


@pytest.mark.parametrize("files", CGROUPS.values(), ids=CGROUPS)
def test_oom_kills_are_counted_with_either_version_of_control_groups(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path) == 3


def test_without_any_counter_no_oom_kills_are_known(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) == 0


HUNGRY = """
import os, subprocess, sys
from trainer.resilience.failures import classify_exit, count_oom_kills
open(sys.argv[1], "w").write(str(os.getpid()))
before = count_oom_kills()
end = subprocess.run([sys.executable, "-c", "x = bytearray(400 << 20)"]).returncode
print(classify_exit(0, end, had_oom_kill=count_oom_kills() > before).end_class)
"""


def test_a_process_that_the_kernel_kills_for_its_memory_ran_out_of_memory() -> None:
    """With a real control group of either version, where this user may make one."""
    with memory_group(150 << 20) as procs:
        command = [sys.executable, "-c", HUNGRY, str(procs)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.strip() == EndClass.OUT_OF_MEMORY, run.stderr


def test_a_rank_that_died_with_its_fork_server_was_killed() -> None:
    assert classify_exit(0, 255, had_oom_kill=False).end_class is EndClass.PROCESS_KILLED


def test_an_exception_without_a_text_names_its_place() -> None:
    try:
        bytearray(2**62)
    except MemoryError as error:
        failure = classify_exception(error, 0)
    assert re.fullmatch(r"MemoryError \(at test_failures\.py:\d+\)", failure.message)
