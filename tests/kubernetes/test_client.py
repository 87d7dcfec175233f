"""How an API server is reached: credentials of every kind, and what its answers mean."""

import base64
import datetime
import ipaddress
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from athanor.backends.base import BackendUnavailable, Handle, Presence
from athanor.backends.kubernetes import credentials
from athanor.backends.kubernetes.backend import KubernetesBackend
from athanor.backends.kubernetes.client import KubernetesClient, Refused, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.quantities import amount
from tests.backends.cases.kubernetes import KubernetesCase

NEVER = Handle("athanor-nothing")


def kubeconfig(case: KubernetesCase, folder: Path, user: dict[str, Any], **cluster: Any) -> str:
    """A file in which two contexts are, the other one current."""
    file = folder / "config.yaml"
    server = {"server": case.cluster.url, **cluster}
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "elsewhere",
        "clusters": [{"name": "c", "cluster": server}, {"name": "e", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "elsewhere", "context": {"cluster": "e", "user": "u"}},
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
        ],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    return str(file)


def backend(file: str, **changes: Any) -> KubernetesBackend:
    facts = {"kubeconfig_file": file, "context": "here", "image": "none", "watch": False, "timeout_seconds": 2.0}
    return KubernetesBackend(**{**facts, **changes})


def is_there(found: KubernetesBackend) -> bool:
    return found.observe([NEVER])[NEVER].presence is Presence.ABSENT


def test_a_token_in_the_file(kubernetes: KubernetesCase, tmp_path: Path) -> None:
    assert is_there(backend(kubeconfig(kubernetes, tmp_path, {"token": kubernetes.cluster.token})))


def test_a_token_in_a_file_of_its_own_beside_it(kubernetes: KubernetesCase, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(kubernetes.cluster.token + "\n")
    assert is_there(backend(kubeconfig(kubernetes, tmp_path, {"tokenFile": "token"})))


def test_a_token_that_was_renewed_is_read_again_once_the_old_one_is_refused(
    kubernetes: KubernetesCase, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(kubernetes.cluster.token)
    found = backend(kubeconfig(kubernetes, tmp_path, {"tokenFile": "token"}))
    assert is_there(found)
    kubernetes.cluster.tokens = {"renewed"}
    with pytest.raises(BackendUnavailable, match="does not know us"):
        is_there(found)
    (tmp_path / "token").write_text("renewed")
    assert is_there(found)


def test_a_token_from_a_credential_plugin(kubernetes: KubernetesCase, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!{sys.executable}\nimport json, os\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        "open(os.environ['CALLS'], 'a').write('x')\n"
        f"print(json.dumps({{'status': {{'token': {kubernetes.cluster.token!r}}}}}))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    calls = tmp_path / "calls"
    said = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    user = {"exec": {**said, "env": [{"name": "CALLS", "value": str(calls)}]}}
    found = backend(kubeconfig(kubernetes, tmp_path, user))
    assert is_there(found)
    assert is_there(found)
    assert calls.read_text() == "x"
    plugin.write_text(f"#!{sys.executable}\nimport sys; sys.exit('no session')\n")
    with pytest.raises(BackendUnavailable, match="no session"):
        is_there(backend(kubeconfig(kubernetes, tmp_path, user), timeout_seconds=3.0))


def test_the_account_of_the_pod_that_the_platform_runs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, _ = authority(tmp_path)
    (tmp_path / "ca.crt").write_text(certificate)
    (tmp_path / "token").write_text("mounted")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    found = credentials.in_cluster(tmp_path)
    assert found.server == "https://[fd00::1]:6443"
    assert isinstance(found.context, ssl.SSLContext)
    assert [one["subject"] for one in found.context.get_ca_certs()] == [((("commonName", "test"),),)]
    assert found.token() == "mounted"
    (tmp_path / "token").write_text("rotated")
    assert found.token() == "mounted"
    monkeypatch.setattr(credentials, "TOKEN_FILE_SECONDS", 0.0)
    found.forget()
    assert found.token() == "rotated"


def test_without_a_file_and_outside_a_cluster_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BackendUnavailable, match="kubeconfig_file"):
        is_there(KubernetesBackend(image="none"))
    found = KubernetesBackend(image="none").check_health()
    assert not found.is_usable


def test_servers_and_clients_certificates_are_checked(kubernetes: KubernetesCase, tmp_path: Path) -> None:
    certificate, key = authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    context.load_verify_locations(cadata=certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server = kubernetes.cluster.server
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kubernetes.cluster.is_secure = True
    data = {"certificate-authority-data": base64.b64encode(certificate.encode()).decode()}
    pair = {
        "token": kubernetes.cluster.token,
        "client-certificate": "cert.pem",
        "client-key-data": base64.b64encode(key.encode()).decode(),
    }
    assert is_there(backend(kubeconfig(kubernetes, tmp_path, pair, **data)))
    with pytest.raises(BackendUnavailable):  # no certificate of ours
        is_there(backend(kubeconfig(kubernetes, tmp_path, {"token": "x"}, **data), timeout_seconds=1.9))
    with pytest.raises(BackendUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        is_there(backend(kubeconfig(kubernetes, tmp_path, pair), timeout_seconds=1.8))
    skipped = kubeconfig(kubernetes, tmp_path, pair, **{"insecure-skip-tls-verify": True})
    assert is_there(backend(skipped, timeout_seconds=1.7))


def authority(folder: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1, which signs itself, and its key; also as cert.pem and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)

    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    certificate = made.public_bytes(serialization.Encoding.PEM).decode()
    (folder / "cert.pem").write_text(certificate)
    (folder / "key.pem").write_text(private)
    return certificate, private


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be used"),
        ("current-context: a", "contexts has no entry here"),
        ("contexts: [{name: here, context: {cluster: c}}]", "clusters has no entry c"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_entry(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(BackendUnavailable, match=words) as refused:
        is_there(backend(str(file)))
    assert str(file) in str(refused.value)


def test_what_the_server_says_is_told_apart(kubernetes: KubernetesCase) -> None:
    client = KubernetesClient(KubernetesConfig(**kubernetes.cluster.config(timeout_seconds=1.0)))
    where = path("v1", "namespaces", "", "default")
    assert client.json("GET", where)["metadata"]["name"] == "default"
    with pytest.raises(Refused) as refused:
        client.json("GET", path("v1", "namespaces", "", "no/such"))
    assert (refused.value.code, refused.value.reason) == (404, "NotFound")
    kubernetes.cluster.forbidden = {("get", "namespaces")}
    with pytest.raises(Refused, match="cannot get"):
        client.json("GET", where)
    kubernetes.cluster.forbidden = set()
    for fault in ("error", "lost_answer", "timeout"):
        with kubernetes.cluster.faulty(fault), pytest.raises(BackendUnavailable):
            client.json("GET", where)


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("1500m", 1.5), ("64Gi", 64 * 2**30), ("1e3", 1000), ("5k", 5000), ("0.5", 0.5)]
)
def test_quantities(text: str, value: float) -> None:
    assert amount(text) == value


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="no quantity"):
        amount("many")
