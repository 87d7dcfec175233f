"""Durations and sizes are read as people write them, and written so that they can be read again."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from athanor.api.document import PATH as OPENAPI
from athanor.core.errors import Invalid
from athanor.specs.v1 import JobSpec, RetryPolicy
from athanor.specs.validation import parse_spec, parse_yaml
from tests.spec_models import MODELS
from trainer.contract.data import DataSpec
from trainer.contract.units import (
    DURATION,
    DURATIONS,
    SIZE,
    SIZES,
    duration_text,
    parse_duration,
    parse_size,
    size_text,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1d 12h", 129_600), ("1D12H", 129_600), (" 1.5 h ", 5400), ("3600", 3600), ("0", 0)],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("40 GiB", 40 * 2**30), ("40gib", 40 * 2**30), ("500 MB", 500_000_000), ("1.5 KiB", 1536), ("7", 7), ("7 B", 7)],
)
def test_a_size_is_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "h", "2 weeks", "2h soon", "-2h", "2x", "1,5h", "²", "9" * 5000 + "h"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "GiB", "40 Gibi", "-1", "1 2 GB", "forty", "9" * 5000])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 40 GiB"):
        parse_size(text)


@given(st.integers(0, 10**9))
def test_a_duration_that_is_written_is_read_again(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@given(st.integers(0, 2**53) | st.integers(0, 2**20).map(lambda number: number * 2**30))
def test_a_size_that_is_written_is_read_again(count: int) -> None:
    assert parse_size(size_text(count)) == count


def test_round_values_are_short() -> None:
    assert [duration_text(seconds) for seconds in (0, 90, 7200, 129_600)] == ["0s", "1m 30s", "2h", "1d 12h"]
    assert [size_text(count) for count in (0, 1000, 1536, 40 * 2**30)] == ["0 B", "1000 B", "1.5 KiB", "40 GiB"]


def test_every_duration_and_size_of_the_spec_takes_units() -> None:
    for model in MODELS.values():
        for name, field in model.model_json_schema()["properties"].items():
            expected = "duration" if name.endswith("_seconds") else "size" if "bytes" in name else None
            units = [each["x-unit"] for each in field.get("anyOf", []) if "x-unit" in each]
            assert units == ([expected] if expected else []), f"{model.__name__}.{name}"


def test_a_spec_with_units_resolves_to_the_numbers(spec: dict[str, Any]) -> None:
    numbers: dict[str, Any] = {
        "time_limit_seconds": 129_600,
        "wait_limit_seconds": 1800,
        "resources": {**spec["resources"], "memory_bytes_per_node": 40 * GIB},
        "retry": {"window_seconds": 86_400},
    }
    texts: dict[str, Any] = {
        "time_limit_seconds": "1d 12h",
        "wait_limit_seconds": "30m",
        "resources": {**spec["resources"], "memory_bytes_per_node": "40 GiB"},
        "retry": {"window_seconds": "1d"},
    }
    data = spec["training"]["data"]
    with_numbers = {**spec, **numbers, "training": {**spec["training"], "data": {**data, "cache_bytes": GIB}}}
    with_texts = {**spec, **texts, "training": {**spec["training"], "data": {**data, "cache_bytes": "1 GiB"}}}
    assert parse_spec(with_texts).model_dump(mode="json") == parse_spec(with_numbers).model_dump(mode="json")
    assert parse_spec(parse_yaml(json.dumps(with_texts).encode())) == parse_spec(with_numbers)
    assert parse_spec(parse_spec(with_texts).model_dump(mode="json")) == parse_spec(with_numbers)
    jsonschema.validate(with_texts, JobSpec.model_json_schema())


@given(st.integers(1, 36_500 * 86_400))
def test_any_duration_within_the_limits_is_read_from_its_text_and_matches_the_schema(seconds: int) -> None:
    schema = RetryPolicy.model_json_schema()["properties"]["window_seconds"]
    for value in (seconds, duration_text(seconds)):
        jsonschema.validate(value, schema)
        assert RetryPolicy.model_validate({"window_seconds": value}).window_seconds == seconds


@given(st.integers(64 * 2**20, 2**53))
def test_any_size_within_the_limits_is_read_from_its_text_and_matches_the_schema(count: int) -> None:
    schema = DataSpec.model_json_schema()["properties"]["cache_bytes"]
    for value in (count, size_text(count)):
        jsonschema.validate(value, schema)
        assert DataSpec.model_validate({"source": "builtin:python-stdlib", "cache_bytes": value}).cache_bytes == count


DURATION_TEXTS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from("dhmsDHMS"), st.sampled_from(["", " "])), min_size=1, max_size=4
)


@given(DURATION_TEXTS)
def test_a_duration_is_the_sum_of_its_parts_and_matches_the_schema(parts: list[tuple[int, str, str]]) -> None:
    text = "".join(f"{count}{gap}{unit}{gap}" for count, unit, gap in parts)
    assert parse_duration(text) == sum(count * DURATIONS[unit.lower()] for count, unit, _ in parts)
    jsonschema.validate(text, dict(DURATION.json_schema))


@given(st.integers(0, 10**12), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit_and_matches_the_schema(count: int, unit: str, gap: str) -> None:
    assert parse_size(f"{count}{gap}{unit}") == count * SIZES[unit]
    jsonschema.validate(f"{count}{gap}{unit}", dict(SIZE.json_schema))


@given(st.text(max_size=12) | st.from_regex(r"[0-9 .dhmsGiBk]{1,10}"))
def test_the_schema_and_the_parsers_agree_on_any_text(text: str) -> None:
    for unit in (DURATION, SIZE):
        matches = re.search(unit.json_schema["pattern"], text) is not None
        try:
            unit.parse(text)
        except ValueError:
            assert not matches
        else:
            assert matches


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("time_limit_seconds", "2 weeks", "a duration; write it like 90m, 2h or 1d 12h, or in seconds; got '2 weeks'"),
        ("time_limit_seconds", "100d", "Input should be less than or equal to 7776000 (90d); got '100d'"),
        ("time_limit_seconds", "10.5s", "got a number with a fractional part; got '10.5s'"),
        ("wait_limit_seconds", True, "a number is expected, not true or false; got True"),
    ],
)  # fmt: skip
def test_an_error_names_field_value_and_remedy(spec: dict[str, Any], field: str, value: Any, expected: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_spec({**spec, field: value})
    (problem,) = refused.value.problems
    assert problem.pointer == f"/{field}"
    assert expected in problem.detail


def test_a_size_is_refused_as_a_size(spec: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        parse_spec({**spec, "resources": {**spec["resources"], "memory_bytes_per_node": "2h"}})
    (problem,) = refused.value.problems
    assert problem.pointer == "/resources/memory_bytes_per_node"
    assert problem.detail == "must be a size; write it like 40 GiB or 500 MB, or in bytes; got '2h'"


def test_the_window_of_retries_ends_where_dates_end(spec: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        parse_spec({**spec, "retry": {"window_seconds": "999999999d"}})


def test_openapi_says_that_a_text_is_accepted() -> None:
    document = json.loads(OPENAPI.read_text())
    field = document["components"]["schemas"]["JobSpecRequest"]["properties"]["time_limit_seconds"]
    assert {each["type"] for each in field["anyOf"]} == {"integer", "string"}


def test_a_huge_duration_with_a_fraction_is_above_the_limit(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({**spec, "retry": {"window_seconds": "999999999999999.000001d"}})
    assert "less_than_equal" in {error["type"] for error in caught.value.errors()}
