"""From a launch plan to sbatch's options and script. Pure; every value is a validated word, or quoted."""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from athanor.backends.base import BackendRejected
from athanor.backends.plan import LaunchPlan
from athanor.backends.slurm.config import SlurmConfig
from trainer.contract import environment as names

NAME = re.compile(r"athanor-[a-z0-9]{1,60}")
REPLACEMENT = re.compile(rf"athanor:{NAME.pattern}:(\d+)\.(\d+)")  # the comment of a job that replaces a lost node
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")
GRES = re.compile(r"[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+)?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MEBIBYTE = 1024**2

# Exit statuses of the batch script that no agent has.
RAN_BEFORE = 97
NODE_UNUSABLE = 98

# Of one node in one attempt. What kills an agent more often than this, such as a lack of memory, is likely to do so
# again, and each time the ranks of all nodes restart.
AGENT_RESTARTS = 3
RANKS_END_SECONDS = 60  # more than the kernel needs to free the memory of GPUs; later, a rank does not end at all


@dataclass(frozen=True)
class JobRequest:
    """A batch job. None leaves the choice to the cluster. `memory_mebibytes` and `gres` are per node.

    Jobs that replace lost nodes of an attempt have the name of its job, and a `comment` of their own.
    """

    name: str
    comment: str
    nodes: int
    cpus_per_node: int
    minutes: int
    signal_seconds: int
    output: str
    script: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = None
    memory_mebibytes: int | None = None
    constraint: str | None = None
    exclusive: bool = False
    exclude: tuple[str, ...] = ()
    only_node: str | None = None
    switches: int | None = None
    survives_node_loss: bool = False

    @property
    def is_replacement(self) -> bool:
        """Return whether the job replaces a lost node."""
        return REPLACEMENT.fullmatch(self.comment) is not None

    @property
    def began(self) -> str:
        """Return the path of the file that records that the job ran, and its number."""
        return self.output.removesuffix(".log") + ".begun"

    @property
    def claim(self) -> str:
        """Return a shell command that succeeds only for its first caller: the job was not requested before."""
        file = shlex.quote(self.output.removesuffix(".log") + ".asked")
        return f"(set -o noclobber; : >{file}) 2>/dev/null"


def request(config: SlurmConfig, plan: LaunchPlan) -> JobRequest:
    """Return the batch job of a plan. Raise BackendRejected for values that no cluster accepts."""
    return _request(config, plan, plan.nodes + plan.spare_nodes, "", _script)


def replacement(config: SlurmConfig, plan: LaunchPlan, node_index: int, number: int) -> JobRequest:
    """Return the batch job of one node that replaces a lost one. Raise BackendRejected as `request`."""
    script = partial(_replacement_script, node_index=node_index)
    asked = _request(config, plan, 1, f".replaced.{node_index}.{number}", script)
    return replace(asked, comment=f"{asked.comment}:{node_index}.{number}", survives_node_loss=False)


def _request(
    config: SlurmConfig,
    plan: LaunchPlan,
    nodes: int,
    suffix: str,
    script: Callable[[SlurmConfig, LaunchPlan, str], str],
) -> JobRequest:
    """Return a batch job, with the files NAME and `suffix`."""
    _require(NAME, "backend name", plan.backend_name)
    for node in plan.avoid_nodes:
        _require(NODE, "node to avoid", node)
    if plan.only_node:
        _require(NODE, "node", plan.only_node)
    team = config.teams.get(plan.team)
    pool = config.pools.get(plan.pool)
    output = f"{config.log_directory.rstrip('/')}/{plan.backend_name}{suffix}"
    return JobRequest(
        name=plan.backend_name,
        comment=f"athanor:{plan.backend_name}",
        nodes=nodes,
        # One agent a node starts all of its processes: what it does not ask for they have to share.
        cpus_per_node=plan.processes_per_node * (plan.cpus_per_process or 1),
        minutes=math.ceil((plan.time_limit_seconds + config.grace_seconds) / 60),
        signal_seconds=config.signal_seconds,
        output=f"{output}.log",
        script=script(config, plan, output),
        partition=(pool and pool.partition) or (team and team.partition) or config.partition,
        account=(pool and pool.account) or account_of(config, plan.team),
        qos=config.qos_by_priority.get(plan.priority) or (pool and pool.qos) or (team and team.qos) or config.qos,
        gres=_gres(config, plan),
        memory_mebibytes=math.ceil(plan.memory_bytes_per_node / MEBIBYTE) if plan.memory_bytes_per_node else None,
        constraint=pool.constraint if pool else None,
        exclusive=plan.exclusive,
        exclude=tuple(sorted(plan.avoid_nodes)),
        only_node=plan.only_node or None,
        switches=plan.max_switches,
        survives_node_loss=plan.expendable_nodes > 0,
    )


def account_of(config: SlurmConfig, team: str) -> str | None:
    """Return the account that a team's jobs are charged to; None for the user's default."""
    rule = config.teams.get(team)
    if rule is not None and rule.account is not None:
        return rule.account
    if config.account_prefix is None or not team:
        return config.account
    return _require(WORD, f"account of team {team!r}", (config.account_prefix + team).lower())


def options(asked: JobRequest) -> list[str]:
    """Return the options of sbatch. Their values are words, numbers and plain paths, which need no quotes."""
    lines = [
        f"--job-name={asked.name}",
        f"--comment={asked.comment}",
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={asked.cpus_per_node}",
    ]
    values = {
        "gres": asked.gres,
        "mem": None if asked.memory_mebibytes is None else f"{asked.memory_mebibytes}M",
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "constraint": asked.constraint,
        "exclude": ",".join(asked.exclude) or None,
        "nodelist": asked.only_node,
        "switches": asked.switches,
    }
    lines += [f"--{name}={value}" for name, value in values.items() if value is not None]
    if asked.exclusive:
        lines.append("--exclusive")
    if asked.survives_node_loss:
        lines.append("--no-kill")  # the run continues with a spare node, or on fewer
    return [
        *lines,
        f"--time={asked.minutes}",
        f"--signal=TERM@{asked.signal_seconds}",
        "--no-requeue",
        "--open-mode=append",
        f"--output={asked.output}",
        "--chdir=/",
        "--export=ALL",
    ]


def shown(asked: JobRequest, environment: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """Return the script for users, with the environment of sbatch as comments. Secrets are only named."""
    beside = [f"#   {name}={json.dumps(value)}" for name, value in sorted(environment.items())]
    beside += [f"#   {name}=<secret>" for name in sorted(secrets)]
    return "\n".join(
        [with_options(asked).rstrip("\n"), "", "# In the environment of sbatch, which it passes on:", *beside, ""]
    )


def with_options(asked: JobRequest) -> str:
    """Return the script with its options as #SBATCH lines after the first line."""
    first, _, rest = asked.script.partition("\n")
    return "\n".join([first, *(f"#SBATCH {option}" for option in options(asked)), rest])


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise BackendRejected for names or values that cannot be exported."""
    for name, value in variables.items():
        _require(VARIABLE, "environment variable", name)
        if "\0" in value:
            raise BackendRejected(f"the value of environment variable {name} holds a zero byte; leave it out")


def _gres(config: SlurmConfig, plan: LaunchPlan) -> str | None:
    pool = config.pools.get(plan.pool)
    chosen = (pool.gres if pool else None) or config.gres.get(plan.accelerator)
    if chosen is None and plan.accelerator == "cpu":
        return None
    kind = _require(GRES, f"gres of accelerator {plan.accelerator!r}", chosen or f"gpu:{plan.accelerator}")
    return f"{kind}:{plan.processes_per_node}"


def _require(pattern: re.Pattern[str], what: str, value: str) -> str:
    if pattern.fullmatch(value) is None:
        raise BackendRejected(f"{what}: {value!r} is no name that Slurm takes; letters, digits, '_', '-' and '.' are")
    return value


SCRIPT = """#!/bin/bash
# Job {job}, attempt {attempt}: {job_name}
trap : TERM  # the agents get the signal themselves; this script stays and records how they ended
export PATH HOME="${{HOME:-$(echo ~)}}"  # slurmrestd passes none on

{begin}began={began}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then
    echo "athanor: Slurm restarted job $SLURM_JOB_ID; an attempt does not run twice" >&2
    exit {ran_before}
fi
if ! (set -o noclobber; echo "$SLURM_JOB_ID" >"$began") 2>/dev/null; then
    echo "athanor: cannot make $began: this attempt ran before, or the folder cannot be written" >&2
    [ -e "$began" ] && exit {ran_before}
    exit {node_unusable}
fi

# The address of each node, asked for once: nodes need not be known by their names.
athanor_addresses=$(scontrol --oneliner show node "$SLURM_JOB_NODELIST" 2>/dev/null |
    sed -n 's/^NodeName=\\([^ ]*\\) .* NodeAddr=\\([^ ]*\\) .*/\\1=\\2/p')
export athanor_addresses

agent() {{
    trap : TERM  # Slurm signals this shell too, and would take its end for the agent's
    local entry address="$SLURMD_NODENAME" status
    for entry in $athanor_addresses; do
        [ "${{entry%%=*}}" = "$SLURMD_NODENAME" ] && address="${{entry#*=}}"
    done
    unset athanor_addresses
    export {node_index}={index} {node_name}="$SLURMD_NODENAME" {node_address}="$address"
    if [ "${{SLURM_TOPOLOGY_ADDR_PATTERN:-node}}" != node ]; then
        local switches="${{SLURM_TOPOLOGY_ADDR%."$SLURMD_NODENAME"}}"
        export {node_topology}="${{switches//.//}}"
    fi
    export {work_dir}={work}/{index}
    if ! mkdir -p -m 700 "${work_dir}" || ! cd "${work_dir}"; then
        echo "athanor: node $SLURMD_NODENAME cannot make ${work_dir}" >&2
        scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"  # the others would wait for this node
        return {node_unusable}
    fi
    {run_agent}
    {node_end}
    [ "$status" -eq 0 ] && cd / && rm -rf "${work_dir}"
    return "$status"
}}

umask 077
srun {srun} \\
    bash -c "$(declare -f agent); agent"
status=$?
{all_end}
echo "$status $SLURM_JOB_ID" >{end}.part && mv {end}.part {end}
exit "$status"
"""

RUN_ONCE = """{command}
    status=$?"""

# The ranks of a killed agent get SIGKILL from the kernel and end some time after it. They are in the process group of
# this shell, as all processes of the task.
RUN_AGAIN = """local starts=0 stopping=
    trap stopping=1 TERM
    ranks_ended() {{
        local file stat group is_left deadline=$((SECONDS + {seconds}))
        read -r stat </proc/$$/stat
        set -- ${{stat##*) }}
        group=$3
        while :; do
            # The kernel does not report the end of processes that are not this shell's children. Where Slurm kills the
            # step, this shell ends meanwhile, too.
            sleep 0.2
            [ -n "$stopping" ] && break
            is_left=
            for file in /proc/[0-9]*/stat; do
                {{ read -r stat <"$file"; }} 2>/dev/null || continue
                set -- "${{stat%% *}}" ${{stat##*) }}  # pid, state, parent, process group, ..., threads
                [ "$4" = "$group" ] && [ "$1" != $$ ] || continue
                case "$2/${{19}}" in [ZX]/[01]) ;; *) is_left=1 ;; esac  # a zombie may have threads that live
            done
            [ -z "$is_left" ] && return 0
            [ "$SECONDS" -ge "$deadline" ] && break
        done
        return 1
    }}
    while :; do
        {command}
        status=$?
        # Started again if a signal ended it, and not SIGTERM, which asks for an end.
        [ "$status" -gt 128 ] && [ "$status" -le 192 ] && [ "$status" -ne 143 ] && [ -z "$stopping" ] || break
        [ "$starts" -lt {restarts} ] && ranks_ended || break
        starts=$((starts + 1))
        echo "athanor: signal $((status - 128)) ended the agent of node $SLURMD_NODENAME;" \\
            "it starts again ($starts of at most {restarts} times)" >&2
    done"""

# With spare nodes, or min_nodes, the run continues without a lost node, for which srun reports a failure: then so many
# agents that ended well are a good end.
NODE_END = '[ "$status" -eq 0 ] && echo >{ended}.ended.{index}'
# Agents of nodes that replace lost ones are in jobs of their own (`replacement`): they may run longer than those here,
# and count as well. One that Slurm does not know any more has ended.
ALL_END = """for job in {ended}.replaced.*.begun; do
    [ -e "$job" ] && number=$(cat "$job") && [ -n "$number" ] || continue
    while [ ! -e "${{job%.begun}}.end" ]; do
        state=$(squeue --noheader --states=RUNNING,SUSPENDED --jobs="$number" 2>&1) && [ -z "$state" ] && break
        case $state in *"Invalid job id"*) break ;; esac
        sleep 1  # the ends of other jobs can only be asked for
    done
    echo "athanor: output of job $number, the replacement of a lost node"
    cat "${{job%.begun}}.log"
done
ended=$(ls {ended}.ended.* 2>/dev/null | wc -l)
[ "$status" -ne 0 ] && [ "$ended" -ge {nodes} ] && status=0
rm -f {ended}.ended.*"""


# A replacement that begins when the attempt is over runs nothing.
UNLESS_OVER = """if [ -e {attempt}.end ]; then
    echo "athanor: the attempt is over" >&2
    exit {ran_before}
fi
"""


def _script(config: SlurmConfig, plan: LaunchPlan, output: str) -> str:
    ended = shlex.quote(output)
    all_end = ALL_END.format(ended=ended, nodes=plan.fewest_nodes) if plan.expendable_nodes else ":"
    return _fill(config, plan, output, plan.nodes + plan.spare_nodes, ended, all_end=all_end)


def _replacement_script(config: SlurmConfig, plan: LaunchPlan, output: str, node_index: int) -> str:
    attempt = shlex.quote(output.rpartition(".replaced.")[0])
    begin = UNLESS_OVER.format(attempt=attempt, ran_before=RAN_BEFORE)
    return _fill(config, plan, output, 1, attempt, index=str(node_index), begin=begin)


def _fill(
    config: SlurmConfig,
    plan: LaunchPlan,
    output: str,
    nodes: int,
    ended: str,
    *,
    index: str = '"$SLURM_NODEID"',
    begin: str = "",
    all_end: str = ":",
) -> str:
    """Return SCRIPT with its values. `ended`: the quoted path of the attempt's files, beside which agents note good
    ends."""
    srun = ["--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--input=none"]
    if not plan.exclusive:  # srun does not take it from sbatch since 22.05; a whole node's task has all of it without
        srun.append(f"--cpus-per-task={plan.processes_per_node * (plan.cpus_per_process or 1)}")
    if nodes > 1:
        srun.append("--label")
    command = shlex.join(config.command)
    run_agent = RUN_ONCE.format(command=command)
    if plan.expendable_nodes:
        if nodes > 1:
            srun.append("--no-kill")
        run_agent = RUN_AGAIN.format(command=command, seconds=RANKS_END_SECONDS, restarts=AGENT_RESTARTS)
    return SCRIPT.format(
        job=_comment(plan.job_id),
        attempt=_comment(plan.attempt_id),
        job_name=_comment(plan.job_name),
        begin=begin,
        began=shlex.quote(f"{output}.begun"),
        end=shlex.quote(f"{output}.end"),
        ran_before=RAN_BEFORE,
        node_unusable=NODE_UNUSABLE,
        node_index=names.NODE_INDEX,
        index=index,
        node_name=names.NODE_NAME,
        node_address=names.NODE_ADDRESS,
        node_topology=names.NODE_TOPOLOGY,
        work_dir=names.WORK_DIR,
        work=shlex.quote(f"{config.work_directory.rstrip('/')}/{plan.backend_name}"),
        run_agent=run_agent,
        srun=" ".join(srun),
        node_end=NODE_END.format(ended=ended, index=index) if plan.expendable_nodes else ":",
        all_end=all_end,
    )


def _comment(text: str) -> str:
    """Return the text on one line, for a comment."""
    return json.dumps(text) if WORD.fullmatch(text) is None else text
