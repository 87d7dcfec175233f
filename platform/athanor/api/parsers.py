"""Bodies of requests: JSON and YAML within limits, and bodies that a view reads piece by piece."""

from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from athanor.api.limits import BodyTooLarge, limits_of
from athanor.core.documents import load_json
from athanor.specs.validation import MAX_SPEC_BYTES, parse_yaml


class JSONParser(BaseParser):
    """JSON of bounded size and depth. The size is checked here too: not every server has our gateway."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the decoded JSON. Raises BodyTooLarge or ParseError."""
        limit = limits_of(parser_context["request"].path).body_bytes or 0
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise BodyTooLarge(limit)
        try:
            return load_json(body)
        except ValueError as error:
            raise ParseError(f"the body is not JSON: {error}") from error


class YamlParser(BaseParser):
    """YAML within the limits of `parse_yaml`, for documents that users write in files."""

    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the decoded YAML. Raises Invalid."""
        return parse_yaml(stream.read(MAX_SPEC_BYTES + 1))


class TextYamlParser(YamlParser):
    """YAML by its older media type."""

    media_type = "text/yaml"


class RawParser(BaseParser):
    """Leaves the body to be read in pieces."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the stream itself."""
        return stream
