"""The health check of this machine: can it run the agent?"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from athanor.backends.facts import Finding, HealthCheck, Level, NodeFacts, NodeState
from athanor.backends.local.config import LocalConfig

GIB = 2**30
DISK_WARNING = 10 * GIB
DISK_ERROR = GIB
MEMORY_WARNING = 2 * GIB
ASK_SECONDS = 10
# Says of each module that is named whether it can be found; imports none of them.
FIND = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is not None]))
"""


def check_health(config: LocalConfig, environment: Mapping[str, str]) -> HealthCheck:
    """Return the findings. `environment` is what the agent will inherit of this process's variables."""
    found = (*_folder(config), *_agent(config, environment), _memory(), _cores())
    facts = {"cpus": len(os.sched_getaffinity(0)), "memory_bytes": _memory_bytes()[0], "kernel": platform.release()}
    return HealthCheck(f"{platform.system()} {platform.release()}", found, facts)


def node(name: str, slots_used: int) -> NodeFacts:
    """Return this machine as a node with one slot for each core."""
    cores = len(os.sched_getaffinity(0))
    return NodeFacts(
        name=name,
        state=NodeState.READY,
        slots=cores,
        slots_used=slots_used,
        cpus=cores,
        memory_bytes=_memory_bytes()[0],
        labels={"architecture": platform.machine(), "system": platform.system()},
    )


def _folder(config: LocalConfig) -> Iterator[Finding]:
    place = Path(config.directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free
    except OSError as error:
        remedy = "let the platform's user make it, or set ATHANOR_LOCAL_BACKEND_DIR to one that it may write"
        yield Finding("directory", Level.ERROR, f"{place} cannot be used: {error.strerror or error}", remedy)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding("directory", Level.ERROR, f"{place} is not writable", "give it to the platform's user")
        return
    yield Finding("directory", Level.OK, f"{place} is writable")
    detail = f"{free / GIB:.1f} GiB are free at {place}"
    level = Level.ERROR if free < DISK_ERROR else Level.WARNING if free < DISK_WARNING else Level.OK
    remedy = "" if level is Level.OK else "remove old attempts' folders there, or choose a larger disk"
    yield Finding("disk", level, detail, remedy)


def _agent(config: LocalConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    program = shutil.which(config.command[0], path=environment.get("PATH"))
    if program is None:
        detail = f"{config.command[0]} is not found"
        yield Finding("agent", Level.ERROR, detail, "install it, or correct `command` in NAME.cluster.json")
        return
    if config.command[1:2] != ("-m",) or len(config.command) < 3:
        yield Finding("agent", Level.OK, f"{program} is there")
        return
    module = config.command[2].partition(".")[0]
    try:
        said = subprocess.run(
            [program, "-c", FIND, module, "torch"], env=dict(environment), cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, check=True, timeout=ASK_SECONDS,
        )  # fmt: skip
        found = json.loads(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield Finding(
            "agent", Level.ERROR, f"{program} does not run: {error}", "correct `command` in NAME.cluster.json"
        )
        return
    for check, name in (("agent", module), ("torch", "torch")):
        if name in found:
            yield Finding(check, Level.OK, f"{program} finds {name}")
        else:
            yield Finding(check, Level.ERROR, f"{program} does not find {name}", f"install {name} where it does")


def _memory() -> Finding:
    total, available = _memory_bytes()
    detail = f"{available / GIB:.1f} of {total / GIB:.1f} GiB of memory are available"
    if available < MEMORY_WARNING:
        return Finding("memory", Level.WARNING, detail, "end what else runs here, or submit smaller jobs")
    return Finding("memory", Level.OK, detail)


def _cores() -> Finding:
    usable, there_are = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return Finding("cores", Level.OK, f"{usable} of {there_are} cores may be used")


def _memory_bytes() -> tuple[int, int]:
    """Return the total and the available memory."""
    lines = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {name: int(rest.split()[0]) * 1024 for name, rest in lines}
    return sizes["MemTotal"], sizes["MemAvailable"]
