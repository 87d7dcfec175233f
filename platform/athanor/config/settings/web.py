"""Settings of the web processes: their database sessions belong to nobody until a request is recognised."""

from athanor.config.settings import *  # noqa: F403
from athanor.config.settings.base import DATABASES
from athanor.core import tenancy

_options = DATABASES["default"]["OPTIONS"]
_options["options"] = f"{_options.get('options', '')} -c athanor.teams={tenancy.NOBODY}".strip()
