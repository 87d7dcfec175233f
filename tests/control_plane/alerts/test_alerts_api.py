"""The API of rules, alerts, inbox and preferences, and what members of other teams see of them."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Membership, Team, User
from athanor.alerts import services
from athanor.alerts.evaluating import evaluate_due
from athanor.alerts.models import AlertRule, Notification
from tests.control_plane.alerts.conftest import MFU, Run
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db

RULE = {"name": "low MFU", "measure": "series_below", "series": MFU, "threshold": 0.28}


def test_a_rule_is_made_changed_and_deleted_and_each_is_audited(api: Api) -> None:
    answer = api.send("POST", "alert-rules", {**RULE, "for_seconds": 300, "labels": {"tier": "gold"}})
    assert answer.status_code == 201, answer.content
    made = answer.json()
    expected = {"team": "red", **RULE, "clear_threshold": None, "severity": "warning", "recipients": "owner"}
    assert {name: made[name] for name in expected} == expected
    path = f"alert-rules/{made['id']}"
    assert api.send("PATCH", path, {"threshold": 0.25, "enabled": False}).json()["threshold"] == 0.25
    assert api.send("GET", path).json() == api.send("GET", "alert-rules").json()["items"][0]
    assert api.send("DELETE", path).status_code == 204
    assert api.send("GET", path).status_code == 404
    actions = AuditEvent.objects.filter(action__startswith="alert_rule.").order_by("seq")
    assert list(actions.values_list("action", flat=True)) == [
        "alert_rule.create", "alert_rule.change", "alert_rule.delete",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"series": ""}, "/series"),
        ({"measure": "no_progress"}, "/series"),
        ({"measure": "budget_used", "series": "", "job_name": "x"}, "/job_name"),
        ({"clear_threshold": 0.2}, "/clear_threshold"),
        ({"measure": "series_above", "clear_threshold": 0.3}, "/clear_threshold"),
        ({"threshold": 10**400}, "/threshold"),
        ({"threshold": "0.2"}, "/threshold"),
        ({"measure": "weather"}, "/measure"),
        ({"labels": {"tier": 1}}, "/labels/tier"),
        ({"thresholds": 1}, "/thresholds"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_naming_the_field(
    api: Api, changes: dict[str, Any], pointer: str
) -> None:
    answer = api.send("POST", "alert-rules", {**RULE, **changes})
    assert answer.status_code == 422, answer.content
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


def test_names_are_unique_and_rules_are_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_RULES_PER_TEAM", 2)
    assert api.send("POST", "alert-rules", RULE).status_code == 201
    again = api.send("POST", "alert-rules", RULE)
    assert (again.status_code, again.json()["code"]) == (409, "alert_rule_exists")
    assert api.send("POST", "alert-rules", {**RULE, "name": "2"}).status_code == 201
    full = api.send("POST", "alert-rules", {**RULE, "name": "3"})
    assert (full.status_code, full.json()["code"]) == (409, "too_many_alert_rules")


def test_a_viewer_sees_rules_and_makes_none(
    api_of: Callable, make_user: Callable, team: Team, make_rule: Callable[..., AlertRule]
) -> None:
    rule = make_rule()
    viewer: Api = api_of(make_user("vi", team, "viewer"), team)
    assert viewer.send("GET", f"alert-rules/{rule.id}").status_code == 200
    for method, path, body in (
        ("POST", "alert-rules", RULE),
        ("PATCH", f"alert-rules/{rule.id}", {}),
        ("DELETE", f"alert-rules/{rule.id}", None),
    ):
        assert viewer.send(method, path, body).status_code == 403


def test_the_inbox_is_read_and_marked(
    api: Api, running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    make_rule()
    running(name="one").report(0.1)
    running(name="two").report(0.1)
    evaluate_due()
    alerts = api.send("GET", "alerts?state=firing").json()["items"]
    assert {alert["subject_name"] for alert in alerts} == {"one", "two"}
    assert {alert["rule"] for alert in alerts} == {"low MFU"}
    assert api.send("GET", "alerts?state=resolved").json()["items"] == []
    assert api.send("GET", "alerts?state=x").status_code == 422
    inbox = api.send("GET", "notifications").json()["items"]
    assert sorted(note["title"] for note in inbox) == ["low MFU: one", "low MFU: two"]
    assert {(note["kind"], note["read_at"], note["mail_state"]) for note in inbox} == {("firing", None, None)}
    assert api.send("GET", "notifications:unread").json() == {"unread": 2}
    assert api.send("POST", "notifications:read", {"ids": [inbox[0]["id"]]}).json() == {"unread": 1}
    assert api.send("POST", "notifications:read", {}).json() == {"unread": 0}


def test_another_team_and_other_members_see_nothing_of_it(
    api: Api,
    api_of: Callable,
    make_user: Callable[..., User],
    team: Team,
    other_team: Team,
    running: Callable[..., Run],
    make_rule: Callable[..., AlertRule],
) -> None:
    rule = make_rule()
    running().report(0.1)
    evaluate_due()
    note = Notification.objects.get()
    colleague: Api = api_of(make_user("bob", team), team)
    stranger: Api = api_of(make_user("sam", other_team), other_team)
    assert colleague.send("GET", "notifications").json()["items"] == []
    assert colleague.send("POST", "notifications:read", {"ids": [note.id]}).json() == {"unread": 0}
    for path in ("alert-rules", "alerts", "notifications"):
        assert stranger.send("GET", path).json()["items"] == []
    for method, body in (("GET", None), ("PATCH", {"enabled": False}), ("DELETE", None)):
        assert stranger.send(method, f"alert-rules/{rule.id}", body).status_code == 404
    assert stranger.send("POST", "notifications:read", {"ids": [note.id]}).status_code == 200
    assert api.send("GET", "notifications:unread").json() == {"unread": 1}


def test_who_is_removed_from_the_team_sees_no_old_notification_and_gets_no_new_one(
    api: Api, running: Callable[..., Run], make_rule: Callable[..., AlertRule], user: User, team: Team
) -> None:
    make_rule(recipients="team")
    run = running()
    run.report(0.1)
    evaluate_due()
    Membership.objects.filter(user=user, team=team).delete()
    run.report(0.5)
    evaluate_due()
    assert Notification.objects.count() == 1
    assert api.send("GET", "notifications").json()["items"] == []
    assert api.send("GET", "notifications:unread").json() == {"unread": 0}


def test_preferences_are_defaults_until_they_are_changed(api: Api) -> None:
    before = api.send("GET", "notification-preferences").json()
    assert before == {
        "email": "", "mail_from": "warning", "time_zone": "UTC", "quiet_from": None, "quiet_until": None,
        "digest_at": None, "critical_immediately": True, "mail_is_on": False,
    }  # fmt: skip
    changes = {"mail_from": "info", "time_zone": "Europe/Berlin", "quiet_from": "22:00", "quiet_until": "07:30"}
    assert api.send("PATCH", "notification-preferences", changes).json() == {**before, **changes}
    assert api.send("GET", "notification-preferences").json() == {**before, **changes}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"time_zone": "Berlin"}, "/time_zone"),
        ({"quiet_from": "22:00"}, "/quiet_until"),
        ({"quiet_from": "22:00", "quiet_until": "22:00"}, "/quiet_until"),
        ({"quiet_from": "24:00"}, "/quiet_from"),
        ({"digest_at": 8}, "/digest_at"),
        ({"mail_from": "all"}, "/mail_from"),
    ],
)
def test_a_wrong_preference_is_refused(api: Api, changes: dict[str, Any], pointer: str) -> None:
    answer = api.send("PATCH", "notification-preferences", changes)
    assert answer.status_code == 422, answer.content
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
