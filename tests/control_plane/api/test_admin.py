"""Django's admin: every page opens for those who may see it, shows no secret, and acts through the services."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from athanor.accounts import members
from athanor.accounts.models import ApiToken, AuditEvent, Invitation, Membership, Team, User
from athanor.accounts.roles import PlatformRole, Role
from athanor.accounts.services import issue_token
from athanor.backends.facts import Finding, HealthCheck, Level
from athanor.backends.fake.backend import World
from athanor.clusters.models import Cluster, InventorySync
from athanor.clusters.services import record_incidents, store_health_check
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import Desired
from athanor.webhooks.models import Delivery, Webhook
from tests.control_plane import drive

pytestmark = pytest.mark.django_db

MODELS = list(admin.site._registry)
FOR_A_ROLE = {"accounts", "clusters"}
PASSWORD = "correct horse battery"


@pytest.fixture
def things(submit: Callable[..., Job], user: User, team: Team) -> dict[str, str]:
    """Create an object of every kind. Return the secrets that no page may show."""
    drive.start(submit(name="one"))
    user.set_password(PASSWORD)
    user.save()
    cluster = Cluster.objects.get()
    record_incidents(cluster, ["n1"], "node_lost", job_id="job_1", attempt_id="att_1")
    store_health_check(cluster, HealthCheck("1", (Finding("answer", Level.OK, "it answers"),)))
    InventorySync.objects.create(cluster=cluster)
    token, secret = issue_token(user, team, "ci")
    invitation, invited = members.invite(team, Role.MEMBER, 1, "", user)
    webhook = Webhook.objects.create(team=team, url="https://hooks.example/a", position=0, created_by=user)
    Delivery.objects.create(
        team=team, webhook=webhook, event_type="job.submitted", body="{}", gives_up_at=timezone.now()
    )
    return {
        "token": secret, "digest": token.digest, "invitation": invited, "invitation digest": invitation.digest,
        "password": user.password, "salt": user.password.split("$")[2],
    }  # fmt: skip


def client_of(**powers: Any) -> Client:
    client = Client()
    client.force_login(User.objects.create(username="root", **powers))
    return client


def superuser() -> Client:
    return client_of(is_staff=True, is_superuser=True)


def address(model: type[models.Model], page: str, *arguments: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=arguments)


def pages_of(model: type[models.Model]) -> list[str]:
    """Return the URLs of the list, of a search, of a filter by year, and of a row's page."""
    found = [address(model, "changelist"), address(model, "changelist") + "?q=one"]
    hierarchy = admin.site._registry[model].date_hierarchy
    if hierarchy:
        found.append(address(model, "changelist") + f"?{hierarchy}__year={timezone.now().year}")
    row = model._default_manager.first()
    assert row is not None, f"give `things` one of {model.__name__}"
    return [*found, address(model, "change", row.pk)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_page_opens_for_a_superuser_and_shows_no_secret(
    model: type[models.Model], things: dict[str, str], world: World
) -> None:
    client = superuser()
    assert client.get(reverse("admin:index")).status_code == 200
    for page in pages_of(model):
        answer = client.get(page)
        assert answer.status_code == 200, page
        text = answer.content.decode()
        shown = [name for name, secret in things.items() if secret in text]
        assert not shown, (page, shown)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_an_auditor_looks_at_people_and_clusters_and_changes_nothing(
    model: type[models.Model], things: dict[str, str], world: World
) -> None:
    client = client_of(platform_role=PlatformRole.AUDITOR.value)
    of_the_platform = model._meta.app_label in FOR_A_ROLE
    for page in pages_of(model):
        answer = client.get(page)
        assert answer.status_code == (200 if of_the_platform else 403), page
        assert not [name for name, secret in things.items() if secret in answer.content.decode()], page
    row = model._default_manager.first()
    assert row is not None
    assert client.post(address(model, "change", row.pk), {}).status_code == 403
    assert client.get(address(model, "add")).status_code == 403
    chosen = {"action": "revoke", "_selected_action": [row.pk]}
    client.post(address(model, "changelist"), chosen)
    assert not ApiToken.objects.exclude(revoked_at=None).exists()


def test_a_team_member_without_a_role_does_not_get_in(user: User) -> None:
    client = Client()
    client.force_login(user)
    assert client.get(reverse("admin:index")).status_code == 302


def test_an_auditor_signs_in_with_a_password() -> None:
    user = User.objects.create(username="olga", platform_role=PlatformRole.AUDITOR.value)
    user.set_password(PASSWORD)
    user.save()
    client = Client()
    client.post(reverse("admin:login"), {"username": "olga", "password": PASSWORD})
    assert client.get(reverse("admin:index")).status_code == 200


@pytest.mark.parametrize("model", [Job, Attempt, ApiToken, Invitation, Membership, User, Team, Delivery, Cluster])
def test_a_list_takes_as_many_statements_for_ten_rows_as_for_one(
    model: type[models.Model], things: dict[str, str], submit: Callable[..., Job], user: User
) -> None:
    client = superuser()

    def statements() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(address(model, "changelist")).status_code == 200
        return len(seen)

    statements()
    before = statements()
    for number in range(5):
        team = Team.objects.create(name=f"team-{number}")
        person = User.objects.create(username=f"p{number}")
        Membership.objects.create(user=person, team=team, role=Role.ADMIN.value)
        issue_token(person, team, "t")
        members.invite(team, Role.MEMBER, 1, "", person)
        drive.start(submit(name=f"job-{number}"))
        Cluster.objects.create(name=f"c{number}", kind="fake")
        hook = Webhook.objects.create(team=team, url="https://hooks.example/b", position=0)
        Delivery.objects.create(team=team, webhook=hook, event_type="a", body="", gives_up_at=timezone.now())
    assert statements() <= before + 1


def act(client: Client, model: type[models.Model], action: str, *rows: models.Model) -> str:
    chosen = {"action": action, "_selected_action": [row.pk for row in rows]}
    return client.post(address(model, "changelist"), chosen, follow=True).content.decode()


def test_actions_go_through_the_services_and_into_the_trail(things: dict[str, str], user: User) -> None:
    client = superuser()
    job = Job.objects.get()
    assert "Asked to stop: 1" in act(client, Job, "request_stop", job)
    job.refresh_from_db()
    assert job.desired == Desired.STOP.value
    assert "cannot be paused" in act(client, Job, "request_pause", job), "refused with the reason"
    act(client, ApiToken, "revoke", *ApiToken.objects.all()[:1])
    issue_token(user, job.team, "another")
    act(client, User, "revoke_tokens", user)
    assert not ApiToken.objects.filter(user=user, revoked_at=None).exists()
    act(client, ApiToken, "revoke", *ApiToken.objects.all())
    act(client, Invitation, "revoke", *Invitation.objects.all())
    assert not ApiToken.objects.filter(revoked_at=None).exists()
    assert not Invitation.objects.filter(revoked_at=None).exists()
    act(client, Webhook, "switch_off", *Webhook.objects.all())
    assert not Webhook.objects.get().enabled
    recorded = set(AuditEvent.objects.filter(actor="root").values_list("action", flat=True))
    assert {"job.cancel", "token.revoke", "invitation.revoke", "webhook.change"} <= recorded


def test_teams_and_members_are_made_and_changed_as_by_the_api(things: dict[str, str], team: Team, user: User) -> None:
    client = superuser()
    made = client.post(address(Team, "add"), {"name": "green"})
    assert made.status_code == 302, made.content
    green = Team.objects.get(name="green")
    assert (green.quota_node.name, green.memberships.get().user.username) == ("green", "root")
    assert "/quotas" in client.get(address(Team, "change", green.pk)).content.decode(), "its limits are there"
    added = client.post(address(Membership, "add"), {"user": user.pk, "team": green.pk, "role": "member"})
    assert added.status_code == 302, added.content
    row = Membership.objects.get(team=green, user=user)
    assert client.post(address(Membership, "change", row.pk), {"role": "admin"}).status_code == 302
    client.post(address(Membership, "delete", row.pk), {"post": "yes"})
    assert not Membership.objects.filter(pk=row.pk).exists()
    last = green.memberships.get()
    content = client.post(address(Membership, "delete", last.pk), {"post": "yes"}, follow=True).content.decode()
    assert Membership.objects.filter(pk=last.pk).exists(), "a team keeps its last administrator"
    assert "administrator" in content
    recorded = list(AuditEvent.objects.filter(team_id=green.id).values_list("action", flat=True))
    assert {"team.create", "member.add", "member.role", "member.remove"} <= set(recorded), recorded


def test_a_platform_administrator_makes_no_superuser(user: User) -> None:
    chief = User.objects.create(username="chief", is_superuser=True, is_staff=True)
    client = client_of(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    page = client.get(address(User, "change", user.pk))
    assert page.status_code == 200
    assert b'name="is_superuser"' not in page.content
    assert client.post(address(User, "change", chief.pk), {"username": "x"}).status_code == 403
    assert client.get(reverse("admin:auth_user_password_change", args=[chief.pk])).status_code == 403
    assert client.get(address(Job, "changelist")).status_code == 403, "it opens no team's work"
