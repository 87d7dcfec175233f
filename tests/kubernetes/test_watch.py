"""What is known of Jobs without asking, and when it may be believed."""

from pathlib import Path

import pytest

from athanor.backends.base import BackendUnavailable, Handle, Phase, Presence
from athanor.backends.kubernetes import watch
from athanor.backends.kubernetes.client import client_of, path
from athanor.backends.kubernetes.watch import Watch, watch_of
from deploy.local.handle import wait_until
from tests.backends.cases.kubernetes import KubernetesCase
from tests.kubernetes.double.cluster import running_cluster


def the_watch(case: KubernetesCase) -> Watch:
    found = watch_of(case.backend._key, case.backend._config)
    assert found.wait(10)
    return found


def running(case: KubernetesCase) -> Handle:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.observe(handle).phase is Phase.RUNNING and case.starts(handle) == 1, "it runs", 30)
    return handle


def test_what_the_watch_knows_is_not_asked_for(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes)
    the_watch(kubernetes)
    before = kubernetes.calls()
    for _ in range(20):
        assert kubernetes.observe(handle).presence is Presence.PRESENT
    assert kubernetes.calls() == before
    kubernetes.finish(handle)
    kubernetes.until(handle, Presence.FINISHED)
    assert kubernetes.calls() == before


def test_a_version_that_the_server_has_forgotten_is_listed_anew(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes)
    seen = the_watch(kubernetes)
    lists = kubernetes.calls()
    kubernetes.cluster.store.compact()
    wait_until(lambda: kubernetes.calls() > lists and seen.wait(0), "it has listed again", 20)
    assert kubernetes.observe(handle).presence is Presence.PRESENT
    kubernetes.finish(handle)
    assert kubernetes.until(handle, Presence.FINISHED).exit_status == 0


def test_a_connection_that_ends_is_taken_up_where_it_was(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes)
    seen = the_watch(kubernetes)
    for _ in range(2):
        before = kubernetes.calls()
        kubernetes.cluster.cut_watches()
        wait_until(lambda before=before: kubernetes.calls() >= before + 2 and seen.wait(0), "both follow again", 20)
    kubernetes.finish(handle)
    wait_until(lambda: (job := seen.job(handle.backend_name)) is not None and job.complete, "the end was reported", 20)


def test_an_empty_listing_is_no_absence(kubernetes: KubernetesCase) -> None:
    handles = [running(kubernetes), running(kubernetes)]
    with kubernetes.cluster.faulty("empty_list"):
        the_watch(kubernetes)
        kubernetes.cluster.store.compact()
        wait_until(lambda: the_watch(kubernetes).job(handles[0].backend_name) is None, "the empty listing is read", 20)
        for handle in handles:
            assert kubernetes.observe(handle).presence is Presence.PRESENT
    for handle in handles:
        kubernetes.finish(handle)


def test_many_that_an_empty_listing_left_out_are_unknown_or_asked_for(kubernetes: KubernetesCase) -> None:
    kubernetes.use(watch=False, timeout_seconds=10)
    handles = kubernetes.many(150)
    with kubernetes.cluster.faulty("empty_list"):
        answers = kubernetes.backend.observe(handles)
    found = [answers[handle].presence for handle in handles]
    assert found.count(Presence.PRESENT) == 100
    assert found.count(Presence.UNKNOWN) == 50


def test_a_late_listing_is_brought_up_to_date_by_what_follows(kubernetes: KubernetesCase) -> None:
    first = running(kubernetes)
    kubernetes.cluster.freeze()
    second = running(kubernetes)
    watch.stop_all()
    with kubernetes.cluster.faulty("stale_list"):
        seen = the_watch(kubernetes)
        wait_until(lambda: seen.job(second.backend_name) is not None, "what the listing lacked is reported", 20)
    assert {kubernetes.observe(handle).presence for handle in (first, second)} == {Presence.PRESENT}
    kubernetes.finish(first)
    kubernetes.finish(second)


def test_without_a_watch_the_same_is_said(kubernetes: KubernetesCase) -> None:
    kubernetes.use(watch=False)
    handle = running(kubernetes)
    kubernetes.finish(handle, 83)
    assert kubernetes.until(handle, Presence.FINISHED).exit_status == 83
    assert kubernetes.observe(Handle("athanor-nothing")).presence is Presence.ABSENT


def test_a_server_that_is_away_ends_nothing_and_is_found_again(kubernetes: KubernetesCase) -> None:
    handle = running(kubernetes)
    seen = the_watch(kubernetes)
    with kubernetes.cluster.faulty("error"):
        kubernetes.cluster.cut_watches()
        wait_until(lambda: not seen.wait(0), "its silence is noticed", 20)
        with pytest.raises(BackendUnavailable):
            kubernetes.observe(handle)
        with pytest.raises(BackendUnavailable):
            kubernetes.backend.list_ours()
    wait_until(lambda: seen.wait(0), "it is heard again", 20)
    assert kubernetes.observe(handle).presence is Presence.PRESENT
    kubernetes.finish(handle)


def test_pages_that_are_forgotten_midway_are_listed_anew(kubernetes: KubernetesCase) -> None:
    kubernetes.many(25)
    client = client_of(kubernetes.backend._key, kubernetes.backend._config)
    names, pages = set(), 0
    for page in client.list(path("batch/v1", "jobs"), page=10):
        pages += 1
        names |= {item["metadata"]["name"] for item in page["items"]}
        if pages == 1:
            kubernetes.cluster.store.compact()
    assert len(names) == 25
    assert pages == 4


def test_what_is_kept_of_many_is_small(kubernetes: KubernetesCase) -> None:
    kubernetes.many(2000)
    seen = the_watch(kubernetes)
    assert len(seen.jobs.items) == 2000
    state = next(iter(seen.jobs.items.values()))
    assert not hasattr(state, "__dict__")
    assert sum(len(str(getattr(state, name))) for name in state.__slots__) < 600


def test_several_clusters_are_kept_apart(kubernetes: KubernetesCase, tmp_path: Path) -> None:
    handle = running(kubernetes)
    (tmp_path / "second").mkdir()
    with running_cluster(tmp_path / "other") as cluster:
        other = KubernetesCase(cluster, tmp_path / "second")
        assert other.observe(handle).presence is Presence.ABSENT
        theirs = running(other)
        assert other.backend.list_ours() == {theirs.backend_name}
        assert kubernetes.backend.list_ours() == {handle.backend_name}
        other.finish(theirs)
        other.until(theirs, Presence.FINISHED)
    kubernetes.finish(handle)


def test_a_watch_that_nobody_asks_ends(kubernetes: KubernetesCase, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = the_watch(kubernetes)
    monkeypatch.setattr(watch, "UNUSED_SECONDS", 0.0)
    wait_until(lambda: not seen.is_alive, "it has ended", 20)
    monkeypatch.undo()
    assert the_watch(kubernetes) is not seen
