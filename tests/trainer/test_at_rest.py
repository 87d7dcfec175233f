"""What lies on a node while jobs run: each team's own folder, readable by the agent's user alone; no path leads out."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import platform_run, tiny_training
from tests.trainer.test_agent_process import agent
from trainer.agent.cache import team_cache
from trainer.contract import environment as names
from trainer.contract.models import MODELS
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.data.shards import INDEX_NAME, DatasetIndex
from trainer.errors import TrainerError
from trainer.export.read import StoredWeights


def modes(root: Path) -> dict[str, int]:
    """The permissions of everything below, by its path."""
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}


@pytest.mark.slow
def test_each_team_has_its_own_cache_which_others_cannot_open(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    before = os.umask(0o022)  # as in most shells
    try:
        for team in ("team_red", "team_blue"):
            run, keys, objects = platform_run(tiny_training(), cache_scope=team)
            work = tmp_path / team
            with (
                AgentApi(run, keys, dict(objects)) as api,
                agent(api, work, **{names.CACHE_DIR: str(cache)}) as process,
            ):
                assert process.wait(120) == EXIT_STATUS[EndClass.COMPLETED], (work / "agent.log").read_text()[-3000:]
    finally:
        os.umask(before)
    found = {
        team: [path.name for path in (cache / "teams" / team).rglob("*.tokens")] for team in ("team_red", "team_blue")
    }
    assert all(found.values()), found
    assert [path.name for path in cache.iterdir()] == ["teams"], "nothing is shared"
    open_to_others = {path: oct(mode) for path, mode in modes(cache).items() if mode & 0o077}
    assert open_to_others == {}
    work_modes = modes(tmp_path / "team_red")
    del work_modes["agent.log"]  # of the test, not of the agent
    assert {path: oct(mode) for path, mode in work_modes.items() if mode & 0o077} == {}


def test_a_cache_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _, _ = platform_run(tiny_training(), cache_scope="team_red")
    folder = team_cache(tmp_path, run)
    folder.chmod(0o777)
    assert stat.S_IMODE(team_cache(tmp_path, run).stat().st_mode) == 0o700
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.rmdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(TrainerError, match="belongs to another user"):
        team_cache(tmp_path, run)
    folder.unlink()
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(TrainerError, match=r"profile\.cache_directory"):
        team_cache(tmp_path, run)


@pytest.mark.parametrize("scope", ["../x", "a/b", "", "team_" + "x" * 80])
def test_a_scope_is_the_name_of_a_folder(scope: str) -> None:
    if scope == "":
        assert platform_run(tiny_training())[0].cache_scope == ""
        return
    with pytest.raises(ValueError, match="cache_scope"):
        platform_run(tiny_training(), cache_scope=scope)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside the model's folder, which holds a tensor of the name that is asked for."""
    path = tmp_path / "secret.safetensors"
    save_file({"model.norm.weight": torch.ones(MODELS["llama-1m"].hidden_size)}, path)
    return path


def model_folder(tmp_path: Path, file: Any) -> Path:
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": file}}))
    return folder


@pytest.mark.parametrize("file", ["../secret.safetensors", "ABSOLUTE", "sub/x.safetensors", "..", "", 7, "a\\b"])
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, secret: Path, file: Any) -> None:
    written = str(secret) if file == "ABSOLUTE" else file
    folder = model_folder(tmp_path, written)
    with pytest.raises(TrainerError, match="plain name of a file beside it") as refused:
        StoredWeights(folder, MODELS["llama-1m"])
    assert repr(written) in str(refused.value) and "model.norm.weight" in str(refused.value)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, secret: Path) -> None:
    folder = model_folder(tmp_path, "model.safetensors")
    (folder / "model.safetensors").symlink_to(secret)
    size = (MODELS["llama-1m"].hidden_size,)
    with pytest.raises(TrainerError, match="a link to a file outside of the folder"):
        StoredWeights(folder, MODELS["llama-1m"]).whole("norm.weight", size)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(TrainerError, match="a link to a file outside of the folder"):
        StoredWeights(folder, MODELS["llama-1m"])
    (folder / "model.safetensors").unlink()
    secret.rename(folder / "model.safetensors")  # the remedy
    assert StoredWeights(folder, MODELS["llama-1m"]).whole("norm.weight", size).sum() == size[0]


def test_the_links_of_hugging_faces_own_cache_are_followed(tmp_path: Path, secret: Path) -> None:
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    secret.rename(blobs / "0123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    size = (MODELS["llama-1m"].hidden_size,)
    assert StoredWeights(snapshot, MODELS["llama-1m"]).whole("norm.weight", size).shape == size


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": 7}', "{"])
def test_an_index_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(TrainerError, match="is not an index of safetensors files"):
        StoredWeights(tmp_path, MODELS["llama-1m"])


def test_an_index_of_data_names_shards_of_its_folder_alone(tmp_path: Path) -> None:
    shard = {"name": "../../x.tokens", "first_token": 0, "tokens": 1, "documents": 1, "sha256": "0" * 64}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"shards": {"train": [shard]}}))
    with pytest.raises(ValueError, match=r"'\.\./\.\./x\.tokens' is not the plain name"):
        DatasetIndex.read(tmp_path)
