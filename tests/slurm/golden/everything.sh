#!/bin/bash
#SBATCH --job-name=athanor-01j8zzzzzzzzzzzzzzzzzzzzzz
#SBATCH --comment=athanor:athanor-01j8zzzzzzzzzzzzzzzzzzzzzz
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
#SBATCH --gres=gpu:h100:8
#SBATCH --mem=921600M
#SBATCH --partition=big,bigger
#SBATCH --account=research-gpu
#SBATCH --qos=urgent
#SBATCH --constraint=nvlink&ib
#SBATCH --exclude=node03,node17
#SBATCH --switches=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --time=65
#SBATCH --signal=TERM@120
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.log
#SBATCH --chdir=/
#SBATCH --export=ALL
# Job job_01J8YYYYYYYYYYYYYYYYYYYYYY, attempt att_01J8ZZZZZZZZZZZZZZZZZZZZZZ: "first run"
trap : TERM  # the agents get the signal themselves; this script stays and records how they ended
export PATH HOME="${HOME:-$(echo ~)}"  # slurmrestd passes none on

began=/shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.begun
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
    echo "athanor: Slurm restarted job $SLURM_JOB_ID; an attempt does not run twice" >&2
    exit 97
fi
if ! (set -o noclobber; echo "$SLURM_JOB_ID" >"$began") 2>/dev/null; then
    echo "athanor: cannot make $began: this attempt ran before, or the folder cannot be written" >&2
    [ -e "$began" ] && exit 97
    exit 98
fi

# The address of each node, asked for once: nodes need not be known by their names.
athanor_addresses=$(scontrol --oneliner show node "$SLURM_JOB_NODELIST" 2>/dev/null |
    sed -n 's/^NodeName=\([^ ]*\) .* NodeAddr=\([^ ]*\) .*/\1=\2/p')
export athanor_addresses

agent() {
    trap : TERM  # Slurm signals this shell too, and would take its end for the agent's
    local entry address="$SLURMD_NODENAME" status
    for entry in $athanor_addresses; do
        [ "${entry%%=*}" = "$SLURMD_NODENAME" ] && address="${entry#*=}"
    done
    unset athanor_addresses
    export ATHANOR_NODE_INDEX="$SLURM_NODEID" ATHANOR_NODE_NAME="$SLURMD_NODENAME" ATHANOR_NODE_ADDRESS="$address"
    if [ "${SLURM_TOPOLOGY_ADDR_PATTERN:-node}" != node ]; then
        local switches="${SLURM_TOPOLOGY_ADDR%."$SLURMD_NODENAME"}"
        export ATHANOR_NODE_TOPOLOGY="${switches//.//}"
    fi
    export ATHANOR_WORK_DIR='/scratch/my jobs/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz'/"$SLURM_NODEID"
    if ! mkdir -p -m 700 "$ATHANOR_WORK_DIR" || ! cd "$ATHANOR_WORK_DIR"; then
        echo "athanor: node $SLURMD_NODENAME cannot make $ATHANOR_WORK_DIR" >&2
        scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"  # the others would wait for this node
        return 98
    fi
    local starts=0 stopping=
    trap stopping=1 TERM
    ranks_ended() {
        local file stat group is_left deadline=$((SECONDS + 60))
        read -r stat </proc/$$/stat
        set -- ${stat##*) }
        group=$3
        while :; do
            # The kernel does not report the end of processes that are not this shell's children. Where Slurm kills the
            # step, this shell ends meanwhile, too.
            sleep 0.2
            [ -n "$stopping" ] && break
            is_left=
            for file in /proc/[0-9]*/stat; do
                { read -r stat <"$file"; } 2>/dev/null || continue
                set -- "${stat%% *}" ${stat##*) }  # pid, state, parent, process group, ..., threads
                [ "$4" = "$group" ] && [ "$1" != $$ ] || continue
                case "$2/${19}" in [ZX]/[01]) ;; *) is_left=1 ;; esac  # a zombie may have threads that live
            done
            [ -z "$is_left" ] && return 0
            [ "$SECONDS" -ge "$deadline" ] && break
        done
        return 1
    }
    while :; do
        /opt/athanor/bin/python -m trainer.agent
        status=$?
        # Started again if a signal ended it, and not SIGTERM, which asks for an end.
        [ "$status" -gt 128 ] && [ "$status" -le 192 ] && [ "$status" -ne 143 ] && [ -z "$stopping" ] || break
        [ "$starts" -lt 3 ] && ranks_ended || break
        starts=$((starts + 1))
        echo "athanor: signal $((status - 128)) ended the agent of node $SLURMD_NODENAME;" \
            "it starts again ($starts of at most 3 times)" >&2
    done
    [ "$status" -eq 0 ] && echo >/shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.ended."$SLURM_NODEID"
    [ "$status" -eq 0 ] && cd / && rm -rf "$ATHANOR_WORK_DIR"
    return "$status"
}

umask 077
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --mpi=none --input=none --label --no-kill \
    bash -c "$(declare -f agent); agent"
status=$?
for job in /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.replaced.*.begun; do
    [ -e "$job" ] && number=$(cat "$job") && [ -n "$number" ] || continue
    while [ ! -e "${job%.begun}.end" ]; do
        state=$(squeue --noheader --states=RUNNING,SUSPENDED --jobs="$number" 2>&1) && [ -z "$state" ] && break
        case $state in *"Invalid job id"*) break ;; esac
        sleep 1  # the ends of other jobs can only be asked for
    done
    echo "athanor: output of job $number, the replacement of a lost node"
    cat "${job%.begun}.log"
done
ended=$(ls /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.ended.* 2>/dev/null | wc -l)
[ "$status" -ne 0 ] && [ "$ended" -ge 4 ] && status=0
rm -f /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.ended.*
echo "$status $SLURM_JOB_ID" >/shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.end.part && mv /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.end.part /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.end
exit "$status"

# In the environment of sbatch, which it passes on:
#   ATHANOR_AGENT_URL="https://athanor.example/api/agent/v1"
#   ATHANOR_CACHE_DIR="/scratch/cache"
#   ATHANOR_CHECKPOINT_DIR="/scratch/cache/checkpoints"
#   NCCL_IB_HCA="mlx5"
#   NCCL_IB_TIMEOUT="22"
#   ATHANOR_ATTEMPT_TOKEN=<secret>
