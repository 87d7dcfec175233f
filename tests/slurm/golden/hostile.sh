#!/bin/bash
#SBATCH --job-name=athanor-01j8zzzzzzzzzzzzzzzzzzzzzz
#SBATCH --comment=athanor:athanor-01j8zzzzzzzzzzzzzzzzzzzzzz
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=65
#SBATCH --signal=TERM@120
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.log
#SBATCH --chdir=/
#SBATCH --export=ALL
# Job "x'; touch /tmp/owned; $(touch /tmp/owned) `id` \"\n#SBATCH --wrap=id\nrm -rf /", attempt att_01J8ZZZZZZZZZZZZZZZZZZZZZZ: "x'; touch /tmp/owned; $(touch /tmp/owned) `id` \"\n#SBATCH --wrap=id\nrm -rf /"
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
    export ATHANOR_WORK_DIR='/tmp/it'"'"'s $(here)/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz'/"$SLURM_NODEID"
    if ! mkdir -p -m 700 "$ATHANOR_WORK_DIR" || ! cd "$ATHANOR_WORK_DIR"; then
        echo "athanor: node $SLURMD_NODENAME cannot make $ATHANOR_WORK_DIR" >&2
        scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"  # the others would wait for this node
        return 98
    fi
    python3 -c 'x'"'"'; touch /tmp/owned; $(touch /tmp/owned) `id` "
#SBATCH --wrap=id
rm -rf /'
    status=$?
    :
    [ "$status" -eq 0 ] && cd / && rm -rf "$ATHANOR_WORK_DIR"
    return "$status"
}

umask 077
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --mpi=none --input=none --cpus-per-task=2 \
    bash -c "$(declare -f agent); agent"
status=$?
:
echo "$status $SLURM_JOB_ID" >/shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.end.part && mv /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.end.part /shared/athanor/athanor-01j8zzzzzzzzzzzzzzzzzzzzzz.end
exit "$status"

# In the environment of sbatch, which it passes on:
#   A="x'; touch /tmp/owned; $(touch /tmp/owned) `id` \"\n#SBATCH --wrap=id\nrm -rf /"
#   ATHANOR_ATTEMPT_TOKEN=<secret>
