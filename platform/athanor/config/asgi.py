"""The server's entry. Views are synchronous (the ORM is), so they run as WSGI in a pool of threads.

Django's own ASGI handler would take a synchronous view, and each middleware around it, from thread to event loop and
back: measured here, more than half of the time of a small request. Answers that go on for hours are begun by a view
like any other and continued by the loop (api/streams).
"""

import gc
import os
import re
import resource
from typing import Any

from a2wsgi import WSGIMiddleware
from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings.web"

# More threads for the many small requests would only take Python's lock from one another: measured with 32 clients,
# turns get unfair and the slowest wait twice as long. What reads or writes much has threads of its own, so that a few
# long transfers hold up nobody. The database pool has a connection for each, and for the hub's.
QUICK_THREADS = 4
SLOW_THREADS = 12
SLOW = re.compile(r"^/api/v1/(datasets|audit:export|artifacts/[^/]+/archive)$")

_wsgi = get_wsgi_application()
_quick = WSGIMiddleware(_wsgi, workers=QUICK_THREADS)
_slow = WSGIMiddleware(_wsgi, workers=SLOW_THREADS)


async def views(scope: Any, receive: Any, send: Any) -> None:
    slow = scope["type"] == "http" and SLOW.match(scope["path"])
    await (_slow if slow else _quick)(scope, receive, send)


from athanor.api.streams.asgi import StreamingApplication  # noqa: E402 - Django is ready only now
from athanor.api.streams.hub import Hub  # noqa: E402 - likewise

application = StreamingApplication(views, Hub())

# What is loaded by now stays: the collector need not walk it whenever a request has made a few thousand objects.
gc.collect()
gc.freeze()

# A follower is an open file, and many systems start programs with room for a thousand only.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
