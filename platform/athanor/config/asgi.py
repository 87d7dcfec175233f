"""The server's entry. Views are synchronous (the ORM is), so they run as WSGI in a pool of threads.

Django's own ASGI handler would take a synchronous view, and each middleware around it, from thread to event loop and
back: measured here, more than half of the time of a small request. Answers that go on for hours are begun by a view
like any other and continued by the loop (api/streams).
"""

import os
import resource

from a2wsgi import WSGIMiddleware
from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings.web"

THREADS = 16  # the database pool has a connection for each, and for the hub's

views = WSGIMiddleware(get_wsgi_application(), workers=THREADS)

from athanor.api.streams.asgi import StreamingApplication  # noqa: E402 - Django is ready only now
from athanor.api.streams.hub import Hub  # noqa: E402 - likewise

application = StreamingApplication(views, Hub())

# A follower is an open file, and many systems start programs with room for a thousand only.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
