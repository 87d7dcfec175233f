"""The server's entry. Views are synchronous (the ORM is), so they run as WSGI in a pool of threads.

Django's own ASGI handler would take a synchronous view, and each middleware around it, from thread to event loop and
back: measured here, more than half of the time of a small request.
"""

import os

from a2wsgi import WSGIMiddleware
from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings.web"

THREADS = 16  # as many as the database pool has connections

application = WSGIMiddleware(get_wsgi_application(), workers=THREADS)
