"""Mails of notifications, received by a real SMTP server (aiosmtpd)."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import time, timedelta
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import Message
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from django.utils import timezone

from athanor.accounts.models import Membership, Team, User
from athanor.alerts import mailing, services
from athanor.alerts.evaluating import evaluate_due
from athanor.alerts.models import AlertRule, Mail, Notification
from athanor.config import env
from athanor.core import leases
from athanor.jobs.models import Job
from tests.control_plane.alerts.conftest import Run

pytestmark = pytest.mark.django_db(transaction=True)


class Server:
    """An SMTP server that stores what it accepts. `refusals`: what it answers to the next messages."""

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.recipients: list[list[str]] = []
        self.refusals: list[str] = []
        self.credentials: list[tuple[bytes, bytes]] = []
        self._loop = asyncio.new_event_loop()
        listening = self._loop.run_until_complete(self._loop.create_server(self._session, "127.0.0.1", 0))
        self.port: int = listening.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _session(self) -> SMTP:
        return SMTP(self, loop=self._loop, authenticator=self._authenticate, auth_require_tls=False)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refusals:
            return self.refusals.pop(0)
        self.received.append(message_from_bytes(envelope.content))
        self.recipients.append(envelope.rcpt_tos)
        return "250 accepted"

    def _authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.credentials.append((data.login, data.password))
        return AuthResult(success=True)

    @property
    def subjects(self) -> list[str]:
        return [str(make_header(decode_header(message["Subject"]))) for message in self.received]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def server(settings: Any, user: User) -> Iterator[Server]:
    running = Server()
    settings.ATHANOR = settings.ATHANOR.model_copy(
        update={
            "smtp_host": "127.0.0.1", "smtp_port": running.port, "smtp_security": "none",
            "mail_from": "athanor@example.com",
        }
    )  # fmt: skip
    User.objects.filter(pk=user.pk).update(email="ada@example.com")
    yield running
    running.close()


@pytest.fixture
def fire(running: Callable[..., Run], make_rule: Callable[..., AlertRule]) -> Callable[..., None]:
    """Return a function that lets a rule fire on a new job."""

    def make(job: str = "llama", **rule: Any) -> None:
        if not AlertRule.objects.exists() or rule:
            make_rule(**rule)
        running(name=job).report(0.1)
        evaluate_due()

    return make


def make_due() -> None:
    Mail.objects.filter(state="pending").update(next_try_at=timezone.now(), lease_until=None)


def test_an_alert_is_mailed_once_with_a_link(server: Server, fire: Callable, submit: Callable[..., Job]) -> None:
    fire()
    mailing.send_due()
    mailing.send_due()
    (message,) = server.received
    assert server.recipients == [["ada@example.com"]]
    assert server.subjects == ["[Athanor] low MFU: llama"]
    assert (message["From"], message["To"]) == ("athanor@example.com", "ada@example.com")
    text = message.get_payload(decode=True).decode()  # type: ignore[union-attr] # of a message of one part
    assert "throughput/mfu_causal is 0.1; the alert fires below 0.28" in text
    assert f"/jobs/{Job.objects.get().id}\r\n" in text
    mail = Mail.objects.get()
    assert (mail.state, mail.tries, mail.error) == ("sent", 1, "")
    assert Notification.objects.get().mail == mail


def test_the_name_and_password_are_sent_to_the_server(server: Server, fire: Callable, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"smtp_username": "me", "smtp_password": "secret"})
    fire()
    mailing.send_due()
    assert server.credentials == [(b"me", b"secret")]
    assert len(server.received) == 1


def test_nothing_is_sent_without_encryption_unless_that_is_set(server: Server, fire: Callable, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"smtp_security": "starttls"})
    fire()
    mailing.send_due()
    assert server.received == []
    assert "STARTTLS" in Mail.objects.get().error


def test_without_a_server_nothing_waits_for_one(fire: Callable, user: User) -> None:
    User.objects.filter(pk=user.pk).update(email="ada@example.com")
    fire()
    mailing.send_due()
    assert Notification.objects.get().mail_at is None
    assert not Mail.objects.exists()


def test_what_waits_for_the_end_of_quiet_hours_comes_in_one_mail_exactly_once(
    server: Server, fire: Callable, user: User
) -> None:
    now = timezone.now()
    services.change_preference(
        user, {"quiet_from": (now - timedelta(hours=1)).time(), "quiet_until": (now + timedelta(hours=1)).time()}
    )
    fire("one")
    fire("two")
    fire("three", name="stuck", severity="critical")
    mailing.send_due()
    assert server.subjects == ["[Athanor] 3 alerts of team red"], "of rule `stuck`: critical ones do not wait"
    Notification.objects.filter(mail=None).update(mail_at=now)
    mailing.send_due()
    mailing.send_due()
    assert len(server.received) == 2
    assert server.subjects[1] == "[Athanor] 3 alerts of team red"
    mailed = Notification.objects.values_list("mail__state", "severity")
    assert sorted(mailed) == [("sent", "critical")] * 3 + [("sent", "warning")] * 3


def test_a_digest_waits_for_its_time(server: Server, fire: Callable, user: User) -> None:
    now = timezone.now()
    services.change_preference(user, {"digest_at": time((now.hour + 2) % 24)})
    fire()
    mailing.send_due()
    note = Notification.objects.get()
    assert note.mail_at is not None
    assert timedelta(hours=1) <= note.mail_at - now <= timedelta(hours=2)
    assert server.received == []


@pytest.mark.parametrize(("wanted", "count"), [("info", 1), ("warning", 1), ("critical", 0), ("never", 0)])
def test_only_severities_from_the_chosen_one_are_mailed(
    server: Server, fire: Callable, user: User, wanted: str, count: int
) -> None:
    services.change_preference(user, {"mail_from": wanted})
    fire()
    mailing.send_due()
    assert len(server.received) == count
    assert Notification.objects.count() == 1, "the inbox gets all"


def test_a_worker_killed_before_it_sent_leaves_the_mail_to_another(server: Server, fire: Callable) -> None:
    fire()
    mailing.gather()
    (lease,) = leases.claim(mailing.due_now(), seconds=60, limit=1)  # a worker that is killed here
    mailing.send_due()
    assert server.received == [], "the lease is valid"
    Mail.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    mailing.send_due()
    assert len(server.received) == 1
    assert Mail.objects.get().state == "sent"
    assert lease.token != Mail.objects.get().lease_token


def test_a_worker_killed_after_it_sent_repeats_the_same_message_id(
    server: Server, fire: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fire()
    mailing.gather()
    (lease,) = leases.claim(mailing.due_now(), seconds=60, limit=1)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mailing, "_record", killed)
        mailing.send(lease)
    make_due()
    mailing.send_due()
    first, second = server.received
    assert first["Message-ID"] == second["Message-ID"] == f"<{Mail.objects.get().id}@127.0.0.1>"
    assert Mail.objects.get().state == "sent"


def test_a_refused_mail_is_tried_again_and_given_up_with_the_reason(server: Server, fire: Callable) -> None:
    fire()
    server.refusals = ["451 try later", "550 no"]
    mailing.send_due()
    mail = Mail.objects.get()
    assert (mail.state, mail.tries) == ("pending", 1)
    assert "try later" in mail.error
    Mail.objects.update(gives_up_at=timezone.now())
    make_due()
    mailing.send_due()
    mail = Mail.objects.get()
    assert (mail.state, mail.tries, mail.next_try_at) == ("failed", 2, None)
    assert "no" in mail.error
    make_due()
    mailing.send_due()
    assert server.received == []


def test_who_has_left_the_team_gets_no_mail(server: Server, fire: Callable, user: User, team: Team) -> None:
    fire()
    Membership.objects.filter(user=user, team=team).delete()
    mailing.send_due()
    assert server.received == []
    mail = Mail.objects.get()
    assert (mail.state, mail.next_try_at) == ("failed", None)
    assert "left the team" in mail.error


def test_names_add_neither_a_header_nor_a_line(server: Server, fire: Callable) -> None:
    fire()
    evil = "x\r\nBcc: eve@example.com\r\n\r\nclick\u2028here"
    Notification.objects.update(title=evil, text=evil)
    mailing.send_due()
    (message,) = server.received
    assert message["Bcc"] is None
    assert server.recipients == [["ada@example.com"]]
    assert server.subjects == ["[Athanor] x  Bcc: eve@example.com    click here"]
    assert "\nBcc" not in message.get_payload(decode=True).decode()  # type: ignore[union-attr] # of one part


def test_a_server_without_a_sender_is_refused() -> None:
    with pytest.raises(env.EnvironmentProblem, match="ATHANOR_MAIL_FROM"):
        env.read({"ATHANOR_SMTP_HOST": "mail.example.com"})
    assert env.read({"ATHANOR_SMTP_HOST": "mail", "ATHANOR_MAIL_FROM": "a@b.example"}).smtp_port == 587
