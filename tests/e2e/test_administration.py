"""The chores of a team's administrator, from the command line alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.handle import wait_until
from tests.control_plane.webhooks.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


class Person:
    """`athanor` with a home directory and, if it is given, a token."""

    def __init__(self, stack: Any, home: Path, token: str = "") -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ATHANOR_")}
        self._environment = {**kept, "XDG_CONFIG_HOME": str(home), "ATHANOR_URL": stack.url}
        self._environment |= {"ATHANOR_TOKEN": token} if token else {}

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("athanor"))
        return subprocess.run(
            [program, *arguments], env=self._environment, input=given, capture_output=True, text=True, check=False
        )

    def out(self, *arguments: str, given: str = "") -> str:
        result = self.run(*arguments, given=given)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.out(*arguments, "--json"))


def test_the_chores_of_a_team_need_no_dashboard(stack: Any, tmp_path: Path) -> None:
    admin = Person(stack, tmp_path / "admin")
    admin.out("login", "--username", stack.username, "--team", stack.team, "--platform", given=f"{stack.password}\n")
    admin.out("team", "create", "kiln", "--max-slots", "2")
    assert {stack.team, "kiln"} <= {team["name"] for team in admin.json("team", "list")}
    admin.out("team", "update", "kiln", "--max-slots", "4")
    assert "slots 4" in admin.out("team", "show", "kiln")

    potter = Person(stack, tmp_path / "potter")
    potter.out("login", "--username", stack.username, "--team", "kiln", given=f"{stack.password}\n")
    link = potter.out("team", "invite", "--note", "Lin", "--expires", "1d")
    assert link.startswith(f"{stack.url}/invitation#")
    potter.out("team", "invite", "lin")
    offered, linked = potter.json("team", "invitations")
    assert (offered["username"], linked["note"]) == ("lin", "Lin")
    potter.out("team", "revoke-invitation", linked["id"])
    assert "revoked" in potter.out("team", "invitations")

    potter.out("project", "create", "glaze", "--description", "Blue ones")
    potter.out("project", "archive", "glaze")
    assert [row["name"] for row in potter.json("project", "list", "--archived")] == ["glaze"]
    potter.out("project", "unarchive", "glaze")

    potter.out("service-account", "create", "ci", "--role", "member")
    secret = potter.out("token", "create", "pipeline", "--service-account", "ci", "--scope", "read", "--expires", "30d")
    program = Person(stack, tmp_path / "program", secret)
    assert [row["name"] for row in program.json("project", "list")] == ["glaze"]
    for command in ("project create more", "token create wider --scope admin", "team invite lin"):
        refused = program.run(*command.split())
        assert (refused.returncode, "token" in refused.stderr) == (3, True), refused.stderr
    refused = program.run("audit", "list")
    assert (refused.returncode, "role admin" in refused.stderr) == (3, True), refused.stderr
    assert program.run("team", "members", stack.team).returncode == 2, "another team's is not seen"
    successor = Person(stack, tmp_path / "program", program.out("token", "rotate", "pipeline", "--overlap", "0"))
    assert program.run("list").returncode == 3, "the old one has ended"
    successor.out("list")
    potter.out("team", "set-role", "ci@kiln", "viewer")
    assert potter.json("token", "revoke-all", "--member", "ci@kiln") == {"revoked": 1}
    assert successor.run("list").returncode == 3
    potter.out("token", "create", "short", "--scope", "read", "--expires", "1d")
    potter.out("token", "revoke", "short")
    potter.out("service-account", "delete", "ci")

    receiver = Receiver()
    try:
        signing = potter.out("webhook", "create", receiver.url, "--name", "chat", "--type", "webhook")
        potter.out("webhook", "test", "chat")
        assert receiver.received[0].is_signed_with(signing)
        renewed = potter.out("webhook", "rotate-secret", "chat", "--overlap", "0")
        (delivery,) = potter.json("webhook", "deliveries", "chat")
        potter.out("webhook", "redeliver", delivery["id"])
        wait_until(lambda: len(receiver.received) == 2, "it is delivered again", 30)
        assert receiver.received[1].is_signed_with(renewed)
        potter.out("webhook", "delete", "chat")
    finally:
        receiver.close()

    team = admin.json("team", "show", "kiln")["id"]
    recorded = admin.json("audit", "list", "--team", "kiln", "--limit", "200")
    assert {row["team_id"] for row in recorded} == {team}
    assert {
        "team.create", "invitation.create", "invitation.revoke", "project.create", "project.change",
        "service_account.create", "token.issue", "token.rotate", "token.revoke", "member.role", "webhook.create",
        "webhook.test", "webhook.rotate_secret", "webhook.redeliver", "webhook.delete", "service_account.retire",
    } <= {row["action"] for row in recorded}  # fmt: skip
    assert potter.json("audit", "list", "--limit", "1")[0]["seq"] == recorded[0]["seq"], "the team's own see the same"
    assert {row["action"] for row in potter.json("audit", "list", "--action", "project")} == {
        "project.create", "project.change",
    }  # fmt: skip
    trail = tmp_path / "trail.jsonl"
    potter.out("audit", "export", "--output", str(trail), "--action", "webhook")
    *lines, end = [json.loads(line) for line in trail.read_text().splitlines()]
    assert (len(lines), {line["team_id"] for line in lines}) == (end["end"]["lines"], {team})
