"""Address and credentials of the API server: from a kubeconfig file, or from the pod that the platform runs in."""

import base64
import json
import os
import ssl
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from athanor.backends.base import BackendUnavailable
from athanor.backends.kubernetes.config import KubernetesConfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_SECONDS = 8.0
TOKEN_FILE_SECONDS = 60.0  # the cluster renews a mounted token long before the old one ends


@dataclass
class Credentials:
    """How to authenticate. Token files are read again after a while, because they are renewed there."""

    server: str
    context: ssl.SSLContext | bool
    fixed_token: str = ""
    token_file: Path | None = None
    plugin: dict[str, Any] | None = None
    basic: tuple[str, str] | None = None
    _token: str = field(default="", repr=False)
    _good_until: float = 0.0

    def token(self) -> str:
        """Return the current token, from the token file, the plugin or the configuration."""
        if self.token_file is not None:
            if time.monotonic() >= self._good_until:
                self._token, self._good_until = read(self.token_file).strip(), time.monotonic() + TOKEN_FILE_SECONDS
            return self._token
        if self.plugin is not None:
            if time.time() >= self._good_until:
                self._token, self._good_until = run_plugin(self.plugin)
            return self._token
        return self.fixed_token

    def forget(self) -> None:
        """Read the token again for the next request, after the server refused it."""
        self._good_until = 0.0


def load(config: KubernetesConfig) -> Credentials:
    """Return the credentials of a configuration.

    Raise BackendUnavailable, with the file and the entry, for an unusable one, which may be fixed later.
    """
    if config.kubeconfig_file is None:
        return in_cluster(SERVICE_ACCOUNT)
    return from_kubeconfig(Path(config.kubeconfig_file), config.context)


def in_cluster(folder: Path) -> Credentials:
    """Return the credentials of the pod's service account."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BackendUnavailable(
            "kubeconfig_file is not given, and this process runs in no pod of a cluster; give kubeconfig_file"
        )
    address = f"[{host}]" if ":" in host else host
    context = ssl.create_default_context(cadata=read(folder / "ca.crt"))
    return Credentials(f"https://{address}:{port}", context, token_file=folder / "token")


def from_kubeconfig(file: Path, context: str | None) -> Credentials:
    """Return the credentials of a context of a kubeconfig file."""
    try:
        content = yaml.safe_load(read(file))
        chosen = context or content["current-context"]
        named = _entry(content, "contexts", chosen)["context"]
        cluster = _entry(content, "clusters", named["cluster"])["cluster"]
        user = _entry(content, "users", named["user"]).get("user") or {}
        server = str(cluster["server"]).rstrip("/")
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise BackendUnavailable(f"kubeconfig_file {file} cannot be used: {error!r}") from error
    if user.get("auth-provider"):
        raise BackendUnavailable(f"kubeconfig_file {file}: auth-provider is of an older time; use an exec plugin")
    credentials = Credentials(server, _tls(file, cluster, user), fixed_token=str(user.get("token") or ""))
    if user.get("tokenFile"):
        credentials.token_file = file.parent / user["tokenFile"]
    elif user.get("exec"):
        credentials.plugin = user["exec"]
    elif user.get("username"):
        credentials.basic = (str(user["username"]), str(user.get("password") or ""))
    return credentials


def _entry(content: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    for entry in content.get(section) or []:
        if entry.get("name") == name:
            found: dict[str, Any] = entry
            return found
    raise KeyError(f"{section} has no entry {name}")


def _tls(file: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext | bool:
    if str(cluster["server"]).startswith("http://"):
        return False
    try:
        context = ssl.create_default_context()
        if authority := _content(file, cluster, "certificate-authority"):
            context = ssl.create_default_context(cadata=authority)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _content(file, user, "client-certificate"), _content(file, user, "client-key")
        if certificate and key:
            _load_pair(context, certificate, key)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise BackendUnavailable(f"kubeconfig_file {file}: its certificates cannot be used: {error}") from error
    return context


def _content(file: Path, entry: dict[str, Any], name: str) -> str:
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"]).decode()
    return read(file.parent / entry[name]) if entry.get(name) else ""


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Write the pair to an in-memory file for the ssl module, which reads files only, and delete it immediately."""
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, f"{certificate}\n{key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def read(file: Path) -> str:
    """Return the text of a file. Raise BackendUnavailable."""
    try:
        return file.read_text()
    except OSError as error:
        raise BackendUnavailable(f"cannot read {file}: {error.strerror}") from error


def run_plugin(plugin: dict[str, Any]) -> tuple[str, float]:
    """Return the token of a client-go credential plugin, and until when it is valid (seconds since the epoch)."""
    command = [str(plugin["command"]), *map(str, plugin.get("args") or [])]
    more = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or []}
    request = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    try:
        done = subprocess.run(
            command, env={**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(request)}, capture_output=True,
            timeout=PLUGIN_SECONDS, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        status = json.loads(done.stdout)["status"]
        token = str(status["token"])
        ends = status.get("expirationTimestamp")
        until = datetime.fromisoformat(ends).astimezone(UTC).timestamp() - 30 if ends else time.time() + 600
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()[-500:]
        raise BackendUnavailable(f"the credential plugin {command[0]} failed: {said}") from error
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise BackendUnavailable(f"the credential plugin {command[0]} gave no token: {error!r}") from error
    return token, until
