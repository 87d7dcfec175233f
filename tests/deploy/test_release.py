"""A release: what is refused, what is in it, and that its signature and its bytes can be checked."""

import hashlib
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.local.errors import StackError
from deploy.release.__main__ import build
from deploy.release.checkout import Checkout

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen (openssh-client)")
VERSION = "1.2.3"
FILES = {
    "pyproject.toml": (
        f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "athanor"\nversion = "{VERSION}"\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["athanor"]\n'
    ),
    "CHANGELOG.md": (
        f"# Changelog\n\n## Unreleased\n\n## {VERSION} - 2026-11-28\n\n### Added\n- A thing.\n\n"
        "## 1.2.2 - 2026-01-01\n\n- Old.\n"
    ),
    "athanor/__init__.py": "",
    "deploy/helm/athanor/Chart.yaml": f"apiVersion: v2\nname: athanor\nversion: {VERSION}\nappVersion: {VERSION}\n",
    ".gitignore": "build/\nfrontend/dist/\n",
}  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Release", "-c", "user.email=release@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working copy of a small project with built pages."""
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for pages in ("frontend/dist", "build/docs"):
        (folder / pages).mkdir(parents=True)
        (folder / pages / "index.html").write_text(f"<h1>{pages}</h1>")
        (folder / pages / ".athanor-sources").write_text("a digest")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Release")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "release@example.org")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "A change")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "release_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)], check=True)
    return file


def image(repository: Path, revision: str, version: str = VERSION) -> None:
    """Write an image's layout, as `make images` does."""
    layout = repository / "build" / "images" / "platform"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def store(content: object) -> str:
        raw = json.dumps(content).encode()
        digest = hashlib.sha256(raw).hexdigest()
        (blobs / digest).write_bytes(raw)
        return f"sha256:{digest}"

    labels = {"org.opencontainers.image.revision": revision, "org.opencontainers.image.version": version}
    manifest = store({"config": {"digest": store({"config": {"Labels": labels}})}})
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": manifest}]}))


def verify(folder: Path, key: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Check the signature as docs/operations/upgrade.md shows."""
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(f"release {key.with_suffix('.pub').read_text()}")
    command = [
        "ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", "release", "-n", "athanor-release",
        "-s", str(folder / "SHA256SUMS.sig"),
    ]  # fmt: skip
    return subprocess.run(
        command, input=(folder / "SHA256SUMS").read_text(), capture_output=True, text=True, check=False
    )


def test_a_release_is_complete_signed_tagged_and_the_same_when_built_again(
    repository: Path, key: Path, tmp_path: Path
) -> None:
    image(repository, git(repository, "rev-parse", "HEAD"))
    checkout = Checkout(repository)
    folder = build(checkout, VERSION, key, ["platform"], tag=True)
    names = {file.name for file in folder.iterdir()}
    assert names == {
        "RELEASE_NOTES.md", "SHA256SUMS", "SHA256SUMS.sig", f"athanor-{VERSION}-py2.py3-none-any.whl",
        f"athanor-{VERSION}.tgz", f"athanor-dashboard-{VERSION}.tar.gz", f"athanor-docs-{VERSION}.tar.gz",
        f"athanor-platform-{VERSION}.oci.tar",
    }  # fmt: skip
    assert (folder / "RELEASE_NOTES.md").read_text() == f"# Athanor {VERSION}\n\n### Added\n- A thing.\n"
    with tarfile.open(folder / f"athanor-dashboard-{VERSION}.tar.gz") as tar:
        assert tar.getnames() == ["dashboard", "dashboard/index.html"]
    with zipfile.ZipFile(folder / f"athanor-{VERSION}-py2.py3-none-any.whl") as wheel:
        assert "athanor/__init__.py" in wheel.namelist()
    assert verify(folder, key, tmp_path).returncode == 0
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    assert "-----BEGIN SSH SIGNATURE-----" in git(repository, "cat-file", "tag", f"v{VERSION}")
    before = (folder / "SHA256SUMS").read_bytes()
    assert build(checkout, VERSION, key, ["platform"], tag=False) == folder
    assert (folder / "SHA256SUMS").read_bytes() == before
    (folder / "SHA256SUMS").write_bytes(before.replace(b"RELEASE_NOTES.md", b"release_notes.md"))
    assert verify(folder, key, tmp_path).returncode != 0, "changed checksums are not verified"


def refused(repository: Path, key: Path, message: str, images: list[str] | None = None, version: str = VERSION) -> None:
    with pytest.raises(StackError, match=message):
        build(Checkout(repository), version, key, images or [], tag=True)
    assert not git(repository, "tag", "--list")
    assert not (repository / "build" / "release").exists()


def test_what_is_not_committed_is_refused(repository: Path, key: Path) -> None:
    (repository / "athanor" / "more.py").write_text("")
    refused(repository, key, "not committed")


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3.4", "../1.2.3"])
def test_a_malformed_version_is_refused(repository: Path, key: Path, version: str) -> None:
    refused(repository, key, "is not of the form", version=version)


def test_another_version_in_a_file_is_refused(repository: Path, key: Path) -> None:
    refused(repository, key, "pyproject.toml has version 1.2.3, not 1.2.4", version="1.2.4")
    chart = repository / "deploy" / "helm" / "athanor" / "Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: 1.2.3", "appVersion: 1.2.2"))
    commit(repository)
    refused(repository, key, "another appVersion than 1.2.3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## Unreleased\n\n- x\n", "has no"),
        (f"## {VERSION}\n\n- x\n", "has no"),
        (f"## {VERSION} - 2026-11-28\n\n## 1.2.2\n", "has nothing"),
    ],
)
def test_a_changelog_without_the_version_is_refused(repository: Path, key: Path, text: str, message: str) -> None:
    (repository / "CHANGELOG.md").write_text(f"# Changelog\n\n{text}")
    commit(repository)
    refused(repository, key, message)


def test_an_image_that_is_missing_or_of_another_commit_is_refused(repository: Path, key: Path) -> None:
    refused(repository, key, "has no image: `make images IMAGES=platform`", ["platform"])
    image(repository, "0" * 40)
    refused(repository, key, "the image platform is of revision 0000", ["platform"])


def test_a_released_version_is_refused(repository: Path, key: Path) -> None:
    git(repository, "tag", f"v{VERSION}")
    with pytest.raises(StackError, match="a released version does not change"):
        build(Checkout(repository), VERSION, key, [], tag=True)


def test_a_key_that_cannot_sign_is_refused_before_anything_is_built(repository: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "words", "-f", str(locked)], check=True)
    for key in (tmp_path / "none", locked, locked.with_suffix(".pub")):
        refused(repository, key, "not a private SSH key without a passphrase")
