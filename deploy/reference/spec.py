"""docs/reference/spec.md, from the JSON schema of the job spec."""

import json
from collections.abc import Iterator
from typing import Any

from athanor.specs.v1 import JobSpec
from deploy.reference.markdown import code, one_line, page, table

Schema = dict[str, Any]
REFERENCE = "#/$defs/"

INTRODUCTION = """
A job spec is a YAML or JSON document that describes one job: what to train, on which data, and on which machines.
Submit it with `athanor submit job.yaml`, on the dashboard, or with `POST /api/v1/jobs`. `POST /api/v1/jobs:plan`
checks it and estimates start and cost without submitting it; `athanor presets` lists specs to start from.

An unknown field is an error, and so is a value outside its limits: the answer lists every problem with a JSON pointer
to the field. Fields that are left out get the default below. The same schema in JSON is at `/api/v1/spec/schema`.

A duration is a number of seconds or a text with units: `90m`, `2h`, `1d 12h` (d, h, m, s). A size is a number of bytes
or a text with its unit: `40 GiB`, `500 MB` (KiB to PiB, kB to PB). The resolved spec has the number.
"""
EXAMPLE = """
version: 1
name: llama-1m-baseline
project: baselines
labels:
  sweep: learning-rate
resources:
  accelerator: cpu
  processes_per_node: 2
time_limit_seconds: 6h
wait_limit_seconds: 1d 12h
retry:
  max_free: 5
checkpoint:
  every_steps: 250
  keep_last: 2
training:
  model:
    preset: llama-1m
  data:
    source: builtin:python-stdlib
    packing: documents
  tokenizer:
    vocab_size: 2048
  steps: 1000
  tokens_per_step: 16384
  sequence_length: 256
  optimizer:
    learning_rate: 0.003
    weight_decay: 0.1
  schedule:
    name: wsd
    warmup_steps: 20
    decay_fraction: 0.3
  evaluation:
    every_steps: 250
    prompts: ["def main("]
"""
RANGES = (
    ("", "minimum", "maximum"),
    ("characters", "minLength", "maxLength"),
    ("items", "minItems", "maxItems"),
    ("entries", "minProperties", "maxProperties"),
)
COLUMNS = ("field", "type", "default", "limits", "meaning")


def spec_page() -> str:
    """Return the page."""
    schema = JobSpec.model_json_schema()
    models = {"JobSpec": schema, **schema["$defs"]}
    sections: dict[str, str] = {}
    for model, path in _sections("", "JobSpec", models):
        sections.setdefault(model, path)
    blocks = [_section(model, path, models[model], sections) for model, path in sections.items()]
    example = f"## Complete example\n\n```yaml\n{EXAMPLE.strip()}\n```"
    return page("Job spec", INTRODUCTION, example, *blocks)


def _sections(path: str, model: str, models: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    """Yield each model with every path that leads to it, in the order of the fields."""
    yield model, path
    for name, field in models[model]["properties"].items():
        for inner in _references(field):
            yield from _sections(f"{path}.{name}".lstrip("."), inner, models)


def _section(model: str, path: str, schema: Schema, sections: dict[str, str]) -> str:
    required = schema.get("required", [])
    rows = [
        [code(name), _type(field, sections), _default(name, field, required), _limits(field), _meaning(field)]
        for name, field in schema["properties"].items()
    ]
    return f"## {_heading(path)}\n\n{one_line(schema['description'])}\n\n{table(COLUMNS, rows)}"


def _heading(path: str) -> str:
    return code(path) if path else "The job"


def _anchor(path: str) -> str:
    """Return the anchor that GitHub gives to the heading of a section."""
    return path.replace(".", "")


def _references(field: Schema) -> Iterator[str]:
    if "$ref" in field:
        yield field["$ref"].removeprefix(REFERENCE)
    for inner in (*field.get("anyOf", ()), *field.get("allOf", ()), *([field["items"]] if "items" in field else ())):
        yield from _references(inner)


def _type(field: Schema, sections: dict[str, str]) -> str:
    if "$ref" in field:
        path = sections[field["$ref"].removeprefix(REFERENCE)]
        return f"[object](#{_anchor(path)})"
    if "anyOf" in field:
        kinds = [_type(each, sections) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in field or "const" in field:
        return ", ".join(code(value) for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list of {_type(field['items'], sections)}"
    if "x-unit" in field:
        return str(field["x-unit"])
    if field["type"] == "object":
        return "mapping of strings"
    return "date and time" if field.get("format") == "date-time" else str(field["type"])


def _default(name: str, field: Schema, required: list[str]) -> str:
    if name in required:
        return "**required**"
    default = field.get("default")
    if default in (None, ""):
        return "none"
    return "its own defaults" if isinstance(default, dict) and default else code(json.dumps(default).strip('"'))


def _limits(field: Schema) -> str:
    found = []
    for word, low, high in RANGES:
        if low in field and high in field:
            found.append(f"{_number(field[low])} to {_number(field[high])} {word}")
        elif low in field:
            found.append(f"at least {_number(field[low])} {word}")
        elif high in field:
            found.append(f"at most {_number(field[high])} {word}")
    if "exclusiveMinimum" in field:
        found.append(f"above {_number(field['exclusiveMinimum'])}")
    if "exclusiveMaximum" in field:
        found.append(f"below {_number(field['exclusiveMaximum'])}")
    if "pattern" in field and "x-unit" not in field:
        found.append(f"matches {code(field['pattern'])}")
    found += [_limits(each) for each in field.get("anyOf", ())]
    if "items" in field and (inner := _limits(field["items"])):
        found.append(f"each {inner}")
    return ", ".join(each.strip() for each in found if each)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _meaning(field: Schema) -> str:
    examples = "".join(f" Example: {code(json.dumps(each).strip(chr(34)))}." for each in field.get("examples", ()))
    return f"{field['description']}{examples}"
