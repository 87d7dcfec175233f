"""`athanor cluster`: requests to the server, and output."""

import json
from typing import Any

PROBE = {
    "id": "prb_1", "usable": False, "version": "slurm 22.05", "facts": {}, "began_at": "", "seen_at": "",
    "findings": [
        {"check": "answer", "level": "ok", "detail": "it answers", "remedy": ""},
        {
            "check": "munge", "level": "error", "detail": "[munge] is down", "remedy": "start munged",
            "runbook": "/docs/runbooks/findings/slurm-settings#munge",
        },
    ],
}  # fmt: skip
CLUSTER = {
    "id": "cls_1", "name": "iron", "kind": "slurm", "enabled": True, "usable": False, "pools": [],
    "nodes": {"total": 2, "ready": 1, "drained": 0, "down": 1, "unknown": 0, "quarantined": 1},
    "capacity": [{"accelerator": "gpu:h100", "nodes": 2, "slots": 16, "slots_used": 3, "usable_slots": 8}],
}  # fmt: skip
SETUP = {
    "config": {}, "config_problems": [], "capabilities": ["probe"], "probe": PROBE, "nodes_at": None,
    "nodes_problem": "", "suspects": ["n7"], "proposed_pools": [
        {"name": "gpu", "accelerator": "h100", "nodes": 2, "slots_per_node": 8, "memory_bytes": 1024,
         "accelerator_memory_bytes": None},
    ],
}  # fmt: skip
NODE = {
    "name": "n1", "state": "drained", "reason": "", "listed": True, "pools": ["gpu"], "accelerator": "gpu:h100",
    "slots": 8, "slots_used": 0, "cpus": 8, "memory_bytes": 1, "quarantined_at": "now", "quarantined_by": "root",
    "quarantine_reason": "Xid 79", "recent_jobs_hit": 3, "notice": "iron did not drain it: away",
}  # fmt: skip


def test_a_cluster_is_shown_with_findings_and_remedies(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/clusters", answer({"items": [CLUSTER], "next_cursor": None}))
    server.answer("GET /api/v1/clusters/cls_1", answer({**CLUSTER, "setup": SETUP}))
    listed = athanor("cluster", "list")
    assert "3/16 gpu:h100" in listed.stdout
    assert "not usable" in listed.stdout
    shown = athanor("cluster", "show", "iron").stdout
    for words in ("[munge] is down", "start munged", "1 ready, 1 down, 1 in quarantine", "n7"):
        assert words in shown
    assert f"runbook: {server.url}/docs/runbooks/findings/slurm-settings#munge\n" in shown
    missing = athanor("cluster", "show", "irn")
    assert (missing.returncode, "there is iron" in missing.stderr) == (4, True)


def test_registering_examines_and_a_dry_run_stores_nothing(server: Any, athanor: Any, answer: Any) -> None:
    (athanor.home / "iron.yaml").write_text("name: iron\nkind: slurm\nconfig:\n  transport: ssh\n")
    server.answer("POST /api/v1/clusters:check", answer(PROBE))
    dry = athanor("cluster", "add", "iron.yaml", "--check")
    assert (dry.returncode, "jobs cannot run" in dry.stdout) == (1, True)
    assert json.loads(server.seen[-1].body) == {
        "name": "iron", "kind": "slurm", "config": {"transport": "ssh"},
    }  # fmt: skip
    errors = [{"pointer": "/config/transport/host", "code": "missing", "detail": "Field required"}]
    refusal = {"code": "invalid_config", "detail": "the configuration does not fit", "errors": errors}
    server.answer("POST /api/v1/clusters", answer(refusal, 422), answer({**CLUSTER, "setup": SETUP}, 201))
    refused = athanor("cluster", "add", "iron.yaml")
    assert (refused.returncode, "/config/transport/host: Field required" in refused.stderr) == (2, True)
    server.answer("POST /api/v1/clusters/cls_1:probe", answer(PROBE))
    made = athanor("cluster", "add", "iron.yaml")
    assert made.returncode == 0
    assert "start munged" in made.stdout


def test_nodes_are_listed_and_acted_upon(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/clusters", answer({"items": [CLUSTER], "next_cursor": None}))
    server.answer("GET /api/v1/clusters/cls_1/nodes", answer({"items": [NODE], "next_cursor": None}))
    assert "quarantine by root: Xid 79" in athanor("cluster", "nodes", "iron").stdout
    server.answer("POST /api/v1/clusters/cls_1/nodes/n1:quarantine", answer(NODE))
    done = athanor("cluster", "quarantine", "iron", "n1", "--reason", "Xid 79")
    assert done.returncode == 0
    assert "iron did not drain it" in done.stdout
    assert json.loads(server.seen[-1].body) == {"reason": "Xid 79"}
    server.answer("PATCH /api/v1/clusters/cls_1", answer({**CLUSTER, "enabled": False, "setup": None}))
    assert "disabled" in athanor("cluster", "disable", "cls_1").stdout
    assert json.loads(server.seen[-1].body) == {"enabled": False}
    server.answer("POST /api/v1/clusters/cls_1:probe", answer(PROBE))
    assert athanor("cluster", "probe", "iron").returncode == 1


def test_a_proposed_pool_is_made_by_its_name_and_changed_by_options(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/clusters", answer({"items": [CLUSTER], "next_cursor": None}))
    server.answer("GET /api/v1/clusters/cls_1", answer({**CLUSTER, "setup": SETUP}))
    made = {**SETUP["proposed_pools"][0], "slots": 16, "slots_used": 0, "nodes": 2, "spare_nodes": 1}
    server.answer("PUT /api/v1/clusters/cls_1/pools/gpu", answer(made, 201))
    done = athanor("cluster", "pool", "iron", "gpu", "--price", "2.5", "--spare-nodes", "1", "--no-test")
    assert (done.returncode, "0 of 16 slots used, 2 nodes (1 spare) of 8" in done.stdout) == (0, True)
    assert json.loads(server.seen[-1].body) == {
        "accelerator": "h100", "nodes": 2, "slots_per_node": 8, "memory_bytes": 1024, "accelerator_memory_bytes": None,
        "price_per_slot_hour": "2.5", "spare_nodes": 1,
    }  # fmt: skip


def test_after_the_first_pool_a_free_node_is_tested(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/clusters", answer({"items": [CLUSTER], "next_cursor": None}))
    server.answer("GET /api/v1/clusters/cls_1", answer({**CLUSTER, "setup": SETUP}))
    made = {**SETUP["proposed_pools"][0], "slots": 16, "slots_used": 0, "nodes": 2, "spare_nodes": 0}
    server.answer("PUT /api/v1/clusters/cls_1/pools/gpu", answer(made, 201))
    states = [("n0", "cpu", 0), ("n1", "h100", 3), ("n2", "h100", 0)]
    other, busy, free = ({**NODE, "name": name, "accelerator": kind, "slots_used": used} for name, kind, used in states)
    server.answer("GET /api/v1/clusters/cls_1/nodes", answer({"items": [other, busy, free], "next_cursor": None}))
    row = {
        "id": "pre_1", "cause": "manual", "actor": "ada", "outcome": "failed", "report": None,
        "detail": "its cluster did not start it: ImagePullBackOff", "created_at": "2026-03-01T10:00:00Z",
    }  # fmt: skip
    server.answer("POST /api/v1/clusters/cls_1/nodes/n2:preflight", answer({**row, "outcome": ""}, 201))
    server.answer("GET /api/v1/clusters/cls_1/nodes/n2/preflights", answer({"items": [row], "next_cursor": None}))
    done = athanor("cluster", "pool", "iron", "gpu")
    assert done.returncode == 1
    assert "started by ada: failed\nits cluster did not start it: ImagePullBackOff" in done.stdout
    server.answer("GET /api/v1/clusters/cls_1/nodes", answer({"items": [other, busy], "next_cursor": None}))
    none = athanor("cluster", "pool", "iron", "gpu")
    assert (none.returncode, "no node (h100) is ready and free" in none.stderr) == (1, True)
