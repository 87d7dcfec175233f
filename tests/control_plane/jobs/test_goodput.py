"""The slots of a job are accounted for completely, whatever its history, and losses have their cause."""

import random
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from athanor.budgets.goodput import with_costs
from athanor.jobs.goodput import AttemptFacts, Entry, Interruption, entries, interruptions
from athanor.jobs.reasons import Reason
from athanor.jobs.timeline import Activity, Span, timeline, worker_groups
from tests.control_plane.jobs.histories import START, History, at, histories, second_of


def account(
    job: History, end: float, attempts: list[AttemptFacts], *, trains: bool = True
) -> tuple[list[Entry], list[Interruption]]:
    """Return the entries and interruptions of a job, after checking that they account for all of its attempts."""
    facts = {"created_at": START, "end": at(end), "launched": job.launched}
    spans = timeline(job.events, trains=trains, **facts)
    interrupted = interruptions(worker_groups(job.events, **facts), attempts)
    found = entries(spans, attempts, interrupted)
    for attempt in attempts:
        own: dict[tuple[datetime, datetime], int] = {}
        for entry in (entry for entry in found if entry.span.attempt == attempt.number):
            assert entry.slots > 0
            own[entry.span.start, entry.span.end] = own.get((entry.span.start, entry.span.end), 0) + entry.slots
        if attempt.launched_at is None or attempt.launched_at >= attempt.end:
            assert own == {}
            continue
        assert [start for start, _ in own] == [attempt.launched_at, *(end for _, end in [*own][:-1])]
        assert [*own][-1][1] == attempt.end
        assert all(start < end for start, end in own)
        assert set(own.values()) == {attempt.slots}
    assert {entry.span.attempt for entry in found} <= {each.number for each in attempts}
    assert {entry.cause for entry in found} <= {None, *range(len(interrupted))}
    return found, interrupted


def seconds(found: list[Entry], cause: int | None) -> dict[str, float]:
    """Return the slot-seconds of the entries with this cause, by activity."""
    sums: dict[str, float] = {}
    for entry in found:
        if entry.cause == cause:
            activity = entry.span.activity.value
            sums[activity] = sums.get(activity, 0) + entry.span.duration.total_seconds() * entry.slots
    return sums


def a_killed_rank() -> History:
    """A job that restarts in place at 30 s, and loses its node at 60 s."""
    job = History()
    job.starts(0)
    job.reports(4, "training.started", step=0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(20, "checkpoint.saved", step=10, seconds=0, blocked_seconds=0, final=False)
    job.reports(
        30, "generation.started", generation=1, because="rank 1 was killed by SIGKILL", end_class="process_killed",
        node="gpu-1", step=17,
    )  # fmt: skip
    job.reports(33, "training.started", step=10)
    job.reports(35, "phase.finished", phase="first_step", seconds=1)
    job.moves((60, "queued"))
    job.starts(61)
    job.reports(66, "training.started", step=10)
    job.reports(67, "phase.finished", phase="first_step", seconds=1)
    job.moves((67, "running"), (90, "succeeded"))
    return job


def test_losses_hangs_and_start_ups_have_their_cause() -> None:
    attempts = [
        AttemptFacts(1, at(2), at(60), "node_lost", "gpu-2 is gone.", "gpu-2", 30),
        AttemptFacts(2, at(63), at(89), "completed"),
    ]
    found, interrupted = account(a_killed_rank(), 90, attempts)
    assert interrupted == [
        Interruption(1, 0, at(30), True, "process_killed", "rank 1 was killed by SIGKILL", "gpu-1", 7),
        Interruption(1, 1, at(60), False, "node_lost", "gpu-2 is gone.", "gpu-2", 20),
    ]
    assert seconds(found, None) == {"startup": 3, "training": 15 + 22}
    assert seconds(found, 0) == {"lost": 10, "startup": 5}
    assert seconds(found, 1) == {"lost": 25, "startup": 4}


def test_of_the_reports_of_many_nodes_that_of_a_consequence_is_not_the_cause() -> None:
    job = a_killed_rank()
    restart = next(event for event in job.events if event.type == "generation.started")
    other = {"generation": 1, "because": "a peer is gone", "end_class": "collective_timeout", "node": "gpu-2"}
    job.events.insert(job.events.index(restart), type(restart)(restart.type, at(29), restart.actor, other))
    attempts = [AttemptFacts(1, at(2), at(60)), AttemptFacts(2, at(63), at(89), "completed")]
    _, interrupted = account(job, 90, attempts)
    assert [(each.reason, each.node, each.steps_lost) for each in interrupted] == [("process_killed", "gpu-1", 7)]


def test_steps_that_were_repeated_twice_count_for_the_workers_that_did_them() -> None:
    """The second workers resumed from step 10 and the third from the start."""
    job = History()
    job.starts(0)
    job.reports(4, "training.started", step=0)
    for generation, (second, done, resumed) in enumerate([(30, 15, 10), (60, 14, 0)], 1):
        job.reports(second, "generation.started", generation=generation, end_class="process_killed", step=done)
        job.reports(second + 3, "training.started", step=resumed)
    job.moves((70, "running"), (90, "succeeded"))
    _, interrupted = account(job, 90, [AttemptFacts(1, at(2), at(90), "completed")])
    assert [each.steps_lost for each in interrupted] == [15, 4]


def test_an_attempt_that_hung_names_the_node_with_the_ranks_that_held_up_the_others() -> None:
    job = a_killed_rank()
    lost = next(event for event in job.events if event.data.get("to") == "queued")
    for node, ranks in (("gpu-3", [5]), ("gpu-4", [])):
        hang = {"seconds": 5, "is_hang": True, "node": node, "ranks": ranks}
        job.events.insert(job.events.index(lost), type(lost)("progress.stalled", at(55), "att_1", hang))
    attempts = [AttemptFacts(1, at(2), at(60), "hang"), AttemptFacts(2, at(63), at(89), "completed")]
    found, interrupted = account(job, 90, attempts)
    assert [(each.reason, each.node) for each in interrupted] == [("process_killed", "gpu-1"), ("hang", "gpu-3")]
    assert seconds(found, 1) == {"lost": 15, "stalled": 10, "startup": 4}


def test_time_that_no_event_covers_is_not_attributed() -> None:
    job = History()
    job.starts(0)
    job.moves((5, "running"), (20, "succeeded"))
    found, _ = account(job, 20, [AttemptFacts(1, at(2), at(25), "completed")])
    assert [(entry.span.activity.value, second_of(entry.span.start)) for entry in found] == [
        ("startup", 2), ("training", 5), ("unattributed", 20),
    ]  # fmt: skip
    found, _ = account(History(), 30, [AttemptFacts(1, at(2), at(25), "unknown_loss")])
    assert [entry.span.activity for entry in found] == [Activity.UNATTRIBUTED]


def test_the_slots_of_a_spare_node_are_idle_from_the_placement_of_ranks_on() -> None:
    """Two nodes and a spare one, which helps to prepare data at first, and takes the place of a lost node at 33 s."""
    attempts = [
        AttemptFacts(1, at(2), at(60), "node_lost", slots=6, nodes=3, placed=((at(4), 2), (at(33), 2))),
        AttemptFacts(2, at(63), at(89), "completed", slots=6, nodes=3),
    ]
    found, _ = account(a_killed_rank(), 90, attempts)
    assert seconds(found, None) == {"startup": 2 * 6 + 1 * 4, "training": 15 * 4 + 22 * 6, "idle": 56 * 2}
    assert seconds(found, 0) == {"lost": 10 * 4, "startup": 5 * 4}
    assert seconds(found, 1) == {"lost": 25 * 4, "startup": 4 * 6}, "the next attempt begins with all slots"


def test_the_slots_of_lost_nodes_are_idle_while_the_run_continues_on_fewer() -> None:
    """Of two nodes one is lost at 30 s; the other one has ranks again at 33 s, and both at 50 s."""
    placed = ((at(4), 2), (at(33), 1), (at(50), 2))
    attempts = [
        AttemptFacts(1, at(2), at(60), "node_lost", slots=8, nodes=2, placed=placed),
        AttemptFacts(2, at(63), at(89), "completed", slots=8, nodes=2),
    ]
    found, _ = account(a_killed_rank(), 90, attempts)
    assert seconds(found, None) == {"startup": 3 * 8, "training": 15 * 8 + 22 * 8, "idle": 17 * 4}
    assert seconds(found, 0) == {"lost": 10 * 8, "startup": 3 * 8 + 2 * 4}
    assert seconds(found, 1) == {"lost": 15 * 4 + 10 * 8, "startup": 4 * 8}


@given(histories(), st.booleans(), st.randoms(use_true_random=False), st.data())
def test_the_parts_of_an_attempt_sum_to_its_wall_time_whatever_its_events(
    drawn: tuple[History, float], trains: bool, chance: random.Random, data: st.DataObject
) -> None:
    """Events are missing, doubled and out of order, and the attempt's times are of another clock."""
    job, end = drawn
    damage = data.draw(st.sampled_from(["none", "missing", "doubled", "shuffled"]))
    if damage == "missing":
        job.events = [event for event in job.events if chance.random() < 0.7]
    elif damage == "doubled":
        job.events = [event for event in job.events for _ in range(chance.choice([1, 2]))]
    elif damage == "shuffled":
        chance.shuffle(job.events)
    second = st.floats(min_value=-50, max_value=end + 50)
    attempts = [
        AttemptFacts(
            number, data.draw(st.none() | st.builds(at, second)), at(data.draw(second)),
            data.draw(st.sampled_from(["", *(reason.value for reason in Reason)])),
            last_step=data.draw(st.none() | st.integers(min_value=0, max_value=5)),
            slots=data.draw(st.integers(min_value=1, max_value=9)),
            nodes=data.draw(st.integers(min_value=1, max_value=9)),
            placed=data.draw(st.lists(st.tuples(st.builds(at, second), st.integers(1, 12))).map(sorted)),
        )
        for number in range(1, job.attempts + 1)
    ]  # fmt: skip
    account(job, end, attempts, trains=trains)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**12), st.integers(1, 64)), min_size=1, max_size=50),
    st.integers(min_value=0, max_value=10**15),
)
def test_the_parts_of_a_cost_sum_to_it_and_follow_the_weights(drawn: list[tuple[int, int, int]], cost: int) -> None:
    weights = [weight for weight, _, _ in drawn]
    spent = [
        Entry(Span(START, START + timedelta(microseconds=duration), Activity.TRAINING, 1), None, slots)
        for _, duration, slots in drawn
    ]
    items = list(with_costs(spent, cost, weights))
    assert sum(item.cost for item in items) == cost
    total = sum(weights)
    for item, weight in zip(items, weights, strict=True):
        assert not total or abs(item.cost * total - cost * weight) < total
        assert item.slot_time == item.entry.slots * item.entry.span.duration
