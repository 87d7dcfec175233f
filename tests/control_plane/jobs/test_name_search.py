"""A search for a part of a name finds what a comparison of all names finds, of one's own teams, and by an index."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from athanor.accounts.models import Membership, Team, User
from athanor.accounts.selectors import principal_of
from athanor.core import ids, tenancy
from athanor.jobs import event_feed, events, name_search, selectors
from athanor.jobs.models import Job, NameSearch
from tests import many_jobs
from tests.control_plane import drive

NAMES = ["ab", "abc", "llama-7b", "Llama.7B-lr3", "lla", "x_y-z", "100%-of-it", "a_b_c", "abcabcabc", "STRASSE-1"]
TEXTS = [
    "a", "ab", "abc", "ABC", "bca", "llama", "MA-7b", "7b", "lr3", ".7b-", "%-o", "_b_", "x_y", "y.z", "strasse",
    "nothing-like-it", "100%", "100_", "   ", "\x1fab", "abc\x1f", "ama-7b\n", "\N{LATIN SMALL LETTER SHARP S}e-",
    "'", "{}", "\\b",
]  # fmt: skip


def found(user: User, text: str, **filters: Any) -> set[str]:
    jobs = selectors.filtered(principal_of(user), statuses=[], labels={}, query=text, **filters)
    return set(jobs.values_list("name", flat=True))


@pytest.mark.django_db
@pytest.mark.parametrize("numbered", [True, False])
def test_the_index_finds_what_a_comparison_of_all_names_finds(
    submit: Callable[..., Job], user: User, team: Team, other_team: Team, numbered: bool
) -> None:
    one = submit(name="the-first-abc")
    for name in NAMES:
        copy = Job.objects.get(pk=one.pk)
        copy.pk, copy.name, copy.event_seq = ids.job_id(), name, 1
        copy.save(force_insert=True)
        events.first(copy, "job.submitted", actor="ada", data={})
    if numbered:
        event_feed.assign_numbers()
        assert NameSearch.objects.count() == len(NAMES) + 1
    else:
        assert not NameSearch.objects.exists()
    tenancy.restrict([team.id])
    names = [*NAMES, "the-first-abc"]
    for text in TEXTS:
        compared = set(Job.objects.filter(name__icontains=text).values_list("name", flat=True))
        assert found(user, text) == compared, repr(text)
        if text.isascii():
            assert compared == {name for name in names if text.upper() in name.upper()}, repr(text)
    for text in (one.pk, one.pk[:12], one.pk[-6:], one.pk[-8:].lower(), one.pk[-20:]):
        assert "the-first-abc" in found(user, text), text
    assert found(user, "llama", team="blue") == set()
    with transaction.atomic():
        assert found(user, "llama", team="red") == {"llama-7b", "Llama.7B-lr3"}
        assert NameSearch.objects.count() == len(names) * numbered, "the search is over, though the transaction is not"


@pytest.mark.django_db
def test_a_team_finds_nothing_of_another(
    submit: Callable[..., Job], user: User, team: Team, other_team: Team, make_user: Callable[..., User]
) -> None:
    submit(name="secret-plan")
    event_feed.assign_numbers()
    stranger = make_user("eve", other_team)
    tenancy.restrict([other_team.id])
    assert found(stranger, "secret") == set()
    assert name_search.candidates([team.id, other_team.id], "secret", 10, may_end_id=False) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('athanor.search', '', true), set_config('athanor.search_id', '', true)")
    assert NameSearch.objects.count() == 0
    Membership.objects.create(user=stranger, team=team)
    tenancy.restrict([team.id, other_team.id])
    assert found(stranger, "secret") == {"secret-plan"}


@pytest.mark.django_db
def test_a_deleted_job_leaves_no_row(submit: Callable[..., Job]) -> None:
    job = submit(name="to-delete")
    event_feed.assign_numbers()
    assert NameSearch.objects.filter(job=job).exists()
    tenancy.see_all()
    NameSearch.objects.filter(job=job).delete()
    assert not NameSearch.objects.filter(job=job).exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("text", ["zzz-no-such", "ama-996-lr3"])
def test_a_rare_text_is_found_by_the_index_and_a_frequent_one_in_the_order_of_jobs(
    submit: Callable[..., Job], user: User, team: Team, text: str
) -> None:
    many_jobs.fill(drive.start(submit()), 20_000)
    many_jobs.settle()
    tenancy.restrict([team.id])
    try:
        jobs = selectors.filtered(principal_of(user), statuses=[], labels={}, query=text)
        plan = jobs.order_by("-pk").values_list("pk", flat=True)[:51].explain()
        assert "unnest" in plan, plan
        assert "Seq Scan on jobs_job" not in plan, plan
        with transaction.atomic(), connection.cursor() as cursor:
            asked = {"text": text, "team": team.id, "separator": name_search.SEPARATOR, "end": False, "letters": 6}
            cursor.execute(name_search.SET, asked)
            cursor.execute(f"EXPLAIN {name_search.FIND} LIMIT 2001")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Bitmap Index Scan on jobs_by_part_of_name" in plan, plan
        frequent = selectors.filtered(principal_of(user), statuses=[], labels={}, query="llama")
        plan = frequent.order_by("-pk").values_list("pk", flat=True)[:51].explain()
        assert "Index Only Scan using jobs_of_a_team" in plan, plan
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET athanor.teams")
