"""What `make images` does around the builder: the source of one commit, and documents attached to an image."""

import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.images import provenance
from deploy.images.__main__ import IMAGES, Source
from deploy.images.builder import Builder
from deploy.images.layout import Layout
from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError

CONTAINERFILES = sorted((REPOSITORY / "deploy" / "images").glob("*.Containerfile"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An image of two layers, of which the second changes a file of the first."""
    blobs = tmp_path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def add(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def layer(files: dict[str, bytes]) -> dict[str, object]:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return add(gzip.compress(packed.getvalue()), "application/vnd.oci.image.layer.v1.tar+gzip")

    layers = [layer({"opt/list": b"old", "etc/name": b"base"}), layer({"opt/list": b"new"})]
    config = add(b"{}", "application/vnd.oci.image.config.v1+json")
    manifest = {"schemaVersion": 2, "config": config, "layers": layers}
    image = add(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [image]}))
    return Layout(tmp_path)


def test_a_file_is_read_from_the_newest_layer_that_has_it(layout: Layout) -> None:
    assert layout.read_file("opt/list") == b"new"
    assert layout.read_file("etc/name") == b"base"
    with pytest.raises(FileNotFoundError, match="no/such"):
        layout.read_file("no/such")


def test_what_is_attached_names_the_image_as_its_subject_and_the_image_stays(layout: Layout, tmp_path: Path) -> None:
    before = layout.image
    layout.attach("application/vnd.cyclonedx+json", b'{"bomFormat": "CycloneDX"}')
    layout.attach("application/vnd.in-toto+json", b"{}")
    again = Layout(tmp_path)
    assert again.image == before
    assert again.attached() == {
        "application/vnd.cyclonedx+json": b'{"bomFormat": "CycloneDX"}',
        "application/vnd.in-toto+json": b"{}",
    }
    for blob in (tmp_path / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    index = json.loads((tmp_path / "index.json").read_text())
    assert [entry.get("artifactType") for entry in index["manifests"]][1:] == list(again.attached())


def test_the_provenance_names_image_source_base_and_arguments() -> None:
    made = json.loads(
        provenance.statement(
            name="athanor/platform", digest="sha256:aa", containerfile="deploy/images/platform.Containerfile",
            arguments={"BASE": "python:3.12-slim", "VERSION": "1.2"}, base_digest="sha256:bb", revision="cc",
            builder="1.28.2", began=datetime(2026, 1, 1, tzinfo=UTC), ended=datetime(2026, 1, 1, 0, 2, tzinfo=UTC),
        )
    )  # fmt: skip
    assert made["subject"] == [{"name": "athanor/platform", "digest": {"sha256": "aa"}}]
    definition = made["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["arguments"]["VERSION"] == "1.2"
    assert definition["resolvedDependencies"] == [
        {"name": "source", "digest": {"gitCommit": "cc"}},
        {"name": "python:3.12-slim", "digest": {"sha256": "bb"}},
    ]
    assert made["predicate"]["runDetails"]["metadata"]["finishedOn"] == "2026-01-01T00:02:00+00:00"


def test_only_what_is_committed_gets_into_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, target = tmp_path / "repository", tmp_path / "target"
    repository.mkdir()
    target.mkdir()
    monkeypatch.setattr("deploy.images.__main__.REPOSITORY", repository)
    (repository / "pyproject.toml").write_text('[project]\nname = "athanor"\nversion = "7.8.9"\n')
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *command], cwd=repository, check=True)
    (repository / "secrets.json").write_text("not committed")
    (repository / "pyproject.toml").write_text("changed")
    source = Source.of_revision("HEAD", target)
    assert source.version == "7.8.9"
    assert re.fullmatch("[0-9a-f]{40}", source.revision)
    assert [path.name for path in source.folder.iterdir()] == ["pyproject.toml"]
    with pytest.raises(StackError, match="images are built from a commit"):
        Source.of_revision("no-such-revision", target)


def test_without_a_builder_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StackError, match="apt-get install buildah"):
        Builder.find([])


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_programs_of_an_image_are_pinned_and_not_roots(path: Path) -> None:
    text = path.read_text()
    final = text[text.rindex("\nFROM ") :]
    user = re.search(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert user is not None
    assert int(user[1]) > 0
    # `python -m` imports from the folder where it is started: what a job leaves in /tmp must not be found there.
    assert re.findall(r"^WORKDIR (.*)$", final, re.MULTILINE) == ["/"]
    for command in re.findall(r"pip install (?:.*\\\n)*?.*?(?= \\\n    &&|\n)", text):
        if "-c constraints.txt torch" not in command:  # each build of torch has other files
            assert "--require-hashes" in command or "--no-deps --no-index" in command, command


def test_each_image_has_a_containerfile_that_takes_its_arguments() -> None:
    for image in IMAGES.values():
        text = (REPOSITORY / "deploy" / "images" / f"{image.containerfile}.Containerfile").read_text()
        for argument in {
            "BASE",
            "VERSION",
            "REVISION",
            *image.arguments,
            *(["TORCH_OPTIONS"] if image.has_torch else []),
        }:
            assert re.search(rf"^ARG {argument}=", text, re.MULTILINE), (image, argument)
