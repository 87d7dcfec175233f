"""Applications, database, templates, static files, logging."""

import sys
from pathlib import Path

import dj_database_url

from athanor.config.env import read

ATHANOR = read()

DEBUG = ATHANOR.debug
INSTALLED_APPS = [
    "athanor.config.apps.AuditedAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
    "allauth.mfa",
    "athanor.accounts",
    "athanor.clusters",
    "athanor.jobs",
    "athanor.quotas",
    "athanor.budgets",
    "athanor.telemetry",
    "athanor.artifacts",
    "athanor.scheduling",
    "athanor.webhooks",
    "athanor.alerts",
    "athanor.reconcilers",
    "athanor.compliance",
    "athanor.config",
]
MIDDLEWARE = [
    "athanor.api.middleware.MeasureMiddleware",
    "athanor.api.middleware.RequestIdMiddleware",
    "athanor.api.middleware.TraceMiddleware",
    "athanor.api.headers.SecurityHeadersMiddleware",
    "athanor.api.throttling.RateLimitHeadersMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "athanor.accounts.devices.DeviceCookieMiddleware",
    "athanor.api.query.QueryParametersMiddleware",
]
ROOT_URLCONF = "athanor.config.urls"
ASGI_APPLICATION = "athanor.config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).resolve().parents[1] / "templates"],  # before the admin's own
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# What makes and changes tables connects as their owner, everything else as a role that owns none.
OWNER_COMMANDS = {"migrate", "prepare", "restore", "showmigrations", "sqlmigrate", "sqlflush", "flush"}
_as_owner = len(sys.argv) > 1 and sys.argv[1] in OWNER_COMMANDS
_database_url = (ATHANOR.migration_database_url if _as_owner else "") or ATHANOR.database_url
DATABASES = {"default": dj_database_url.parse(_database_url, engine="athanor.core.postgresql", conn_health_checks=True)}
DATABASE_RUNTIME_ROLE: str = dj_database_url.parse(ATHANOR.database_url).get("USER") or ""
# Under ASGI thread pools run the views: connections are pooled, not kept per thread. The 21 threads of the gateway's
# lanes, the hub's three, and the one of long polls.
DATABASES["default"]["CONN_MAX_AGE"] = 0
_options = DATABASES["default"].setdefault("OPTIONS", {})
# Parameters apart from the statement, and statements that a connection has seen before are not planned again: a submit
# takes half the CPU of PostgreSQL and two thirds of that of Django.
_options |= {"server_side_binding": True, "prepare_threshold": 3}
_options["pool"] = {
    "min_size": 1,
    "max_size": 25,
    # Each try to reconnect waits twice as long as the one before: after a minute without a database the next could be a
    # minute away. A pool that has given up retries immediately for the next request, but not for those that wait
    # already: they are not to wait for much longer. There are connections for all threads, so nobody waits for another.
    "timeout": 4,
    "reconnect_timeout": 3,
}

AUTHENTICATION_BACKENDS = ["athanor.accounts.backends.ThrottledBackend"]
AUTH_USER_MODEL = "accounts.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en-us"
FORMAT_MODULE_PATH = ["athanor.config.formats"]
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True  # the admin's and the API page's files come from their packages
WHITENOISE_AUTOREFRESH = False
# The dashboard's built files carry a digest in their names.
WHITENOISE_IMMUTABLE_FILE_TEST = r"^/assets/.+-[A-Za-z0-9_-]{8}\."
WHITENOISE_ROOT = ATHANOR.dashboard_dir if ATHANOR.dashboard_dir.is_dir() else None

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {
            "()": "athanor.core.logging.BoundFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
        },
        "json": {"()": "athanor.core.logging.JsonFormatter"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": ATHANOR.log_format}},
    "root": {"handlers": ["stderr"], "level": ATHANOR.log_level},
    # Sweepers run every other second: that a task came and went is no news, nor that a cluster answered.
    "loggers": {name: {"level": "WARNING"} for name in ("celery.worker.strategy", "celery.app.trace", "httpx")},
}
