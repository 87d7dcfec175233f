"""The contract of backends, checked on each kind. A new kind adds a module in `cases` and a line in conftest.py."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pytest
from pydantic import ValidationError

from athanor.backends.base import (
    BackendUnavailable,
    Cause,
    ChecksHealth,
    DrainsNodes,
    Handle,
    ListsNodes,
    ListsOurs,
    Phase,
    Presence,
    ReplacesNodes,
)
from athanor.backends.facts import Level, NodeState
from deploy.local.handle import wait_until
from tests.backends.cases.base import FORGETFUL, SECRET, UNANSWERED, Case, Fault

HOSTILE = "x'; kill 0; $(kill 0) `kill 0` \"\n#SBATCH --wrap=id"
NEVER = Handle("athanor-00000000000000000000000000")


def test_render_is_pure_and_shows_no_secret(case: Case) -> None:
    plan = case.plan()
    rendered = case.backend.render(plan)
    assert rendered == case.backend.render(plan)
    assert rendered.backend_name == plan.backend_name
    assert SECRET not in rendered.text
    assert SECRET not in repr(rendered)
    assert SECRET not in str(rendered.payload)


def test_what_was_never_submitted_is_absent(case: Case) -> None:
    assert case.observe(NEVER).presence is Presence.ABSENT


def test_a_submission_runs_and_its_end_is_seen(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.observe(handle).phase is Phase.RUNNING and case.starts(handle) == 1, "it runs", 30)
    case.finish(handle)
    ended = case.until(handle, Presence.FINISHED)
    assert ended.exit_status == 0
    assert ended.cause is None


def test_the_exit_status_of_the_program_is_told(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    case.finish(handle, 83)
    assert case.until(handle, Presence.FINISHED).exit_status == 83


def test_a_submission_of_two_nodes_starts_one_program_on_each(case: Case) -> None:
    if case.most_nodes < 2:
        pytest.skip("it is one node")
    handle = case.backend.submit(case.submission(nodes=2, processes_per_node=2))
    if type(case).starts is not Case.starts:  # a scripted backend starts a submission, not programs
        assert case.starts(handle) == 1
        return
    wait_until(lambda: case.starts(handle) == 2, "both have started", 30)
    seen = [json.loads((case.signals / f"environment-{handle.backend_name}-{i}").read_text()) for i in (0, 1)]
    assert [each["ATHANOR_NODE_INDEX"] for each in seen] == ["0", "1"]
    assert all(each["ATHANOR_ATTEMPT_TOKEN"] == SECRET for each in seen)
    assert all(each["ATHANOR_NODE_ADDRESS"] and each["ATHANOR_NODE_NAME"] for each in seen)
    case.finish(handle)
    assert case.until(handle, Presence.FINISHED).exit_status == 0


def test_submitting_again_adopts_while_it_runs_and_after_it_ended(case: Case) -> None:
    submission = case.submission()
    handle = case.backend.submit(submission)
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    assert case.backend.submit(submission) == handle
    case.finish(handle)
    case.until(handle, Presence.FINISHED)
    assert case.backend.submit(submission) == handle
    assert case.observe(handle).presence is Presence.FINISHED
    assert case.starts(handle) == 1


def test_a_replacement_of_a_node_is_requested_once_and_is_no_attempt(case: Case) -> None:
    if not isinstance(case.backend, ReplacesNodes):
        pytest.skip("it replaces no nodes, or does so by itself")
    plan = case.plan(nodes=2, min_nodes=1)
    handle = case.backend.submit(case.backend.render(plan))
    runs_programs = type(case).starts is Case.starts
    wait_until(lambda: case.starts(handle) == (2 if runs_programs else 1), "it has started", 30)
    plan = replace(plan, avoid_nodes=case.observe(handle).nodes)
    asked = case.backend.render_replacement(plan, node_index=1, number=1)
    with meeting(case, Fault.LOST_ANSWER):
        case.backend.submit(asked)
    replacement = case.backend.submit(asked)
    assert case.backend.submit(asked) == replacement
    assert replacement.backend_name == handle.backend_name
    if runs_programs:
        wait_until(lambda: case.starts(handle) == 3, "its agent has started", 30)
    for known in (handle, Handle(handle.backend_name)):
        seen = case.observe(known)
        assert (seen.phase, seen.replacements) == (Phase.RUNNING, {(1, 1)})
    if isinstance(case.backend, ListsOurs):
        assert case.backend.list_ours() == {handle.backend_name}
    case.finish(handle)
    assert case.until(handle, Presence.FINISHED).exit_status == 0
    assert case.starts(handle) == (3 if runs_programs else 1)


def test_one_whose_id_was_never_saved_is_found_by_its_name(case: Case) -> None:
    submission = case.submission()
    handle = case.backend.submit(submission)
    nameless = Handle(handle.backend_name)
    assert case.observe(nameless).presence is Presence.PRESENT
    assert case.backend.submit(submission) == handle
    case.backend.cancel(nameless)
    case.backend.cancel(nameless, force=True)


@contextmanager
def meeting(case: Case, fault: Fault) -> Iterator[None]:
    """Observe under the fault: the result is a status, possibly a cached one, or that nothing is known."""
    with case.faulty(fault) or nullcontext():
        try:
            yield
        except BackendUnavailable:
            assert fault in UNANSWERED


@pytest.mark.parametrize("fault", list(Fault))
def test_no_fault_of_a_call_starts_twice_or_ends_anything(case: Case, fault: Fault) -> None:
    if case.faulty(fault) is None:
        pytest.skip("nothing is between us and it that could fail")
    submission = case.submission()
    with meeting(case, fault):
        case.backend.submit(submission)
    handle = case.backend.submit(submission)
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    with meeting(case, fault):
        # A listing that forgets looks like the truth in one observation: callers must observe more than once.
        seen = case.observe(handle).presence
        assert seen is Presence.PRESENT or (fault in FORGETFUL and seen in (Presence.ABSENT, Presence.UNKNOWN))
    if isinstance(case.backend, ListsOurs):
        with meeting(case, fault):
            assert handle.backend_name in case.backend.list_ours() or fault in FORGETFUL
    with case.faulty(fault) or nullcontext(), suppress(BackendUnavailable):  # some need no call for it
        case.backend.logs(handle)
    assert case.observe(handle).presence is Presence.PRESENT
    with case.faulty(fault) or nullcontext(), suppress(BackendUnavailable):
        case.backend.submit(submission)
    assert case.observe(handle).presence is Presence.PRESENT
    with case.faulty(fault) or nullcontext(), suppress(BackendUnavailable):
        case.backend.cancel(handle)
    case.finish(handle)
    case.until(handle, Presence.FINISHED, 60)
    assert case.starts(handle) == 1
    case.backend.cancel(handle, force=True)


def test_submitted_again_while_listings_forget_it_still_starts_once(case: Case) -> None:
    """The submission's first query reports that nothing exists."""
    submission = case.submission()
    first = case.backend.submit(submission)
    wait_until(lambda: case.starts(first) == 1, "it has started", 30)
    if case.faulty(Fault.EMPTY_LIST) is None:
        pytest.skip("nothing is between us and it that could fail")
    with case.faulty(Fault.EMPTY_LIST) or nullcontext():
        again = case.backend.submit(submission)
    assert case.observe(first).presence is Presence.PRESENT
    case.finish(first)
    ended = case.until(first, Presence.FINISHED, 60)
    assert ended.exit_status == 0
    wait_until(lambda: case.observe(again).presence is Presence.FINISHED, "whatever was made has ended", 60)
    assert case.starts(first) == 1


def test_cancel_is_idempotent_and_may_name_what_is_not_there(case: Case) -> None:
    case.backend.cancel(NEVER)
    case.backend.cancel(NEVER, force=True)
    handle = case.backend.submit(case.submission())
    for _ in range(2):
        case.backend.cancel(handle)
        case.backend.cancel(handle, force=True)


def test_cancelled_while_it_runs_it_ends(case: Case) -> None:
    if type(case).starts is not Case.starts:
        pytest.skip("nothing runs there that could end by itself")
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    case.backend.cancel(handle)
    ended = case.until(handle, Presence.FINISHED, 60)
    assert ended.exit_status != 0
    case.backend.cancel(handle)  # what has ended stays ended
    assert case.observe(handle).presence is Presence.FINISHED


def test_cancelled_while_it_waits_it_never_starts(case: Case) -> None:
    full = case.full()
    if full is None:
        pytest.skip("it has no queue of its own")
    with full:
        handle = case.backend.submit(case.submission())
        wait_until(lambda: case.observe(handle).phase is Phase.PENDING, "it waits", 30)
        assert case.observe(handle).explanation
        case.backend.cancel(handle)
        ended = case.until(handle, Presence.FINISHED)
    assert ended.cause is Cause.CANCELLED
    assert case.starts(handle) == 0


def test_what_waits_starts_when_there_is_room(case: Case) -> None:
    full = case.full()
    if full is None:
        pytest.skip("it has no queue of its own")
    with full:
        handle = case.backend.submit(case.submission())
        wait_until(lambda: case.observe(handle).phase is Phase.PENDING, "it waits", 30)
        assert case.starts(handle) == 0
    wait_until(lambda: case.observe(handle).phase is Phase.RUNNING and case.starts(handle) == 1, "it runs", 60)
    case.finish(handle)
    case.until(handle, Presence.FINISHED)


@pytest.mark.slow
def test_a_lost_node_is_told_as_such(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    if not case.lose_node(handle):
        pytest.skip("its only node is the one this test runs on")
    ended = case.until(handle, Presence.FINISHED, 90)
    assert ended.cause is Cause.NODE_LOST
    assert case.starts(handle) == 1


def test_a_preempted_submission_is_told_as_such_and_not_begun_anew(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    if not case.preempt(handle):
        pytest.skip("nobody has a higher priority there")
    ended = case.until(handle, Presence.FINISHED, 90)
    assert ended.cause is Cause.PREEMPTED
    assert case.starts(handle) == 1


def test_one_that_was_cancelled_behind_our_back_has_ended(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    assert case.cancel_behind_our_back(handle)
    ended = case.until(handle, Presence.FINISHED, 60)
    assert ended.exit_status != 0 or ended.cause is Cause.CANCELLED


def test_spans_are_right_though_the_clock_there_is_wrong(case: Case) -> None:
    skewed = case.skew_clock(600)
    if skewed is None:
        pytest.skip("it has our clock")
    with skewed:
        handle = case.backend.submit(case.submission())
        seen = [case.observe(handle)]

        def runs() -> bool:
            seen.append(case.observe(handle))
            return seen[-1].phase is Phase.RUNNING

        wait_until(runs, "it runs", 30)
        seconds = seen[-1].running_seconds  # of the same observation: the next may be older
        assert seconds is not None
        assert 0 <= seconds < 300
    case.finish(handle)


def test_what_the_programs_wrote_can_be_read_on_from_a_cursor(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    wait_until(lambda: "hello from the program \u00e9" in case.backend.logs(handle).text, "it has written", 30)
    first = case.backend.logs(handle)
    again = case.backend.logs(handle, first.cursor)
    assert "hello" not in again.text
    case.finish(handle)
    case.until(handle, Presence.FINISHED)
    assert "hello from the program \u00e9" in case.backend.logs(handle).text
    assert case.backend.logs(NEVER).text == ""


def test_hostile_names_and_values_are_only_names_and_values(case: Case) -> None:
    environment = {**case.plan().environment, "HOSTILE": HOSTILE}
    plan = case.plan(job_name=HOSTILE, team=HOSTILE, project=HOSTILE)
    plan.environment.update(environment, CONFORMANCE_NAME=plan.backend_name)
    handle = case.backend.submit(case.backend.render(plan))
    wait_until(lambda: case.starts(handle) == 1, "it has started", 30)
    if type(case).starts is Case.starts:
        (written,) = case.signals.glob(f"environment-{handle.backend_name}-*")
        assert json.loads(written.read_text())["HOSTILE"] == HOSTILE
    case.finish(handle)
    case.until(handle, Presence.FINISHED)


def test_each_handle_gets_an_answer(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    answers = case.backend.observe([handle, NEVER])
    assert set(answers) == {handle, NEVER}
    assert case.backend.observe([]) == {}
    case.finish(handle)


def test_five_thousand_are_observed_by_few_calls(case: Case) -> None:
    handles = case.many(5000)
    if handles is None:
        pytest.skip("it cannot hold so many")
    before = case.calls()
    answers = case.backend.observe(handles)
    after = case.calls()
    assert before is not None
    assert after is not None
    assert after - before <= 12  # pages of 500 and a listing more, or one call
    assert all(answers[handle].presence is Presence.PRESENT for handle in handles)


def test_a_backend_that_lists_what_is_ours_names_the_living_alone(case: Case) -> None:
    if not isinstance(case.backend, ListsOurs):
        pytest.skip("it does not declare this capability")
    assert case.backend.list_ours() == frozenset()
    handle = case.backend.submit(case.submission())
    case.until(handle, Presence.PRESENT)
    assert case.backend.list_ours() == {handle.backend_name}
    case.finish(handle)
    case.until(handle, Presence.FINISHED)
    wait_until(lambda: case.backend.list_ours() == frozenset(), "it is not listed any more", 30)  # type: ignore[attr-defined]


def test_a_configuration_that_does_not_fit_is_refused_by_its_field(case: Case) -> None:
    kind = type(case.backend)
    assert kind.configuration.model_config["extra"] == "forbid"
    assert "profile" in kind.configuration.model_fields
    with pytest.raises(ValidationError) as refused:
        kind(**{"profile": {"fabric": "string and two tins"}, "no_such_field": 1})
    places = [error["loc"] for error in refused.value.errors()]
    assert ("no_such_field",) in places
    assert any("fabric" in place for place in places)


def test_a_health_check_finds_it_usable_and_says_what_to_do_about_the_rest(case: Case) -> None:
    if not isinstance(case.backend, ChecksHealth):
        pytest.skip("it has no health check")
    found = case.backend.check_health()
    assert found.is_usable, found.findings
    assert found.version
    json.dumps(dict(found.facts))
    for finding in found.findings:
        assert finding.check
        assert finding.detail
        assert finding.remedy or finding.level is Level.OK, finding


def test_a_health_check_of_what_does_not_answer_is_a_finding(case: Case) -> None:
    if not isinstance(case.backend, ChecksHealth):
        pytest.skip("it has no health check")
    broken = case.faulty(Fault.ERROR)
    if broken is None:
        pytest.skip("there is nothing between us and it")
    with broken:
        found = case.backend.check_health()
    assert not found.is_usable
    assert any(finding.level is Level.ERROR and finding.remedy for finding in found.findings)


def test_nodes_are_told_apart_and_add_up(case: Case) -> None:
    if not isinstance(case.backend, ListsNodes):
        pytest.skip("it does not know its nodes")
    nodes = case.backend.nodes()
    assert nodes
    assert len({node.name for node in nodes}) == len(nodes)
    for node in nodes:
        assert node.state is NodeState.READY
        assert 0 <= node.slots_used <= node.slots
        assert node.slots > 0


def test_a_drained_node_takes_no_new_work_until_it_is_given_back(case: Case) -> None:
    if not isinstance(case.backend, DrainsNodes) or not isinstance(case.backend, ListsNodes):
        pytest.skip("its nodes cannot be drained")

    def state(name: str) -> NodeState:
        assert isinstance(case.backend, ListsNodes)
        return next(node.state for node in case.backend.nodes() if node.name == name)

    name = case.backend.nodes()[0].name
    for _ in range(2):
        case.backend.drain(name, "it is looked at; 'quoted' $(hostile)")
    wait_until(lambda: state(name) is NodeState.DRAINED, "it is drained", 30)
    for _ in range(2):
        case.backend.undrain(name)
    wait_until(lambda: state(name) is NodeState.READY, "it is ready again", 30)
