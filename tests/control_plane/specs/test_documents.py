"""Parsing of untrusted documents: plain data or an error with its position; no crash, no unbounded work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.core.documents import MAX_LEVELS, check_levels, load_json, load_yaml
from athanor.core.errors import Invalid
from athanor.specs.validation import parse_yaml

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refusal(text: str) -> Invalid:
    with pytest.raises(Invalid) as caught:
        load_yaml(text)
    return caught.value


@pytest.mark.parametrize("written", ["2026-03-10T22:00:00Z", "2026-03-10", "2026-99-99", "2001-12-14 21:59:43.10 -5"])
def test_a_date_stays_as_it_was_written(written: str) -> None:
    assert load_yaml(f"not_before: {written}") == {"not_before": written}
    assert load_yaml(f"not_before: !!timestamp {written}") == {"not_before": written}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!int abc", "'abc' is no int"),
        ("a: !!float abc", "'abc' is no float"),
        ("a: !!bool abc", "'abc' is no bool"),
        ("a: " + "9" * 5000, "is no int"),
        ("a: !!binary aGk=", "'binary' is no kind of JSON"),
        ("a: !!set {b}", "'set' is no kind of JSON"),
        ("a: !!python/object:os.system {}", "is no kind of JSON"),
        ("a: .nan", "nan is no number of JSON"),
        ("a: -.inf", "-inf is no number of JSON"),
        ("1: a", "the key 1 is no text"),
        ("on: a", "the key True is no text"),
        ("~: a", "the key None is no text"),
        ("? [a]\n: b", "found unhashable key"),
        ("a: [", "line 1"),
        ("a: &x [*x]", "alias within what it stands for"),
        ("a: 1\n---\nb: 2", "line 2"),
    ],
)
def test_what_is_no_plain_data_is_refused_with_its_place(text: str, says: str) -> None:
    assert says in refusal(text).message


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 3000, "- " * 4000, "[" * 65 + "1" + "]" * 65])
def test_deep_yaml_is_refused(text: str) -> None:
    assert refusal(text).code in ("too_deep", "invalid_yaml")


def test_as_deep_as_the_limit_is_taken() -> None:
    assert load_yaml("[" * MAX_LEVELS + "]" * MAX_LEVELS)
    assert load_json(b"[" * MAX_LEVELS + b"]" * MAX_LEVELS)
    for load in (load_yaml, load_json):
        text: Any = "[" * (MAX_LEVELS + 1) + "1" + "]" * (MAX_LEVELS + 1)
        with pytest.raises(Invalid, match="64 levels"):
            load(text if load is load_yaml else text.encode())


def test_aliases_do_not_multiply() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert refusal("\n".join(lines)).code == "too_many_values"
    assert load_yaml("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}, e: *a}") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": 1, "e": [1, 2]},
    }


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 20_000 + b"1" + b"}" * 20_000])
def test_deep_json_is_refused(text: bytes) -> None:
    with pytest.raises((Invalid, ValueError)):
        load_json(text)


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"9" * 5000, b"\xff", b"{"])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        load_json(text)


@given(VALUES)
def test_what_json_holds_comes_back_the_same(value: Any) -> None:
    assert load_json(json.dumps(value).encode()) == value
    check_levels(value)


@given(st.text(max_size=200))
def test_no_text_crashes(text: str) -> None:
    try:
        data = load_yaml(text)
    except Invalid:
        return
    json.dumps(data, sort_keys=True)


def test_a_spec_is_read_with_its_dates() -> None:
    assert (
        parse_yaml(b"schedule: {not_before: 2026-03-10T22:00:00Z}")["schedule"]["not_before"] == "2026-03-10T22:00:00Z"
    )
