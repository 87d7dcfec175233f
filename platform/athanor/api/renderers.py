"""JSON by orjson, ten times as fast as json for a page of jobs or the points of fifty curves."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer
from rest_framework.utils.encoders import JSONEncoder

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_NAIVE_UTC
_other = JSONEncoder().default


class FastJSONRenderer(BaseRenderer):
    """JSON by orjson, with NumPy arrays as lists."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return `data` as JSON, nothing for None."""
        if data is None:
            return b""
        try:
            return orjson.dumps(data, default=_other, option=_OPTIONS)
        except orjson.JSONEncodeError:
            # Values of a request that a response repeats: unpaired surrogates, whole numbers above 64 bits.
            return json.dumps(data, cls=JSONEncoder).encode()
