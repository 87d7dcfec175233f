"""Django's settings, one module per concern; all values that vary come through config/env.py."""

from athanor.config.settings.api import *  # noqa: F403
from athanor.config.settings.base import *  # noqa: F403
from athanor.config.settings.celery import *  # noqa: F403
from athanor.config.settings.security import *  # noqa: F403
from athanor.config.settings.sign_on import *  # noqa: F403
