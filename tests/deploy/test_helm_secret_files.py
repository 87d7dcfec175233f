"""The chart with `secrets.asFiles`: what it mounts is what the platform reads."""

from pathlib import Path

import pytest

from athanor.config import env
from athanor.config.env import BOOTSTRAP_PASSWORD, read, read_secret
from tests.deploy import helm
from tests.deploy.test_helm import model_of, problems

pytestmark = helm.needs_helm
REQUIRED = {"DATABASE_URL", "CELERY_BROKER_URL", "ATHANOR_SECRET_KEY", "ATHANOR_MASTER_KEY"}
FROM = (
    "--set-json",
    'secrets.from={"DATABASE_URL":{"name":"database-app","key":"uri"},"ATHANOR_BOOTSTRAP_PASSWORD":{"key":"first"}}',
)


@pytest.mark.parametrize("values", helm.VALUES, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_the_platform_reads_the_files_that_the_chart_mounts(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = helm.render(values, "--set", "secrets.asFiles=true", *FROM)
    for one in objects:
        if model := model_of(one):
            assert problems(model, one) == []
    for component, template in helm.pods(objects).items():
        container = helm.container(template)
        (volume,) = [one for one in template["spec"]["volumes"] if one["name"] == "secrets"]
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "secrets"]
        folder = tmp_path / component
        folder.mkdir()
        assert mount["readOnly"] is True
        for source in volume["projected"]["sources"]:
            for item in source["secret"]["items"]:  # as a kubelet writes them
                path = folder / item["path"]
                path.write_text(f"{source['secret']['name']}/{item['key']}, longer than a token has to be")
                path.chmod(volume["projected"]["defaultMode"])
        monkeypatch.setattr(env, "SECRETS_OF_CONTAINERS", folder)
        variables = {
            one["name"]: str(one["value"]).replace(mount["mountPath"], str(folder))
            for one in container["env"]
            if "value" in one
        }
        taken = read(variables)
        assert taken.database_url.startswith("database-app/uri, ")
        assert taken.master_key.split(",")[0].endswith("/ATHANOR_MASTER_KEY")
        files = {name.removesuffix("_FILE") for name in variables if name.endswith("_FILE")}
        assert files == {path.name for path in folder.iterdir()}
        assert files >= REQUIRED
        assert (BOOTSTRAP_PASSWORD in files) == (component == "prepare")
        if component == "prepare":
            assert read_secret(BOOTSTRAP_PASSWORD, variables).split(",")[0].endswith("/first")
        others = {one["name"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})}
        assert not others & files
        assert all(one["valueFrom"]["secretKeyRef"]["optional"] for one in container["env"] if one["name"] in others)


def test_without_it_nothing_is_mounted() -> None:
    for template in helm.pods(helm.render(helm.VALUES[0])).values():
        assert "secrets" not in {one["name"] for one in template["spec"]["volumes"]}
