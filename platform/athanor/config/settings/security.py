"""Keys, hosts, cookies."""

import sys

from athanor.api.limits import AGENT_BODY_BYTES
from athanor.config.env import EnvironmentProblem
from athanor.config.settings.base import ATHANOR

# Commands that only make keys or describe the code run before any key exists.
KEYLESS_COMMANDS = {"generate_master_key", "generate_secrets", "spectacular", "makemigrations", "check"}
_keyless = len(sys.argv) > 1 and sys.argv[1] in KEYLESS_COMMANDS

if not _keyless and not (ATHANOR.secret_key and ATHANOR.master_key):
    raise EnvironmentProblem(
        "athanor: ATHANOR_SECRET_KEY and ATHANOR_MASTER_KEY must be set; `make up` makes both, or see "
        "`python manage.py generate_secrets`"
    )

SECRET_KEY = ATHANOR.secret_key or "keyless-command"
ALLOWED_HOSTS = [host.strip() for host in ATHANOR.allowed_hosts.split(",") if host.strip()]
CSRF_TRUSTED_ORIGINS = [ATHANOR.public_url]
_https = ATHANOR.public_url.startswith("https://")
SESSION_COOKIE_SECURE = _https
CSRF_COOKIE_SECURE = _https
if _https and not ATHANOR.trusted_proxies:
    raise EnvironmentProblem(
        f"athanor: ATHANOR_PUBLIC_URL={ATHANOR.public_url} needs ATHANOR_TRUSTED_PROXIES: the addresses or networks, "
        "separated by commas, of the proxy that ends TLS. It must set X-Forwarded-Proto and X-Forwarded-For"
    )
# TLS ends at the proxy, which says so in X-Forwarded-Proto; only a trusted one is believed (config/forwarded.py).
SECURE_SSL_REDIRECT = _https
SECURE_REDIRECT_EXEMPT = [
    r"^healthz$",
    r"^readyz$",
    r"^metrics$",
]  # requested from pods and processes, beside the proxy
SECURE_HSTS_SECONDS = 365 * 86_400 if _https else 0
# Whether other hosts below this name speak TLS, and whether browsers ship with it, is for the name's owner to say.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "athanor.api.site.csrf_failure"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = AGENT_BODY_BYTES  # the largest that any view reads; api/limits.py bounds the others
MFA_ADAPTER = "athanor.accounts.second_factors.FactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "Athanor"
MFA_RECOVERY_CODE_DIGITS = 10
MFA_ALLOW_UNVERIFIED_EMAIL = True  # an address says nothing about who signs in here
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
