"""A real Slurm of four nodes, registered and operated through the API."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.accounts.roles import PlatformRole
from athanor.clusters import server_config
from athanor.clusters.models import Cluster, Node
from athanor.clusters.services import quarantined_names
from athanor.fleet import inventory_sync
from deploy.local.handle import wait_until
from tests.control_plane.conftest import Api
from tests.slurm.cluster import SlurmCluster

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]


def test_its_nodes_make_pools_and_one_in_quarantine_is_drained_there(
    slurm: SlurmCluster, make_user: Callable[..., User], team: Team, settings: Any, tmp_path: Path
) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"cluster_config_dir": tmp_path})
    user = make_user("root", team)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    operator = Api()
    operator.force_login(User.objects.get(pk=user.pk))
    open_part, server_part = server_config.split("slurm", slurm.config())
    server_config.write("iron", "slurm", server_part)
    made = operator.send("POST", "clusters", {"name": "iron", "kind": "slurm", "config": open_part})
    assert made.status_code == 201, made.content
    path = f"clusters/{made.json()['id']}"
    inventory_sync.sync_due()
    shown = operator.send("GET", path).json()
    assert (shown["nodes"]["total"], shown["nodes"]["ready"]) == (4, 4)
    assert shown["setup"]["proposed_pools"]
    assert (shown["usable"], shown["setup"]["config_problems"]) == (True, [])
    assert "22.05" in shown["setup"]["probe"]["version"]
    for finding in shown["setup"]["probe"]["findings"]:
        assert finding["level"] == "ok" or finding["remedy"], finding
    name = operator.send("GET", f"{path}/nodes").json()["items"][0]["name"]

    done = operator.send("POST", f"{path}/nodes/{name}:quarantine", {"reason": "it's $(hot)"}).json()
    assert (done["notice"], done["state"]) == ("", "drained")
    cluster = Cluster.objects.get(name="iron")
    assert quarantined_names(cluster) == (name,)

    def in_slurm() -> str:
        return slurm.run("scontrol", "show", "node", name)

    wait_until(lambda: re.search(r"State=\S*DRAIN", in_slurm()), "Slurm drained it", 20)
    assert "it's $(hot)" in in_slurm()
    slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
    wait_until(lambda: "DRAIN" not in in_slurm(), "somebody gave it back there", 20)
    inventory_sync.refresh_nodes(cluster)
    wait_until(lambda: "DRAIN" in in_slurm(), "what is in quarantine is drained again", 20)

    back = operator.send("POST", f"{path}/nodes/{name}:release").json()
    assert (back["notice"], back["quarantined_at"]) == ("", None)
    wait_until(lambda: "DRAIN" not in in_slurm(), "Slurm took it back", 20)

    def is_ready() -> bool:  # for a moment Slurm reports that it does not respond
        inventory_sync.refresh_nodes(cluster)
        return Node.objects.get(name=name).state == "ready"

    wait_until(is_ready, "it is ready again", 30)
