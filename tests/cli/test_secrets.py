"""`athanor secret`: values come by standard input; destinations are shown, added and removed."""

import json

TEAM = {"id": "team_1", "name": "red"}
TOKEN = {
    "id": "sec_1", "name": "mlflow-tracking-token", "destinations": ["https://mlflow.example.org"],
    "updated_by": "hal", "created_at": "", "updated_at": "",
}  # fmt: skip


def test_a_secret_is_set_from_standard_input_with_its_destinations(server, athanor, answer) -> None:
    server.answer("GET /api/v1/teams", answer({"items": [TEAM]}))
    server.answer("POST /api/v1/teams/team_1/secrets", answer(TOKEN, 201))
    result = athanor(
        "secret", "set", TOKEN["name"], "--destination", "https://mlflow.example.org", given="TOP-SECRET\n"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(server.seen[-1].body) == {
        "name": TOKEN["name"], "value": "TOP-SECRET", "destinations": ["https://mlflow.example.org"],
    }  # fmt: skip
    assert "TOP-SECRET" not in result.stdout
    assert "it may be sent to https://mlflow.example.org" in result.stdout


def test_destinations_are_listed_added_and_removed(server, athanor, answer) -> None:
    server.answer("GET /api/v1/teams", answer({"items": [TEAM]}))
    server.answer("GET /api/v1/teams/team_1/secrets", answer({"items": [TOKEN]}))
    server.answer("PATCH /api/v1/secrets/sec_1", answer(TOKEN))
    assert "https://mlflow.example.org" in athanor("secret", "list").stdout
    assert athanor("secret", "destinations", TOKEN["name"], "https://other.example.org").returncode == 0
    assert json.loads(server.seen[-1].body) == {
        "destinations": ["https://mlflow.example.org", "https://other.example.org"]
    }
    assert athanor("secret", "destinations", TOKEN["name"], "https://mlflow.example.org", "--remove").returncode == 0
    assert json.loads(server.seen[-1].body) == {"destinations": []}
    unknown = athanor("secret", "destinations", TOKEN["name"], "https://no.example.org", "--remove")
    assert (unknown.returncode, "no destination of" in unknown.stderr) == (2, True)
    missing = athanor("secret", "delete", "hf-token")
    assert (missing.returncode, "athanor secret list" in missing.stderr) == (4, True)


def test_the_team_is_that_of_the_token_unless_another_is_named(server, athanor, answer) -> None:
    server.answer("GET /api/v1/teams", answer({"items": [{"id": "team_2", "name": "blue"}, TEAM]}))
    server.answer("GET /api/v1/tokens", answer({"items": [{"id": "tok_1", "team": "red"}], "next_cursor": None}))
    server.answer("GET /api/v1/teams/team_1/secrets", answer({"items": [TOKEN]}))
    assert TOKEN["name"] in athanor("secret", "list").stdout
    server.answer("GET /api/v1/teams/team_2/secrets", answer({"items": []}))
    assert TOKEN["name"] not in athanor("secret", "list", "--team", "blue").stdout
    result = athanor("secret", "list", "--team", "green")
    assert (result.returncode, "--team green: your teams are blue, red" in result.stderr) == (2, True)
