"""What happens to attempts on Kubernetes beyond what every backend promises."""

from functools import partial
from typing import Any

import pytest

from athanor.backends.base import (
    LOG_PART_BYTES,
    BackendRejected,
    BackendUnavailable,
    Cause,
    Handle,
    Observation,
    Obstacle,
    Phase,
    Presence,
)
from athanor.backends.facts import Level, NodeState
from athanor.backends.kubernetes import names
from athanor.backends.kubernetes import objects as objects_of_kubernetes
from deploy.local.handle import wait_until
from tests.backends.cases.base import PROGRAM
from tests.backends.cases.kubernetes import KubernetesCase
from tests.kubernetes.double.pods import delete_pod

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PROGRAM
# Ends with 64 when it is asked to, as the agent does once it has saved a checkpoint.
POLITE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(64))\n" + PROGRAM


def running(case: KubernetesCase, **changes: Any) -> Handle:
    handle = case.backend.submit(case.submission(**changes))
    pods = changes.get("nodes", 1) + changes.get("spare_nodes", 0)
    wait_until(lambda: case.observe(handle).phase is Phase.RUNNING and case.starts(handle) == pods, "it runs", 30)
    return handle


def objects(case: KubernetesCase, plural: str, handle: Handle) -> list[Any]:
    return [one for one in case.cluster.store.all(plural) if one["metadata"]["name"] == handle.backend_name]


def test_everything_of_an_attempt_goes_with_its_job(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes, nodes=2)
    kept = ("secrets", "services", "networkpolicies")
    assert all(len(objects(kubernetes, plural, handle)) == 1 for plural in kept)
    kubernetes.finish(handle)
    kubernetes.until(handle, Presence.FINISHED)
    kubernetes.cancel_behind_our_back(handle)
    wait_until(lambda: not any(objects(kubernetes, plural, handle) for plural in kept), "all are gone", 20)


def test_doubled_requests_make_one_of_each(kubernetes: KubernetesCase) -> None:
    submission = kubernetes.submission(nodes=2)
    with kubernetes.cluster.faulty("doubled"):
        handle = kubernetes.backend.submit(submission)
    wait_until(lambda: kubernetes.starts(handle) == 2, "both run", 20)
    for plural in ("jobs", "secrets", "services", "networkpolicies"):
        assert len(objects(kubernetes, plural, handle)) == 1
    with kubernetes.cluster.faulty("doubled"):
        kubernetes.backend.cancel(handle)
    assert kubernetes.until(handle, Presence.FINISHED).cause is Cause.CANCELLED


def test_a_worker_that_died_between_job_and_secret_is_taken_over(kubernetes: KubernetesCase) -> None:
    kubernetes.cluster.forbidden = {("patch", "secrets")}
    submission = kubernetes.submission()
    with pytest.raises(BackendUnavailable, match="secrets"):
        kubernetes.backend.submit(submission)
    kubernetes.cluster.forbidden = set()
    nameless = Handle(submission.backend_name)
    said = "CreateContainerConfigError"
    wait_until(lambda: said in kubernetes.observe(nameless).native_reason, "its pod waits for the secret", 20)
    assert kubernetes.observe(nameless).phase is Phase.STARTING
    handle = kubernetes.backend.submit(submission)
    wait_until(lambda: kubernetes.starts(handle) == 1, "it runs", 20)
    kubernetes.finish(handle)


def test_a_quota_that_is_used_up_is_said_and_waited_for(kubernetes: KubernetesCase) -> None:
    kubernetes.use(quota={"pods": "1"})
    first = running(kubernetes)
    second = kubernetes.backend.submit(kubernetes.submission())
    wait_until(lambda: "exceeded quota" in kubernetes.observe(second).explanation, "the quota is named", 30)
    assert kubernetes.observe(second).phase is Phase.PENDING
    kubernetes.finish(first)
    wait_until(lambda: kubernetes.starts(second) == 1, "it runs when there is room", 30)
    kubernetes.finish(second)


def test_missing_rights_are_no_end_and_an_invalid_job_is(kubernetes: KubernetesCase) -> None:
    kubernetes.cluster.forbidden = {("create", "jobs")}
    with pytest.raises(BackendUnavailable, match="cannot create"):
        kubernetes.backend.submit(kubernetes.submission())
    kubernetes.cluster.forbidden = {("patch", "namespaces")}
    kubernetes.use(labels={"new": "settings"})
    with pytest.raises(BackendUnavailable, match=r"rbac\.yaml"):
        kubernetes.backend.submit(kubernetes.submission())
    kubernetes.cluster.forbidden = set()
    submission = kubernetes.submission()
    payload: Any = submission.payload
    payload["objects"][0]["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    with pytest.raises(BackendRejected, match="restartPolicy"):
        kubernetes.backend.submit(submission)


def test_a_namespace_that_was_removed_is_made_again(kubernetes: KubernetesCase) -> None:
    first = running(kubernetes)
    kubernetes.finish(first)
    kubernetes.until(first, Presence.FINISHED)
    namespace = first.backend_id.partition("/")[0]
    store = kubernetes.cluster.store
    kubernetes.cluster.remove("namespaces", store.get("namespaces", "", namespace), "Background")
    wait_until(lambda: store.find("namespaces", "", namespace) is None, "it is gone", 20)
    second = running(kubernetes)
    assert kubernetes.cluster.store.find("networkpolicies", namespace, names.MANAGER) is not None
    kubernetes.finish(second)


def test_settings_that_somebody_changed_are_set_right(kubernetes: KubernetesCase) -> None:
    kubernetes.use(quota={"pods": "7"})
    (line,) = kubernetes.backend.sync_teams(["vision"])
    namespace = names.namespace_of(kubernetes.backend._config, "vision")
    assert namespace in line
    quota = kubernetes.cluster.store.get("resourcequotas", namespace, names.MANAGER)
    kubernetes.cluster.store.update(
        "resourcequotas", {**quota, "spec": {"hard": {"pods": "1", "count/jobs.batch": "3"}}}
    )
    kubernetes.use(quota={"pods": "8"})
    assert len(kubernetes.backend.sync_teams(["vision"])) == 1
    assert kubernetes.backend.sync_teams(["vision"]) == []
    hard = kubernetes.cluster.store.get("resourcequotas", namespace, names.MANAGER)["spec"]["hard"]
    assert hard == {"pods": "8", "count/jobs.batch": "3"}  # what another manages of it stays


def test_an_image_that_cannot_be_pulled_is_said(kubernetes: KubernetesCase) -> None:
    def is_named(seen: Observation) -> bool:
        is_starting = (seen.presence, seen.phase) == (Presence.PRESENT, Phase.STARTING)
        return is_starting and "ImagePullBackOff" in seen.explanation and "athanor/absent:1" in seen.explanation

    kubernetes.cluster.kubelet.missing_images.add("athanor/absent:1")
    kubernetes.use(image="athanor/absent:1")
    handle = kubernetes.backend.submit(kubernetes.submission())
    # One observation may be of the server, and the next of a watch that is behind it.
    wait_until(lambda: is_named(kubernetes.observe(handle)), "the image is named", 20)
    kubernetes.backend.cancel(handle)
    assert kubernetes.until(handle, Presence.FINISHED).cause is Cause.CANCELLED


def test_what_does_not_start_is_given_up(kubernetes: KubernetesCase) -> None:
    kubernetes.cluster.kubelet.missing_images.add("athanor/absent:1")
    kubernetes.use(image="athanor/absent:1", watch=False)
    absent = kubernetes.backend.submit(kubernetes.submission())
    wait_until(lambda: "cannot be started" in kubernetes.observe(absent).explanation, "the image is missing", 20)
    assert kubernetes.observe(absent).gives_up is None
    with kubernetes.skew_clock(200):
        assert kubernetes.observe(absent).gives_up is Obstacle.CANNOT_START
    kubernetes.backend.cancel(absent)
    kubernetes.until(absent, Presence.FINISHED)  # until then its pod counts in the quota
    kubernetes.use(quota={"pods": "1"}, watch=False)
    with kubernetes.cluster.full():
        unplaced = kubernetes.backend.submit(kubernetes.submission())
        wait_until(lambda: "nodes are available" in kubernetes.observe(unplaced).native_reason, "it has no node", 20)
        refused = kubernetes.backend.submit(kubernetes.submission())
        wait_until(lambda: "exceeded quota" in kubernetes.observe(refused).native_reason, "the quota is named", 30)
        for handle in (unplaced, refused):
            assert kubernetes.observe(handle).gives_up is None
            with kubernetes.skew_clock(700):
                assert kubernetes.observe(handle).gives_up is Obstacle.NO_ROOM


def test_a_command_that_is_not_there_is_a_launch_that_failed(kubernetes: KubernetesCase) -> None:
    kubernetes.use()
    kubernetes.backend = type(kubernetes.backend)(**kubernetes.cluster.config(command=["/nowhere/python"]))
    handle = kubernetes.backend.submit(kubernetes.submission())
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.LAUNCH_FAILED
    assert "/nowhere/python" in ended.explanation


@pytest.mark.parametrize(
    ("reason", "message", "spot", "cause"),
    [
        ("PreemptionByScheduler", "preempting to accommodate a higher priority pod", False, Cause.PREEMPTED),
        ("EvictionByEvictionAPI", "Eviction API: evicting", False, Cause.PREEMPTED),
        ("DeletionByTaintManager", "deleting due to NoExecute taint", False, Cause.NODE_LOST),
        ("DeletionByTaintManager", "deleting due to NoExecute taint", True, Cause.SPOT_RECLAIMED),
        (
            "TerminationByKubelet",
            "Pod was terminated in response to imminent node shutdown.",
            True,
            Cause.SPOT_RECLAIMED,
        ),
        ("TerminationByKubelet", "The node was low on resource: memory.", False, Cause.OUT_OF_MEMORY),
    ],
)
def test_what_takes_a_pods_place_is_told_apart(
    kubernetes: KubernetesCase, reason: str, message: str, spot: bool, cause: Cause
) -> None:
    kubernetes.use(POLITE, pools={"cpu": {"spot": spot}})
    handle = running(kubernetes)
    kubernetes.cluster.disrupt(kubernetes.cluster.pods_of(handle.backend_name)[0], reason, message)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause is cause
    assert ended.exit_status in (64, None)
    assert kubernetes.starts(handle) == 1


def test_a_disruption_is_known_by_who_comes_when_the_pod_is_gone(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes)
    kubernetes.preempt(handle)
    wait_until(lambda: not kubernetes.cluster.pods_of(handle.backend_name), "its pod is gone", 20)
    kubernetes.use(watch=False, timeout_seconds=5)  # another worker, which saw nothing of it
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.PREEMPTED
    for event in list(kubernetes.cluster.store.all("events")):
        kubernetes.cluster.store.remove("events", event)
    kubernetes.use(watch=False, timeout_seconds=6)  # and one that comes when events are forgotten, too
    assert kubernetes.until(handle, Presence.FINISHED).cause is Cause.PREEMPTED


@pytest.mark.parametrize("grace", [None, 0], ids=["kubectl delete pod", "kubectl delete pod --force"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_pod_that_somebody_deletes_is_named(kubernetes: KubernetesCase, grace: int | None, nodes: int) -> None:
    kubernetes.use(POLITE)
    handle = running(kubernetes, nodes=nodes)
    pod = kubernetes.cluster.pods_of(handle.backend_name)[-1]
    delete_pod(kubernetes.cluster.store, kubernetes.cluster.loop, pod, grace)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.DELETED
    named = f"Somebody deleted pod {pod['metadata']['name']}."
    assert ended.explanation in ((named,) if nodes == 1 else (named, "Somebody deleted one of its pods."))
    assert ended.exit_status in (64, None)


def test_a_pod_that_fails_is_the_cause_and_not_those_that_are_deleted_with_it(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes, nodes=2)
    kubernetes.cluster.kubelet.oom_kill(kubernetes.cluster.pods_of(handle.backend_name)[1])
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.cause, ended.exit_status) == (Cause.OUT_OF_MEMORY, -9)


@pytest.mark.parametrize("watched", [True, False])
def test_a_namespace_that_somebody_deletes_is_named(kubernetes: KubernetesCase, watched: bool) -> None:
    kubernetes.use(POLITE, watch=watched)
    handle = running(kubernetes)
    namespace = handle.backend_id.partition("/")[0]
    cluster = kubernetes.cluster
    with cluster.keeping_namespaces():
        cluster.remove("namespaces", cluster.store.get("namespaces", "", namespace), "Background")
        ended = kubernetes.until(handle, Presence.FINISHED)
        assert ended.cause is Cause.CANCELLED
        assert ended.explanation == f"Somebody deleted the namespace {namespace}."
        with pytest.raises(BackendUnavailable, match="being terminated"):
            kubernetes.backend.submit(kubernetes.submission())


def test_one_of_two_nodes_lost_ends_what_the_others_end(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes, nodes=2)
    assert len(set(kubernetes.observe(handle).nodes)) == 2
    kubernetes.lose_node(handle)
    wait_until(
        lambda: kubernetes.cluster.pods_of(handle.backend_name)[0]["metadata"].get("deletionTimestamp"),
        "it is lost",
        20,
    )
    assert kubernetes.observe(handle).presence is Presence.PRESENT  # the other pod still runs
    kubernetes.finish(handle, 70)  # as an agent does whose peers are gone
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause in (Cause.NODE_LOST, None)
    assert ended.exit_status in (70, None)
    assert kubernetes.starts(handle) == 2


def evict(case: KubernetesCase, pod: Any) -> None:
    case.cluster.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")


def expendable(case: KubernetesCase, **changes: Any) -> tuple[Handle, list[Any]]:
    """An attempt on three nodes that continues on two, and its pods."""
    case.cluster.add_node("node-3")
    handle = running(case, nodes=2, spare_nodes=1, **changes)
    return handle, case.cluster.pods_of(handle.backend_name)


def test_a_pod_that_is_taken_away_is_replaced_while_the_others_run(kubernetes: KubernetesCase) -> None:
    kubernetes.use(watch=False)  # a watch may be behind the server, which is asked before the watch has begun
    handle, (pod, *_) = expendable(kubernetes)
    evict(kubernetes, pod)
    seen: list[Observation] = []

    def is_replaced() -> bool:
        seen.append(kubernetes.observe(handle))
        return kubernetes.starts(handle) == 4

    wait_until(is_replaced, "another pod of its index has started", 20)
    assert {(one.presence, one.phase) for one in seen} == {(Presence.PRESENT, Phase.RUNNING)}
    kubernetes.finish(handle)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.exit_status, ended.cause) == (0, None)
    assert kubernetes.starts(handle) == 4


def test_a_killed_agent_is_started_again_a_few_times(kubernetes: KubernetesCase) -> None:
    handle, (first, *_) = expendable(kubernetes)
    index = first["metadata"]["annotations"][names.INDEX]

    def living() -> list[Any]:
        pods = kubernetes.cluster.pods_of(handle.backend_name)
        mine = [pod for pod in pods if pod["metadata"]["annotations"][names.INDEX] == index]
        return [pod for pod in mine if kubernetes.cluster.kubelet.process_of(pod) is not None]

    def has_started(times: int) -> bool:
        return kubernetes.starts(handle) == times

    for start in range(1 + objects_of_kubernetes.POD_RESTARTS):
        wait_until(partial(has_started, 3 + start), "it runs", 20)
        (pod,) = living()
        kubernetes.cluster.kubelet.oom_kill(pod)
    kubernetes.finish(handle)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.exit_status, ended.cause) == (0, None)
    assert "FailedIndexes" in ended.native_reason
    assert kubernetes.starts(handle) == 3 + objects_of_kubernetes.POD_RESTARTS


def test_an_agent_that_ends_by_itself_is_not_started_again(kubernetes: KubernetesCase) -> None:
    handle, _ = expendable(kubernetes)
    kubernetes.finish(handle, 72)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.exit_status, ended.cause) == (72, None)
    assert kubernetes.starts(handle) == 3


def test_a_run_ends_though_a_replacement_still_waits_for_a_node(kubernetes: KubernetesCase) -> None:
    kubernetes.use(watch=False)  # a watch may be behind the server, which is asked before the watch has begun
    handle, (pod, *_) = expendable(kubernetes)
    with kubernetes.cluster.full():
        evict(kubernetes, pod)
        wait_until(lambda: "has no node" in kubernetes.observe(handle).explanation, "the replacement waits", 20)
        seen = kubernetes.observe(handle)
        assert (seen.phase, len(seen.nodes)) == (Phase.RUNNING, 2)
        kubernetes.cluster.forbidden = {("patch", "jobs")}
        kubernetes.finish(handle)
        assert "its Job is ended later" in kubernetes.until(handle, Presence.UNKNOWN).native_reason
        kubernetes.cluster.forbidden = set()
        ended = kubernetes.until(handle, Presence.FINISHED)
        assert (ended.native_state, ended.exit_status, ended.cause) == ("Complete", 0, None)
        wait_until(lambda: handle.backend_name not in kubernetes.backend.list_ours(), "its Job has ended", 20)
    kubernetes.use(watch=False, timeout_seconds=5)  # another worker finds the same
    assert kubernetes.until(handle, Presence.FINISHED) == ended
    assert kubernetes.starts(handle) == 3


def test_more_losses_than_spares_are_an_end(kubernetes: KubernetesCase) -> None:
    handle, pods = expendable(kubernetes)
    with kubernetes.cluster.full():
        for pod in pods[:2]:
            evict(kubernetes, pod)
        ended = kubernetes.until(handle, Presence.FINISHED)
        assert ended.cause is Cause.PREEMPTED
        wait_until(lambda: handle.backend_name not in kubernetes.backend.list_ours(), "its Job has ended", 20)
        assert not any(
            kubernetes.cluster.kubelet.process_of(pod) for pod in kubernetes.cluster.pods_of(handle.backend_name)
        )
    kubernetes.use(watch=False, timeout_seconds=5)
    assert kubernetes.until(handle, Presence.FINISHED) == ended
    assert kubernetes.starts(handle) == 3


def test_a_run_ends_though_one_of_its_nodes_does_not_answer(kubernetes: KubernetesCase) -> None:
    handle, (pod, *_) = expendable(kubernetes)
    kubernetes.cluster.lose_node(pod["spec"]["nodeName"])
    wait_until(
        lambda: "deletionTimestamp" in kubernetes.cluster.pods_of(handle.backend_name)[0]["metadata"], "it is lost", 20
    )
    assert kubernetes.observe(handle).phase is Phase.RUNNING
    kubernetes.finish(handle)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.native_state, ended.exit_status, ended.cause) == ("Complete", 0, None)


def test_what_a_stop_ends_is_not_replaced(kubernetes: KubernetesCase) -> None:
    kubernetes.use(STUBBORN, stop_grace_seconds=60)
    handle, _ = expendable(kubernetes)
    kubernetes.backend.cancel(handle)
    wait_until(lambda: kubernetes.observe(handle).phase is Phase.ENDING, "it is being ended", 20)
    kubernetes.backend.cancel(handle, force=True)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.CANCELLED
    assert kubernetes.starts(handle) == 3


def test_a_run_that_may_lose_nodes_waits_for_all_of_them_at_first(kubernetes: KubernetesCase) -> None:
    handle = kubernetes.backend.submit(kubernetes.submission(nodes=2, spare_nodes=1))  # there are two nodes
    wait_until(lambda: kubernetes.starts(handle) == 2, "two pods run", 20)
    wait_until(lambda: "1 of 3 pods have no node" in kubernetes.observe(handle).explanation, "the third waits", 20)
    assert kubernetes.observe(handle).phase is Phase.PENDING
    kubernetes.finish(handle)


def test_memory_that_runs_out_is_told(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes)
    kubernetes.cluster.kubelet.oom_kill(kubernetes.cluster.pods_of(handle.backend_name)[0])
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.cause, ended.exit_status) == (Cause.OUT_OF_MEMORY, -9)


def test_the_clusters_own_deadline_is_a_time_limit(kubernetes: KubernetesCase) -> None:
    submission = kubernetes.submission()
    payload: Any = submission.payload
    assert "activeDeadlineSeconds" not in payload["objects"][0]["spec"]  # it would run while pods wait for room
    payload["objects"][0]["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 1
    with kubernetes.cluster.full():
        handle = kubernetes.backend.submit(submission)
        wait_until(lambda: kubernetes.observe(handle).phase is Phase.PENDING, "it waits", 20)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.TIME_LIMIT
    assert kubernetes.starts(handle) == 1, "it ran, however long it had waited"
    assert "ran for longer than 1 seconds" in ended.explanation


def test_cancel_gives_time_to_save_and_force_does_not(kubernetes: KubernetesCase) -> None:
    kubernetes.use(STUBBORN, stop_grace_seconds=60)
    handle = running(kubernetes)
    kubernetes.backend.cancel(handle)
    wait_until(lambda: kubernetes.observe(handle).phase is Phase.ENDING, "it is being ended", 20)
    (pod,) = kubernetes.cluster.pods_of(handle.backend_name)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 60
    kubernetes.backend.cancel(handle, force=True)
    ended = kubernetes.until(handle, Presence.FINISHED)
    assert (ended.cause, ended.exit_status) == (Cause.CANCELLED, None)


def test_a_queued_job_waits_suspended_and_one_that_is_put_back_has_ended(kubernetes: KubernetesCase) -> None:
    kubernetes.use(queue="team-queue")
    handle = kubernetes.backend.submit(kubernetes.submission())
    kubernetes.until(handle, Presence.PRESENT)
    assert kubernetes.observe(handle).phase is Phase.PENDING
    assert "team-queue" in kubernetes.observe(handle).explanation
    suspend(kubernetes, handle, False)
    wait_until(lambda: kubernetes.starts(handle) == 1, "it was let go", 20)
    suspend(kubernetes, handle, True)
    assert kubernetes.until(handle, Presence.FINISHED).cause is Cause.PREEMPTED
    assert kubernetes.starts(handle) == 1


def test_a_queued_job_that_is_cancelled_never_starts(kubernetes: KubernetesCase) -> None:
    kubernetes.use(queue="team-queue")
    handle = kubernetes.backend.submit(kubernetes.submission())
    wait_until(lambda: kubernetes.observe(handle).phase is Phase.PENDING, "it waits", 20)
    kubernetes.backend.cancel(handle)
    assert kubernetes.until(handle, Presence.FINISHED).cause is Cause.CANCELLED
    assert not objects(kubernetes, "jobs", handle)
    assert kubernetes.starts(handle) == 0


def suspend(case: KubernetesCase, handle: Handle, wanted: bool) -> None:
    (job,) = objects(case, "jobs", handle)
    case.cluster.store.change("jobs", job, lambda draft: draft["spec"].update(suspend=wanted))


@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_a_plan_for_one_node_runs_there(kubernetes: KubernetesCase, node: str) -> None:
    handle = running(kubernetes, only_node=node)
    assert kubernetes.observe(handle).nodes == (node,)
    kubernetes.finish(handle)


def test_avoided_nodes_are_avoided(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes, avoid_nodes=("node-1",))
    assert kubernetes.observe(handle).nodes == ("node-2",)
    kubernetes.finish(handle)


@pytest.mark.parametrize("tick", [1, 5_000_000], ids=["fine clock", "coarse clock"])
def test_logs_of_several_pods_are_told_apart_and_long_ones_come_in_parts(kubernetes: KubernetesCase, tick: int) -> None:
    lines = 5000
    kubernetes.cluster.logs.tick = tick
    kubernetes.use(f"for i in range({lines}): print('%06d' % i, 'x' * 60)\n" + PROGRAM)
    handle = running(kubernetes, nodes=2)
    api = kubernetes.cluster
    kept = [api.kubelet.log_of(pod) for pod in api.pods_of(handle.backend_name)]
    wait_until(lambda: all(len(api.logs.lines(log)) > lines for log in kept), "both have written", 20)
    text, cursor = "", None
    for _ in range(50):
        part = kubernetes.backend.logs(handle, cursor)
        assert len(part.text.encode()) <= LOG_PART_BYTES
        if part.cursor == cursor:
            break
        text, cursor = text + part.text, part.cursor
    for index in (0, 1):
        mine = [
            line.split()[1] for line in text.splitlines() if line.startswith(f"[{index}] ") and line.endswith("xxx")
        ]
        assert mine == [f"{number:06d}" for number in range(lines)]
    kubernetes.finish(handle)


def test_the_health_check_finds_what_is_wrong_and_says_what_to_do(kubernetes: KubernetesCase) -> None:
    kubernetes.backend.sync_teams(["research"])
    kubernetes.use(
        queue="somewhere", priority_classes={"high": "not-there"}, topology_labels=["no.such/label"],
        pools={"h100": {"node_selector": {"gpu": "h100"}}},
    )  # fmt: skip
    kubernetes.cluster.forbidden = {("create", "jobs"), ("patch", "nodes")}
    with kubernetes.skew_clock(600):
        found = kubernetes.backend.check_health()
    wrong = {(finding.check, finding.level) for finding in found.findings if finding.level is not Level.OK}
    assert not found.is_usable
    assert wrong == {
        ("kueue", Level.ERROR), ("priorities", Level.ERROR), ("rights", Level.ERROR), ("rights", Level.WARNING),
        ("clock", Level.WARNING), ("network", Level.WARNING), ("pools", Level.WARNING), ("topology", Level.WARNING),
    }  # fmt: skip
    text = " ".join(finding.detail for finding in found.findings)
    for words in ("create jobs", "patch nodes", "not-there", "no.such/label", "gpu=h100", " s; times", "Kueue"):
        assert words in text, words


@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_a_list_that_is_refused_is_a_missing_right_and_no_outage(kubernetes: KubernetesCase, resource: str) -> None:
    kubernetes.cluster.forbidden = {("list", resource)}
    wrong = [finding for finding in kubernetes.backend.check_health().findings if finding.level is not Level.OK]
    assert "rights" in {finding.check for finding in wrong}
    assert "api server" not in {finding.check for finding in wrong}
    remedies = {finding.check: finding.remedy for finding in wrong}
    assert "rbac.yaml" in remedies["nodes"]


def test_the_health_check_sees_whether_pod_security_is_enforced(kubernetes: KubernetesCase) -> None:
    kubernetes.backend.sync_teams(["research"])

    def of_pod_security() -> Any:
        return next(
            finding for finding in kubernetes.backend.check_health().findings if finding.check == "pod security"
        )

    assert of_pod_security().level is Level.OK
    namespace = names.namespace_of(kubernetes.backend._config, "research")
    found = kubernetes.cluster.store.get("namespaces", "", namespace)
    kept = {key: value for key, value in found["metadata"]["labels"].items() if "pod-security" not in key}
    kubernetes.cluster.store.change("namespaces", found, lambda draft: draft["metadata"].update(labels=kept))
    assert of_pod_security().level is Level.ERROR


def test_nodes_have_pools_accelerators_switches_and_what_is_used(kubernetes: KubernetesCase) -> None:
    labels = {"pool": "h100", "rack": "r7", "zone": "z1", "nvidia.com/gpu.memory": "81559"}
    kubernetes.cluster.add_node("gpu-1", labels=labels, nvidia_com__gpu=8)
    tainted = kubernetes.cluster.add_node("control-plane")
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    kubernetes.cluster.store.change("nodes", tainted, lambda draft: draft["spec"].update(taints=[taint]))
    kubernetes.use(pools={"h100": {"node_selector": {"pool": "h100"}}}, topology_labels=["zone", "rack"])
    handle = running(kubernetes, accelerator="nvidia", processes_per_node=3, pool="h100")
    nodes = {node.name: node for node in kubernetes.backend.nodes()}
    assert "control-plane" not in nodes
    gpu = nodes["gpu-1"]
    assert (gpu.accelerator, gpu.slots, gpu.slots_used, gpu.pools) == ("nvidia", 8, 3, ("h100",))
    assert gpu.topology == ("z1", "r7")
    assert (gpu.accelerator_memory_bytes, nodes["node-1"].accelerator_memory_bytes) == (81559 * 2**20, 0)
    assert (nodes["node-1"].accelerator, nodes["node-1"].slots) == ("cpu", 64)
    kubernetes.cluster.lose_node("node-2")
    wait_until(
        lambda: {n.name: n for n in kubernetes.backend.nodes()}["node-2"].state is NodeState.DOWN, "it is down", 20
    )
    kubernetes.finish(handle)
