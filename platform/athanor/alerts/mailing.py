"""Mail notifications that are due, all of a team to a user in one mail.

Notifications join a mail in one transaction, and a mail is leased and sent outside any, so each notification is in one
mail. After a crash between the server's acceptance and the record of it, the mail is sent again with the same
Message-ID, by which mail servers and readers recognise it.
"""

import logging
import random
import smtplib
from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.smtp import EmailBackend
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.accounts.failures import run_isolated
from athanor.accounts.models import Membership
from athanor.alerts.models import Mail, Notification
from athanor.core import task_triggers
from athanor.core.leases import Lease, applying, claim_each
from athanor.webhooks import retry_schedule

log = logging.getLogger(__name__)

GIVE_UP_AFTER = timedelta(hours=24)
LEASE_SECONDS = 120.0
SMTP_SECONDS = 15.0
MAX_GATHERED = 500
MAX_MAILS_PER_RUN = 50
MAX_LISTED = 50  # notifications in one mail


def send_due() -> None:
    """Put due notifications into mails, and send those that are due."""
    if not _is_on():
        return
    gather()
    for lease in claim_each(due_now().order_by("next_try_at", "pk"), seconds=LEASE_SECONDS, limit=MAX_MAILS_PER_RUN):
        run_isolated(
            task_triggers.SEND_MAILS, f"mail {lease.pk}", partial(send, lease), held=(Mail, lease),
            give_up=partial(_abandon, lease.pk),
        )  # fmt: skip


def due_now() -> QuerySet[Mail]:
    """Return mails with a next try that is due. None are without a mail server."""
    return Mail.objects.filter(state=Mail.State.PENDING, next_try_at__lte=Now()) if _is_on() else Mail.objects.none()


def to_gather() -> QuerySet[Notification]:
    """Return notifications that are due and in no mail. None are without a mail server."""
    due = Notification.objects.filter(mail=None, mail_at__lte=Now(), team__deleted_at=None)
    return due if _is_on() else due.none()


@transaction.atomic
def gather() -> None:
    """Create one mail for each user and team with notifications that are due."""
    rows = to_gather().select_for_update(no_key=True, skip_locked=True, of=("self",)).order_by("mail_at", "id")
    together: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows[:MAX_GATHERED]:
        together[row.team_id, row.user_id].append(row.id)
    now = timezone.now()
    for (team_id, user_id), found in together.items():
        mail = Mail.objects.create(team_id=team_id, user_id=user_id, next_try_at=now, gives_up_at=now + GIVE_UP_AFTER)
        Notification.objects.filter(pk__in=found).update(mail=mail)


def send(lease: Lease) -> None:
    """Send a leased mail and record the result. Who has left the team since gets none."""
    mail = Mail.objects.select_related("user", "team").get(pk=lease.pk)
    member = Membership.objects.filter(team_id=mail.team_id, user_id=mail.user_id, user__is_active=True)
    error, is_final = "", True
    if not member.exists() or not mail.user.email:
        error = "not sent: the user has left the team, or has no address"
    else:
        try:
            _connection().send_messages([message_of(mail)])
        except (OSError, smtplib.SMTPException) as problem:
            error, is_final = f"{type(problem).__name__}: {problem}"[:500], False
    with applying(Mail, lease) as row:
        if row is None:
            log.warning("%s was sent, but its lease is over: it may be sent again", lease.pk)
            return
        _record(row, error, is_final, timezone.now())


def message_of(mail: Mail) -> EmailMessage:
    """Return the mail with its notifications, oldest first. Its subject is one line whatever jobs are called."""
    rows = list(mail.notifications.order_by("id"))
    subject = one_line(rows[0].title) if len(rows) == 1 else f"{len(rows)} alerts of team {mail.team.name}"
    lines = [f"{row.created_at:%Y-%m-%d %H:%M} UTC  {row.severity}  {one_line(row.title)}\n  {one_line(row.text)}\n"
             + (f"  {settings.ATHANOR.public_url}/jobs/{row.job_id}\n" if row.job_id else "")
             for row in rows[:MAX_LISTED]]  # fmt: skip
    if len(rows) > MAX_LISTED:
        lines.append(f"{len(rows) - MAX_LISTED} more are in your inbox.\n")
    lines.append(f"Inbox and preferences: {settings.ATHANOR.public_url}/alerts\n")
    host = urlsplit(settings.ATHANOR.public_url).hostname or "athanor"
    return EmailMessage(
        f"[Athanor] {subject}",
        "\n".join(lines),
        settings.ATHANOR.mail_from,
        [mail.user.email],
        headers={"Message-ID": f"<{mail.id}@{host}>", "Auto-Submitted": "auto-generated"},
    )


def one_line(text: str) -> str:
    """Return the text with each control character and line separator as a space: no name adds a header or a line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _is_on() -> bool:
    return bool(settings.ATHANOR.smtp_host)


def _connection() -> EmailBackend:
    env = settings.ATHANOR
    return EmailBackend(
        host=env.smtp_host,
        port=env.smtp_port,
        username=env.smtp_username,
        password=env.smtp_password,
        use_tls=env.smtp_security == "starttls",
        use_ssl=env.smtp_security == "tls",
        timeout=SMTP_SECONDS,
    )


def _record(row: Mail, error: str, is_final: bool, now: datetime) -> None:
    row.tries, row.error, row.next_try_at = row.tries + 1, error, None
    if not error:
        row.state, row.sent_at = Mail.State.SENT, now
    else:
        if not is_final:
            chance = random.random()  # noqa: S311 - spreads tries
            row.next_try_at = retry_schedule.next_try(row.tries, now, row.gives_up_at, chance)
        if row.next_try_at is None:
            row.state = Mail.State.FAILED
            log.warning("%s was given up: %s", row.pk, error)
    row.save(update_fields=["state", "tries", "error", "sent_at", "next_try_at"])


def _abandon(mail_id: str, reason: str) -> None:
    Mail.objects.filter(pk=mail_id).update(state=Mail.State.FAILED, next_try_at=None, error=reason[:500])
