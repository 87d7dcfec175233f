"""The connection of this process to Valkey (or Redis), which is the broker and keeps what may be lost."""

from functools import lru_cache

from django.conf import settings
from redis import Redis

TIMEOUT_SECONDS = 0.2  # what is kept there delays nothing that works without it


@lru_cache(maxsize=1)
def valkey() -> Redis:
    """Return the client of this process, which pools its connections; threads share it."""
    return Redis.from_url(
        settings.CELERY_BROKER_URL, socket_connect_timeout=TIMEOUT_SECONDS, socket_timeout=TIMEOUT_SECONDS
    )
