"""`python -m tests.chaos.attacks`: what strangers, members, stolen tokens, compute nodes and somebody with the database
role can try against a running stack. Prints a line for each attack; exit status 1 when one of them got anywhere.

The stack is private, on this machine, and ends with the run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import psutil
import psycopg

from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle, wait_until
from tests.bench.platform_stack import api, made_attempts, private_stack, settings_of, small_job
from tests.control_plane.accounts.authenticators import totp

SLOW_SECONDS = 25
HEALTHY_WITHIN_SECONDS = 5.0
GROWN_BYTES = 150 * 2**20  # of all web processes, left after the bombs
RESULTS = REPOSITORY / "test-results" / "attacks.json"
INSIDE = ("127.0.0.1", "169.254.169.254", "168.63.129.16", "192.0.0.192", "10.0.0.1", "[::1]")


class TrainState(httpx.Client):
    """A browser's: the cookie of the session, and the CSRF token with it."""

    def __init__(self, url: str, username: str, password: str) -> None:
        super().__init__(base_url=f"{url}/api/v1", timeout=60)
        self.headers["X-CSRFToken"] = self.get("/session").json()["csrf_token"]
        answer = self.post("/session", json={"username": username, "password": password})
        answer.raise_for_status()
        self.headers["X-CSRFToken"] = answer.json()["csrf_token"]


@dataclass
class Target:
    """The stack, its platform administrator, and a member of a team who attacks."""

    stack: StackHandle
    url: str
    admin: TrainState
    member: httpx.Client
    attempt: dict[str, str]
    tries: int = 0
    problems: list[str] = field(default_factory=list)

    def refused(self, answer: httpx.Response, what: str, *statuses: int) -> None:
        """Note a problem unless the answer is one of these refusals (any 4xx without them)."""
        self.tries += 1
        right = answer.status_code in statuses if statuses else 400 <= answer.status_code < 500
        if not right:
            self.problems.append(f"{what}: {answer.status_code} {answer.text[:200]}")

    def holds(self, condition: bool, what: str) -> None:
        self.tries += 1
        if not condition:
            self.problems.append(what)


def slow_clients(target: Target) -> None:
    """500 connections that send bodies and headers, and read answers, as slowly as they can."""
    command = [sys.executable, "-m", "tests.slow_clients", target.url, "--seconds", str(SLOW_SECONDS)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdout is not None
        attack.stdout.readline()
        while attack.poll() is None:
            for path in ("/healthz", "/api/v1/session"):
                began = time.monotonic()
                answer = httpx.get(f"{target.url}{path}", timeout=30)
                within = time.monotonic() - began < HEALTHY_WITHIN_SECONDS
                target.holds(answer.status_code == 200 and within, f"{path} did not answer beside slow clients")


def bombs(target: Target) -> None:
    """Documents that are small to send and large to read."""
    before = _web_bytes(target.stack)
    aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20)
    )
    json_bombs = ["[" * 100_000, '{"a":' * 15_000, "[" + "[]," * 8_000_000 + "[]]", '{"a": ' + "9" * 10_000 + "}"]
    yaml_bombs = [aliases, "[" * 5000, "- " * 4000, "a: &x [*x]", "name: !!int abc", "a: !!python/name:os.system"]
    for _ in range(3):
        for text in json_bombs:
            kind = {"Content-Type": "application/json"}
            address = f"{target.url}/api/v1/invitations:accept"
            answer = httpx.post(address, content=text, headers=kind, timeout=60)
            target.refused(answer, f"anonymous JSON {text[:12]}")
            target.refused(target.member.post("/jobs:plan", content=text, headers=kind), f"JSON {text[:12]}")
        for text in yaml_bombs:
            for path in ("/jobs", "/jobs:plan"):
                answer = target.member.post(path, content=text, headers={"Content-Type": "application/yaml"})
                target.refused(answer, f"YAML {text[:20]}")
    grown = _web_bytes(target.stack) - before
    target.holds(grown < GROWN_BYTES, f"the web processes keep {grown / 2**20:.0f} MiB after the bombs")


def tokens(target: Target) -> None:
    """A member's token tries to become more, or to last longer, than it is."""
    member = target.member
    target.refused(member.post("/tokens", json={"name": "x", "scopes": ["platform"]}), "scope platform", 403)
    target.refused(member.post("/tokens", json={"name": "x", "scopes": ["platform:people"]}), "scope people", 403)
    child = member.post("/tokens", json={"name": "child", "expires_in_days": 1}).json()
    as_child = httpx.Client(base_url=f"{target.url}/api/v1", headers={"Authorization": f"Bearer {child['token']}"})
    grandchild = as_child.post("/tokens", json={"name": "grandchild", "expires_in_days": 300}).json()
    target.holds(grandchild["expires_at"] <= child["expires_at"], "a child outlives its parent")
    others = member.get("/tokens").json()["items"]
    above = next(row for row in others if row["id"] not in (child["id"], grandchild["id"]))
    target.refused(as_child.post(f"/tokens/{above['id']}:rotate", json={}), "rotation of a parent", 403)
    member.delete(f"/tokens/{child['id']}").raise_for_status()
    as_grandchild = {"Authorization": f"Bearer {grandchild['token']}"}
    target.refused(httpx.get(f"{target.url}/api/v1/jobs", headers=as_grandchild), "an orphaned token", 401)
    team = member.get("/teams").json()["items"][0]["id"]
    target.refused(member.post(f"/teams/{team}/invitations", json={"role": "admin"}), "invitation by a member", 403)
    for path in ("/clusters", "/teams", "/budgets"):
        target.refused(member.post(path, json={"name": "evil"}), f"POST {path} by a member", 403)


def forged_events(target: Target) -> None:
    """An attempt's token reports what only the platform knows, and numbers that no column holds."""
    agent = httpx.Client(
        base_url=f"{target.url}/api/agent/v1", headers={"Authorization": f"Bearer {target.attempt['token']}"}
    )
    forged = [
        "job.status",
        "job.submitted",
        "checkpoint.saved",
        "artifact.created",
        "budget.exhausted",
        "secret.withheld",
    ]
    events = [
        {"type": kind, "time": "9999-12-31T00:00:00Z", "message": "forged", "data": {"to": "succeeded"}}
        for kind in forged
    ]
    agent.post("/progress", json={"writer": "node-0", "sequence": 0, "events": events})
    shown = target.admin.get(f"/jobs/{target.attempt['job']}/events").json()["items"]
    target.holds(not any(event["message"] == "forged" for event in shown), "a forged event is on record")
    target.holds(all(event["time"] < "9000" for event in shown), "an event is dated by its sender")
    point = {"step": 2**70, "generation": 2**40, "time": "2026-01-01T00:00:00Z", "values": {"train/loss": 1.0}}
    target.refused(
        agent.post("/metrics", json={"writer": "node-0", "sequence": 0, "points": [point]}), "step 2^70", 422
    )
    beat = {"generation": 2**40, "node_rank": 2**40, "phase": "x", "step": 2**70, "processes_alive": 1}
    target.refused(agent.post("/heartbeat", json=beat), "node_rank 2^40", 422)
    for key in ("../other", "/etc/passwd", "teams/other/x", "s3://other/x"):
        target.refused(agent.post("/storage:presign", json={"operation": "get", "keys": [key]}), f"key {key}")
    other = target.attempt["token"].replace("att_", "att_0", 1)[: len(target.attempt["token"])]
    target.refused(
        httpx.get(f"{target.url}/api/agent/v1/run", headers={"Authorization": f"Bearer {other}"}), "forged token"
    )


def paths_and_addresses(target: Target) -> None:
    """Commands, files and internal addresses, by every request that takes an address or a path."""
    admin, member = target.admin, target.member
    configurations: list[tuple[str, dict[str, Any]]] = [
        ("local", {"command": ["/bin/sh", "-c", "id"]}),
        ("local", {"directory": "/etc"}),
        (
            "slurm",
            {"transport": {"kind": "rest", "url": "http://127.0.0.1:1", "user": "x", "token_file": "/etc/passwd"}},
        ),
        ("slurm", {"transport": {"kind": "ssh", "host": "h", "user": "u", "identity_file": "../../etc/passwd"}}),
        ("kubernetes", {"kubeconfig_file": "/etc/shadow", "image": "x"}),
    ]
    for kind, config in configurations:
        for path, more in (("/clusters", {"name": "evil"}), ("/clusters:check", {})):
            target.refused(admin.post(path, json={"kind": kind, "config": config, **more}), f"{path} {config}", 422)
    for host in INSIDE:
        hook = {"url": f"https://{host}/", "events": ["job.*"], "name": "x", "types": ["job.status"]}
        target.refused(admin.post("/webhooks", json=hook), f"webhook to {host}")
        mlflow = {**small_job(), "telemetry": {"mlflow": {"tracking_uri": f"http://{host}:5000"}}}
        target.refused(member.post("/jobs", json=mlflow), f"MLflow at {host}", 422)
    for source in ("s3://other-bucket/x", "s3://corp/public-payroll", "file:///etc/passwd", "../../etc"):
        job: Any = small_job()
        job["training"]["data"] = {"source": source}
        target.refused(member.post("/jobs", json=job), f"data from {source}", 422)
    for path in (
        "/..%2f..%2fetc/passwd",
        "/static/..%2f..%2fsettings.py",
        "/assets/../../manage.py",
        "/.env",
        "/metrics",
    ):
        answer = httpx.get(target.url + path, timeout=30)
        target.holds(answer.status_code in (400, 404), f"{path}: {answer.status_code}")


def audit_trail(target: Target) -> None:
    """The database role of web and workers tries to change the past."""
    url = settings_of(target.stack)["DATABASE_URL"]
    attacks = [
        "DELETE FROM accounts_auditevent WHERE seq > 1",
        "TRUNCATE accounts_auditevent",
        "TRUNCATE accounts_audithead",
        "DELETE FROM accounts_audithead",
        "UPDATE accounts_auditevent SET actor = 'eve'",
        "UPDATE accounts_audithead SET seq = 1, digest = ''",
        "ALTER TABLE accounts_auditevent DISABLE TRIGGER USER",
        "ALTER TABLE accounts_auditevent OWNER TO CURRENT_USER",
        "DROP TABLE accounts_auditevent",
        "SET session_replication_role = replica",
        "ALTER TABLE jobs_job DISABLE ROW LEVEL SECURITY",
    ]
    with psycopg.connect(url, autocommit=True) as connection:
        for attack in attacks:
            try:
                connection.execute(attack)
            except psycopg.Error:
                refused = True
            else:
                refused = False
            target.holds(refused, f"the runtime role may: {attack}")
    verified = subprocess.run(
        [sys.executable, "manage.py", "verify_audit"], cwd=REPOSITORY, check=False, capture_output=True, text=True,
        env={**target.stack.environment, **settings_of(target.stack)},
    )  # fmt: skip
    target.holds(verified.returncode == 0, f"verify_audit: {verified.stdout}{verified.stderr[-500:]}")


def manifests_and_objects(target: Target) -> None:
    """Somebody with the database role rewrites manifests, and somebody with the store's keys its objects; what a member
    downloads is whole and of this job, or refused."""
    (job, mine), (_, other) = (_trained(target, steps) for steps in (4, 5))
    rows: dict[str, dict[str, Any]] = {}
    with psycopg.connect(settings_of(target.stack)["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("SELECT set_config('athanor.teams', '*', false)")
        for artifact in (mine, other):
            found = connection.execute("SELECT manifest FROM artifacts_artifact WHERE id = %s", [artifact]).fetchone()
            assert found is not None
            rows[artifact] = found[0]

        def rewrite(manifest: dict[str, Any]) -> None:
            changed = "UPDATE artifacts_artifact SET manifest = %s WHERE id = %s"
            count = connection.execute(changed, [json.dumps(manifest), mine]).rowcount
            assert count == 1, "the attack itself did not work"

        for name, forgery in _forgeries(rows[mine], rows[other]).items():
            rewrite(forgery)
            for method, path in (("POST", ":download"), ("GET", "/archive")):
                answer = target.member.request(method, f"/artifacts/{mine}{path}")
                target.refused(answer, f"{path} with {name}", 409)
            target.holds(not _downloads(target, job), f"athanor download took {name}")
        rewrite(rows[mine])
    target.holds(_downloads(target, job), "the right manifest is not taken any more")

    store, bucket = _store(target.stack)
    parts = [part["key"] for file in rows[mine]["files"] for part in file["parts"]]
    foreign = [part["key"] for file in rows[other]["files"] for part in file["parts"]]
    contents = {key: store.get_object(Bucket=bucket, Key=key)["Body"].read() for key in (*parts, *foreign)}
    first, last = contents[parts[0]], contents[parts[-1]]
    damage = {
        "a flipped bit": (parts[0], bytes([first[0] ^ 1]) + first[1:]),
        "a cut": (parts[-1], last[:-1]),
        "nothing": (parts[0], b""),
        "another part of the model": (parts[0], last),
        "the same file of another job": (parts[0], contents[foreign[0]]),
    }
    for name, (key, content) in damage.items():
        store.put_object(Bucket=bucket, Key=key, Body=content)
        target.holds(not _downloads(target, job), f"athanor download took {name} in place of an object")
        store.put_object(Bucket=bucket, Key=key, Body=contents[key])
    target.holds(_downloads(target, job), "the right objects are not taken any more")


def _forgeries(right: dict[str, Any], other: dict[str, Any]) -> dict[str, dict[str, Any]]:
    files = right["files"]
    swapped = [dict(each) for each in files]
    swapped[0]["parts"], swapped[1]["parts"] = files[1]["parts"], files[0]["parts"]
    renamed = [dict(each) for each in files]
    renamed[0]["path"], renamed[1]["path"] = files[1]["path"], files[0]["path"]
    climbing = [{**files[0], "path": "../../evil"}, *files[1:]]
    return {
        "swapped files": {**right, "files": swapped},
        "swapped names": {**right, "files": renamed},
        "a path outside the folder": {**right, "files": climbing},
        "a dropped file": {**right, "files": files[1:]},
        "a file twice": {**right, "files": [*files, files[0]]},
        "an earlier step": {**right, "step": right["step"] - 1},
        "no tag": {**right, "tag": ""},
        "the tag of another job": {**right, "tag": other["tag"]},
        "the manifest of another job": other,
        "that manifest under this job's name": {**other, "job_id": right["job_id"], "attempt_id": right["attempt_id"]},
    }


def _trained(target: Target, steps: int) -> tuple[str, str]:
    """Run a small job of the member. Return its id and the artifact's id of its model."""
    made = target.member.post("/jobs", json=small_job(steps=steps)).raise_for_status().json()["id"]
    target.stack.resume("worker")
    try:
        wait_until(
            lambda: target.member.get(f"/jobs/{made}").json()["status"] in ("succeeded", "failed"), f"{made} ends", 240
        )
    finally:
        target.stack.suspend("worker")
    artifacts = target.member.get(f"/jobs/{made}/artifacts").raise_for_status().json()["items"]
    return made, next(row["id"] for row in artifacts if row["kind"] == "model")


def _downloads(target: Target, job: str) -> bool:
    """Whether `athanor download` ends with a model under its final name."""
    with tempfile.TemporaryDirectory() as folder:
        token = target.member.headers["Authorization"].removeprefix("Bearer ")
        done = subprocess.run(
            [str(Path(sys.executable).with_name("athanor")), "download", job, "--output", f"{folder}/model"],
            env={**target.stack.environment, "HOME": folder, "ATHANOR_URL": target.url, "ATHANOR_TOKEN": token},
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode == 0


def _store(stack: StackHandle) -> tuple[Any, str]:
    known = settings_of(stack)
    client = boto3.client(
        "s3",
        endpoint_url=known["ATHANOR_S3_ENDPOINT"],
        region_name=known["ATHANOR_S3_REGION"],
        aws_access_key_id=known["ATHANOR_S3_ACCESS_KEY"],
        aws_secret_access_key=known["ATHANOR_S3_SECRET_KEY"],
    )
    return client, known["ATHANOR_S3_BUCKET"]


def sign_in(target: Target) -> None:
    """One machine guesses the administrator's password; the administrator's own browser is not held up."""
    name, password = target.stack.credentials["username"], target.stack.credentials["password"]
    stranger = _visitor(target)
    statuses = [
        stranger.post("/session", json={"username": name, "password": f"wrong {number}"}).status_code
        for number in range(20)
    ]
    target.holds(429 in statuses, "guessing passwords is not slowed down")
    again = target.admin.post("/session", json={"username": name, "password": password})  # a new CSRF token with it
    target.holds(again.status_code == 200, f"the administrator is locked out of a known browser: {again.text[:200]}")


def second_factor(target: Target) -> None:
    """Somebody who knows a password, but not the second factor, tries to get in with the password alone."""
    name, password = "victim", "correct horse battery"
    own = _joined(target, name, password)
    begun = own.post("/second-factors/authenticator-app:begin", json={"current_password": password}).json()
    code = totp(begun["secret"], time.time())
    own.post("/second-factors/authenticator-app:confirm", json={"code": code}).raise_for_status()
    stranger = _visitor(target)

    def password_again() -> None:
        answer = stranger.post("/session", json={"username": name, "password": password})
        target.refused(answer, "the password alone", 401)
        stranger.headers["X-CSRFToken"] = stranger.get("/session").json()["csrf_token"]

    password_again()
    for path in ("/jobs", "/tokens", "/second-factors", "/teams"):
        target.refused(stranger.get(path), f"GET {path} between the two steps", 401, 403)
    made = stranger.post("/tokens", json={"name": "stolen"})
    target.refused(made, "a token between the two steps", 401)
    remove = "/second-factors/authenticator-app:remove"
    target.refused(
        stranger.post(remove, json={"current_password": password}), "removal between the two steps", 401, 403
    )
    for wrong in (code, "000000", "", "0" * 5000, None, [code], {"$ne": ""}):
        target.refused(stranger.post("/session:second-factor", json={"code": wrong}), f"the code {str(wrong)[:20]!r}")
    guesses = [stranger.post("/session:second-factor", json={"code": f"{n:06}"}).status_code for n in range(30)]
    target.holds(set(guesses) <= {401, 429} and 429 in guesses, f"guessing codes is not slowed down: {set(guesses)}")
    for _ in range(3):  # a correct password must not end the delay of codes
        password_again()
        target.refused(stranger.post("/session:second-factor", json={"code": "000001"}), "a guess after it", 401, 429)
    with httpx.Client(base_url=target.url, timeout=60) as browser:
        browser.get("/admin/login/")
        form = {"username": name, "password": password, "csrfmiddlewaretoken": browser.cookies.get("csrftoken", "")}
        browser.post("/admin/login/", data=form, headers={"Referer": f"{target.url}/admin/login/"})
        target.holds("sessionid" not in browser.cookies, "/admin/ signs in with the password alone")
    target.holds(not stranger.get("/session").json()["authenticated"], "the stranger is signed in")


def stored_answers(target: Target) -> None:
    """Whoever learns an Idempotency-Key tries to read the secret in the answer that is stored for it."""
    key = {"Idempotency-Key": "attack-1"}
    body = {"name": "secret answer"}
    first = target.member.post("/tokens", json=body, headers=key)
    secret = first.json()["token"]
    again = target.member.post("/tokens", json=body, headers=key)
    target.holds(again.json().get("token") == secret, "the caller does not get the answer again")
    other = _joined(target, "other-member", "correct horse battery")
    same_user = httpx.Client(base_url=f"{target.url}/api/v1", headers={"Authorization": f"Bearer {secret}"}, timeout=60)
    for who, client in (
        ("another user", other),
        ("another token of the user", same_user),
        ("nobody", _visitor(target)),
    ):
        answer = client.post("/tokens", json=body, headers=key)
        target.holds(secret not in answer.text, f"{who} gets the stored answer")
    target.refused(target.member.post("/tokens", json={"name": "else"}, headers=key), "the key with another body", 422)
    target.refused(target.member.post("/jobs", json=body, headers=key), "the key at another address")
    for wrong in ("", "x" * 201, "tab\tinside", "\u00e9".encode("latin1").decode("latin1")):
        answer = target.member.post("/tokens", json=body, headers=[(b"Idempotency-Key", wrong.encode("latin1"))])
        target.refused(answer, f"the key {wrong[:10]!r}", 400, 422)
    with psycopg.connect(settings_of(target.stack)["DATABASE_URL"], autocommit=True) as connection:
        rows = connection.execute("SELECT * FROM accounts_idempotentanswer").fetchall()
    target.holds(bool(rows) and secret not in str(rows), "the secret is in the table in plain")


def deleted_team(target: Target) -> None:
    """A member of a team that is deleted tries to keep reading and writing with what he had."""
    team = target.admin.post("/teams", json={"name": "doomed"}).json()["id"]
    session = _joined(target, "doomed-member", "correct horse battery", team)
    token = session.post("/tokens", json={"name": "kept"}).json()["token"]
    client = httpx.Client(base_url=f"{target.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60)
    target.holds(client.get("/jobs").status_code == 200, "the token does not work before")
    target.refused(session.delete(f"/teams/{team}"), "deletion by a member", 403)
    deletion = target.admin.delete(f"/teams/{team}").raise_for_status().json()["id"]
    target.refused(client.get("/jobs"), "the token of a deleted team", 401, 403)
    target.refused(client.post("/jobs", json=small_job()), "a job of a deleted team", 401, 403)
    target.refused(client.post("/tokens", json={"name": "again"}), "a new token", 401, 403)
    for path in (f"/teams/{team}/members", f"/deletions/{deletion}/certificate"):
        target.refused(session.get(path), f"GET {path} by a member of before", 403, 404)
    target.refused(session.post(f"/deletions/{deletion}:restore"), "restoring by a member of before", 403, 404)
    target.refused(session.post("/tokens", json={"name": "x", "team": team}), "a token by the session", 403, 404, 422)


def _visitor(target: Target) -> httpx.Client:
    client = httpx.Client(base_url=f"{target.url}/api/v1", timeout=60)
    client.headers["X-CSRFToken"] = client.get("/session").json()["csrf_token"]
    return client


def _joined(target: Target, name: str, password: str, team: str = "") -> TrainState:
    """A session of a new member of a team."""
    team = team or target.admin.get("/teams").json()["items"][0]["id"]
    invitation = target.admin.post(f"/teams/{team}/invitations", json={"role": "member"}).raise_for_status().json()
    account = {"token": invitation["token"], "username": name, "password": password}
    httpx.post(f"{target.url}/api/v1/invitations:accept", json=account, timeout=60).raise_for_status()
    return TrainState(target.url, name, password)


ATTACKS: list[Callable[[Target], None]] = [
    slow_clients, bombs, tokens, forged_events, paths_and_addresses,
    manifests_and_objects, stored_answers, deleted_team, audit_trail, second_factor, sign_in,
]  # fmt: skip


def carry_out(attacks: list[Callable[[Target], None]]) -> Iterator[dict[str, Any]]:
    with private_stack() as stack:
        stack.suspend("supervisor")  # which would start a frozen worker again
        stack.suspend("worker")  # it would run the attacked job
        try:
            target = _target(stack)
            for attack in attacks:
                target.tries, target.problems = 0, []
                attack(target)
                yield {"attack": attack.__name__, "tries": target.tries, "problems": target.problems}
        finally:
            stack.resume("worker")
            stack.resume("supervisor")


def _target(stack: StackHandle) -> Target:
    credentials = stack.credentials
    url = str(credentials["url"])
    with api(stack) as client:
        client.post("/jobs", json=small_job()).raise_for_status()
    admin = TrainState(url, credentials["username"], credentials["password"])
    target = Target(stack, url, admin, httpx.Client(base_url=f"{url}/api/v1", timeout=60), made_attempts(stack, 1)[0])
    token = (
        _joined(target, "mallory", "correct horse battery").post("/tokens", json={"name": "mallory"}).json()["token"]
    )
    target.member.headers["Authorization"] = f"Bearer {token}"
    return target


def _web_bytes(stack: StackHandle) -> int:
    names = [name for name in stack.state["services"] if name.startswith("web")]
    return sum(psutil.Process(stack.pid(name)).memory_info().rss for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.attacks")
    parser.add_argument("--only", choices=[attack.__name__ for attack in ATTACKS], help="carry out one of them")
    only = parser.parse_args().only
    outcomes = []
    for outcome in carry_out([attack for attack in ATTACKS if only in (None, attack.__name__)]):
        outcomes.append(outcome)
        print(
            f"{outcome['attack']:<20} {outcome['tries']:>5} tries, {len(outcome['problems'])} got somewhere", flush=True
        )
        for problem in outcome["problems"]:
            print(f"  {problem}")
    Path(RESULTS).parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(outcomes, indent=2))
    return 1 if any(outcome["problems"] for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
