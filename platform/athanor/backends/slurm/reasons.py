"""Slurm's reasons as sentences for users. Reasons without a sentence are shown as Slurm reports them."""

from athanor.backends.base import Cause

EXPLANATIONS: dict[str, str] = {
    # Why it waits.
    "Resources": "It is next in line and waits until enough nodes are free.",
    "Priority": "Jobs of higher priority wait before it in Slurm's queue.",
    "BeginTime": "It may not start before a time that was set for it.",
    "Dependency": "It waits for another job in Slurm to end.",
    "DependencyNeverSatisfied": "It waits for another job that can no longer end as it should; ask an admin.",
    "JobHeldUser": "Somebody holds it back in Slurm: `scontrol release` lets it go on.",
    "JobHeldAdmin": "An admin of the cluster holds it back in Slurm; ask them.",
    "JobHoldMaxRequeue": "Slurm holds it because it was requeued too often; ask the cluster's admin.",
    "Licenses": "It waits for a licence that other jobs use.",
    "Reservation": "It waits for its reservation to begin.",
    "ReqNodeNotAvail": "Nodes that it needs are down, drained, or reserved for maintenance.",
    "NodeDown": "A node that it needs is down.",
    "BadConstraints": "No nodes of the cluster have what it asks for.",
    "PartitionDown": "Its partition takes no jobs at the moment; an admin of the cluster closed it.",
    "PartitionInactive": "Its partition starts no jobs at the moment; an admin of the cluster set it so.",
    "PartitionNodeLimit": "It asks for more nodes than its partition gives one job.",
    "PartitionTimeLimit": "It asks for more time than its partition gives one job.",
    "PartitionConfig": "Its partition cannot give what it asks for.",
    "AccountNotAllowed": "Its account may not use this partition.",
    "QOSNotAllowed": "Its quality of service may not be used in this partition.",
    "InvalidAccount": "Slurm does not know its account.",
    "InvalidQOS": "Slurm does not know its quality of service.",
    "Prolog": "The nodes are being prepared for it.",
    "Cleaning": "Slurm still cleans up after an earlier start of it.",
    "FrontEndDown": "The host that starts jobs on this cluster is down.",
    "NodeState": "Nodes that it needs are not ready.",
    "SchedDefer": "Slurm looks for a place for it at its next turn.",
    "None": "Slurm has not looked for a place for it yet.",
    "limit": "Its account, user or quality of service already uses as much as it may in Slurm.",
    # States of a job that has not ended.
    "PENDING": "Slurm has not looked for a place for it yet.",
    "REQUEUED": "Slurm puts it back into its queue.",
    "REQUEUE_HOLD": "Slurm put it back into its queue and holds it there.",
    "SPECIAL_EXIT": "Slurm put it back into its queue and holds it there, for its exit status.",
    "RESV_DEL_HOLD": "Its reservation was deleted; Slurm holds it back.",
    "CONFIGURING": "Its nodes are being started or prepared.",
    "POWER_UP_NODE": "Its nodes are being switched on.",
    "SUSPENDED": "Slurm has suspended it: it keeps its nodes and does not compute.",
    "STOPPED": "Somebody has stopped its processes: it keeps its nodes and does not compute.",
    "COMPLETING": "Its processes are being ended and its nodes cleaned up.",
    # Why it ended.
    Cause.CANCELLED.value: "It was cancelled in Slurm.",
    Cause.TIME_LIMIT.value: "It ran into the time limit that Slurm had for it.",
    Cause.PREEMPTED.value: "Slurm gave its nodes to a job of higher priority.",
    Cause.NODE_LOST.value: "Slurm lost a node on which it ran.",
    Cause.OUT_OF_MEMORY.value: "It used more memory than a node's limit for it.",
    Cause.LAUNCH_FAILED.value: "Slurm could not start it on its nodes.",
}

# Reasons of a job that FAILED that are more specific than its state.
CAUSES: dict[str, Cause] = {
    "JobLaunchFailure": Cause.LAUNCH_FAILED,
    "Prolog": Cause.LAUNCH_FAILED,
    "BadConstraints": Cause.LAUNCH_FAILED,
    "SystemFailure": Cause.LAUNCH_FAILED,
    "InvalidBBJob": Cause.LAUNCH_FAILED,
    "BurstBufferStageIn": Cause.LAUNCH_FAILED,
    "NodeDown": Cause.NODE_LOST,
    "TimeLimit": Cause.TIME_LIMIT,
    "OutOfMemory": Cause.OUT_OF_MEMORY,
}
