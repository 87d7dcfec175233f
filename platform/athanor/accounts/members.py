"""Members of teams and their roles, invitations, service accounts, and the teams themselves."""

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import ApiToken, Invitation, Membership, Team, User
from athanor.accounts.roles import Role
from athanor.accounts.selectors import open_invitations
from athanor.accounts.services import digest_of, revoke_all
from athanor.core.errors import Conflict, FieldProblem, Forbidden, Invalid, NotFound, Unauthenticated

OFFER_LIFE = timedelta(days=14)
INVITATION_PREFIX = "athinv_"


def create_team(name: str, actor: User) -> Team:
    """Create a team. Its creator becomes its first administrator."""
    try:
        with transaction.atomic():
            team = Team.objects.create(name=name)
            Membership.objects.create(user=actor, team=team, role=Role.ADMIN.value)
            audit.record("team.create", actor=actor, target=("team", team.id), team_id=team.id, after={"name": name})
    except IntegrityError as error:
        deleted = Team.objects.filter(name=name).exclude(deleted_at=None).exists()
        remedy = "it is deleted: restore it, or wait for its erasure, or choose" if deleted else "choose"
        raise Conflict("team_exists", f"there is a team {name!r}", remedy=f"{remedy} another name") from error
    return team


def add_member(team: Team, username: str, role: Role, actor: User) -> Membership:
    """Add a person without their consent: for platform administrators. Teams use `offer_membership`."""
    user = User.objects.filter(username=username, is_active=True, service_team=None).first()
    if user is None:
        detail = f"{username!r} is no active person"
        remedy = "activate the user first, or invite the person from the page of the team"
        problem = FieldProblem("/username", "unknown_user", detail)
        raise Invalid("unknown_user", detail, remedy=remedy, problems=(problem,))
    with transaction.atomic():
        return _join(team, user, role, actor)


def set_role(
    team: Team, user_id: str, role: Role, actor: User, precondition: Callable[[Membership], None] | None = None
) -> Membership:
    """Change a member's role. `precondition` may refuse under the row's lock."""
    with transaction.atomic():
        row = _locked_member(team, user_id)
        if precondition:
            precondition(row)
        before = row.role
        if before != role.value:
            _refuse_without_admin(team, row, stays_admin=role is Role.ADMIN)
            row.role = role.value
            row.source = ""  # from now on the role is set by an administrator
            row.save(update_fields=["role", "source"])
            audit.record(
                "member.role",
                actor=actor,
                target=("user", user_id),
                team_id=team.id,
                before={"role": before},
                after={"role": role.value},
            )
    return row


def remove_member(team: Team, user_id: str, actor: User) -> None:
    """Remove a member and revoke their tokens for the team. A service account of the team is retired."""
    with transaction.atomic():
        row = _locked_member(team, user_id)
        if row.user.service_team_id == team.id:
            retire_service_account(row.user, actor)
            return
        _refuse_without_admin(team, row, stays_admin=False)
        row.delete()
        revoke_all(ApiToken.objects.filter(user_id=user_id, team=team), actor)
        audit.record("member.remove", actor=actor, target=("user", user_id), team_id=team.id, before={"role": row.role})


def invite(team: Team, role: Role, hours: int, note: str, actor: User) -> tuple[Invitation, str]:
    """Create an invitation. Return its row, and the secret of the link, which is shown only once."""
    secret = INVITATION_PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        row = Invitation.objects.create(
            team=team,
            role=role.value,
            note=note,
            digest=digest_of(secret),
            created_by=actor,
            expires_at=timezone.now() + timedelta(hours=hours),
        )
        facts = {"role": role.value, "note": note, "expires_at": row.expires_at.isoformat()}
        audit.record("invitation.create", actor=actor, target=("invitation", row.id), team_id=team.id, after=facts)
    return row, secret


def offer_membership(team: Team, username: str, role: Role, actor: User) -> Invitation:
    """Offer membership to the user of that name, who accepts or declines.

    The response is the same whether the user exists or not. Raise Conflict for a member, whom the team's list shows
    anyway, and for a name with an open offer.
    """
    with transaction.atomic():
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)
        if member := Membership.objects.filter(team=team, user__username=username).first():
            raise Conflict(
                "already_member", f"{username} is a {member.role} of team {team.name}", remedy="change the role instead"
            )
        if open_invitations().filter(team=team, username=username).exists():
            raise Conflict(
                "already_invited",
                f"{username} has an open invitation to team {team.name}",
                remedy="withdraw it first (DELETE /invitations/{id}), or wait for the answer",
            )
        row = Invitation.objects.create(
            team=team,
            role=role.value,
            username=username,
            invited=User.objects.filter(username=username, is_active=True, service_team=None).first(),
            digest=digest_of(secrets.token_urlsafe(32)),  # of no link
            created_by=actor,
            expires_at=timezone.now() + OFFER_LIFE,
        )
        facts = {"role": role.value, "username": username, "expires_at": row.expires_at.isoformat()}
        audit.record("invitation.create", actor=actor, target=("invitation", row.id), team_id=team.id, after=facts)
    return row


def accept_offer(invitation_id: str, user: User) -> Membership:
    """Accept an offer of membership."""
    with transaction.atomic():
        return _accept(_locked_offer(invitation_id, user), user)


def decline_offer(invitation_id: str, user: User) -> None:
    """Decline an offer of membership."""
    with transaction.atomic():
        row = _locked_offer(invitation_id, user)
        row.declined_at = timezone.now()
        row.save(update_fields=["declined_at"])
        audit.record("invitation.decline", actor=user, target=("invitation", row.id), team_id=row.team_id)


def revoke_invitation(row: Invitation, actor: User) -> None:
    """Revoke an invitation. Idempotent; an accepted one is unchanged."""
    with transaction.atomic():
        unanswered = Invitation.objects.filter(pk=row.pk, accepted_at=None, revoked_at=None, declined_at=None)
        changed = unanswered.update(revoked_at=timezone.now())
        if changed:
            audit.record("invitation.revoke", actor=actor, target=("invitation", row.id), team_id=row.team_id)


def accept(secret: str, user: User) -> Membership:
    """Accept an invitation by the secret of its link."""
    with transaction.atomic():
        return _accept(_open_invitation(secret), user)


def accept_as_new(secret: str, username: str, password: str) -> Membership:
    """Create a user from an invitation. The name and the password are checked before the invitation is used."""
    try:
        with transaction.atomic():
            invitation = _open_invitation(secret)
            user = User(username=username)
            _check(user, password)
            user.set_password(password)
            user.save(force_insert=True)
            audit.record("user.create", actor=user, target=("user", user.id), after={"username": username})
            return _accept(invitation, user)
    except IntegrityError as error:
        raise Conflict("username_taken", f"there is a user {username!r}", remedy="choose another name") from error


def create_service_account(team: Team, name: str, role: Role, actor: User) -> User:
    """Create the service account `name@team`, which has no password, only tokens."""
    try:
        with transaction.atomic():
            account = User(username=f"{name}@{team.name}", service_team=team)
            account.set_unusable_password()
            account.save(force_insert=True)
            Membership.objects.create(user=account, team=team, role=role.value)
            facts = {"username": account.username, "role": role.value}
            audit.record(
                "service_account.create", actor=actor, target=("user", account.id), team_id=team.id, after=facts
            )
    except IntegrityError as error:
        raise Conflict(
            "service_account_exists", f"there is an account {name}@{team.name}", remedy="choose another name"
        ) from error
    return account


def retire_service_account(account: User, actor: User) -> None:
    """Deactivate a service account.

    Its jobs continue, its tokens stop working immediately, and its name can be reused.
    """
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=account.pk)
        revoke_all(ApiToken.objects.filter(user=row), actor)
        before = {"username": row.username}
        row.is_active = False
        row.username = f"{row.username}.{row.id}"
        row.save(update_fields=["is_active", "username"])
        Membership.objects.filter(user=row).delete()
        audit.record(
            "service_account.retire",
            actor=actor,
            target=("user", row.id),
            team_id=str(account.service_team_id),
            before=before,
        )


def _join(team: Team, user: User, role: Role, actor: User) -> Membership:
    row, created = Membership.objects.get_or_create(user=user, team=team, defaults={"role": role.value})
    if not created:
        raise Conflict(
            "already_member", f"{user.username} is a {row.role} of team {team.name}", remedy="change the role instead"
        )
    facts = {"username": user.username, "role": role.value}
    audit.record("member.add", actor=actor, target=("user", user.id), team_id=team.id, after=facts)
    return row


def _open_invitation(secret: str) -> Invitation:
    """Return the locked open invitation of a link. All that can be wrong with it raises the same error."""
    row = (
        open_invitations()
        .select_for_update(no_key=True, of=("self",))
        .select_related("team")
        .filter(digest=digest_of(secret))
        .first()
    )
    if row is None:
        raise Unauthenticated(
            "invalid_invitation",
            "the invitation is unknown, used, revoked or expired",
            remedy="ask an administrator of the team for a new one",
        )
    return row


def _locked_offer(invitation_id: str, user: User) -> Invitation:
    rows = open_invitations().select_for_update(no_key=True, of=("self",)).select_related("team")
    row = rows.filter(pk=invitation_id, invited=user).first()
    if row is None:
        raise NotFound("invitation", invitation_id)
    return row


def _accept(invitation: Invitation, user: User) -> Membership:
    if user.service_team_id is not None:
        raise Forbidden(
            "service_account",
            f"{user.username} is a service account and belongs to its own team only",
            remedy="make a service account in the other team",
        )
    invitation.accepted_by = user
    invitation.accepted_at = timezone.now()
    invitation.save(update_fields=["accepted_by", "accepted_at"])
    row = _join(invitation.team, user, Role(invitation.role), user)
    audit.record("invitation.accept", actor=user, target=("invitation", invitation.id), team_id=invitation.team_id)
    return row


def _check(user: User, password: str) -> None:
    problems: list[FieldProblem] = []
    fields: dict[str, Any] = {}
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        fields["username"] = [text for texts in error.message_dict.values() for text in texts]
    try:
        validate_password(password, user)
    except ValidationError as error:
        fields["password"] = error.messages
    problems += [FieldProblem(f"/{name}", "invalid", text) for name, texts in fields.items() for text in texts]
    if problems:
        raise Invalid("invalid", problems[0].detail, remedy="fix the fields in errors", problems=tuple(problems))


def _locked_member(team: Team, user_id: str) -> Membership:
    """Return a membership and lock the team, so that two administrators cannot remove each other concurrently."""
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    row = Membership.objects.filter(team=team, user_id=user_id).select_related("user").first()
    if row is None:
        raise NotFound("member", user_id)
    return row


def _refuse_without_admin(team: Team, row: Membership, *, stays_admin: bool) -> None:
    if stays_admin or row.role != Role.ADMIN.value or row.user.service_team_id is not None:
        return
    admins = Membership.objects.filter(team=team, role=Role.ADMIN.value, user__is_active=True, user__service_team=None)
    if not admins.exclude(pk=row.pk).exists():
        raise Conflict(
            "last_admin",
            f"{row.user.username} is the only administrator of team {team.name}",
            remedy="make somebody else administrator first",
        )
