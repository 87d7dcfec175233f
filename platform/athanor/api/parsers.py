"""Bodies that people write as YAML."""

from typing import Any

from rest_framework.parsers import BaseParser

from athanor.specs.validation import LARGEST_SPEC_BYTES, parse_yaml


class YamlParser(BaseParser):
    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return parse_yaml(stream.read(LARGEST_SPEC_BYTES + 1))


class TextYamlParser(YamlParser):
    media_type = "text/yaml"


class RawParser(BaseParser):
    """Leaves the body to be read in pieces."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream
