"""The composition root: settings, URLs, ASGI, Celery. May import everything; nothing imports it."""
