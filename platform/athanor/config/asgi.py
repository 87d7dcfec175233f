"""The server's entry. Views are synchronous (the ORM is), so they run as WSGI in a pool of threads.

Django's own ASGI handler would take a synchronous view, and each middleware around it, from thread to event loop and
back: measured here, more than half of the time of a small request. Bodies are read and answers sent by the event loop
(api/gateway); event streams and the long polls of agents are begun by a view like any other and continued by the loop
(api/streams, api/agent/long_polls.py).
"""

import gc
import os
import resource

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings.web"

_wsgi = get_wsgi_application()

from athanor.api.agent.long_polls import LongPollingApplication, LongPolls  # noqa: E402 - Django is ready only now
from athanor.api.gateway.application import Gateway  # noqa: E402 - likewise
from athanor.api.streams.asgi import StreamingApplication  # noqa: E402 - likewise
from athanor.api.streams.hub import Hub  # noqa: E402 - likewise

application = LongPollingApplication(StreamingApplication(Gateway(_wsgi), Hub()), LongPolls())

# What is loaded by now stays: the collector need not walk it whenever a request has made a few thousand objects. Views,
# serializers and specs are loaded with the first request otherwise. With Python's own thresholds most of a request's
# objects reach the oldest generation before they are garbage, and every twentieth list took 65 ms longer.
_ = get_resolver().url_patterns
gc.collect()
gc.freeze()
gc.set_threshold(5000, 10, 10)

# A follower is an open file, and many systems start programs with room for a thousand only.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
