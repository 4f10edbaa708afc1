"""The record's form, judged by a library that did not write it; and the canonical bytes it is kept in."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qwen3lab.record
from qwen3lab.record import SCHEMA_VERSION, SchemaError, canonical
from qwen3lab.record.schema import json_schema, read_record

PUBLISHED = Path(qwen3lab.record.__file__).with_name(f"record-{SCHEMA_VERSION}.schema.json")


@pytest.fixture(scope="module")
def record(tmp_path_factory, sealing):
    sealed = sealing(tmp_path_factory.mktemp("schema") / "data")
    return json.loads((sealed.path / "record.json").read_bytes())


def test_a_real_record_passes_the_published_schema(record):
    schema = json.loads(PUBLISHED.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(record)
    formless = {"metrics": {"m": {"unit": "s"}}}
    for change in ({"extra": 1}, {"schema_version": 2}, {"round": "x"}, formless, {"frames": []}):
        assert not validator.is_valid(record | change), change
    for key in schema["required"]:
        assert not validator.is_valid({name: value for name, value in record.items() if name != key}), key


def test_the_published_schema_is_this_version_of_the_code():
    assert json.loads(PUBLISHED.read_bytes()) == json_schema(), (
        "the record's form changed: raise SCHEMA_VERSION, publish its schema beside the old one, read both"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "written by a newer qwen3lab: update"),
        ({"schema_version": 0}, "schema_version=0, readable: 1; it is no record"),
        ({"schema_version": True}, "schema_version=True"),
        ({"schema_version": None}, "schema_version=None"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"elapsed_s": "1"}, "elapsed_s: Input should be a valid number, got '1'"),
        ({"elapsed_s": -1}, "greater than or equal to 0"),
        ({"git": {"commit": None, "dirty": None, "changed": [], "why_absent": None}}, "a commit, or why_absent"),
        ({"raw": {"archive": "a", "members": {"../up": {"bytes": 1, "sha256": "0" * 64}}}}, "pattern"),
        ({"verdicts": [], "metrics": {}, "machine": {"a": 1.5}}, None),
    ],
)
def test_the_reader_refuses_by_name(record, change, words):
    data = canonical.dumps(record | change, "record")
    if words is None:
        assert read_record(data, "record").machine == {"a": 1.5}
    else:
        with pytest.raises(SchemaError, match=words):
            read_record(data, "record")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b"NaN", b'{"schema_version": 1e400}', b"[" * 100_000, b"1" * 5000]
)
def test_the_reader_survives_anything(data):
    with pytest.raises(SchemaError):
        read_record(data, "record")


@pytest.mark.parametrize("value", ["1e400", '"\\ud800"', "[" * 400 + "]" * 400, "[" * 600 + "]" * 600, "1e2"])
def test_json_that_no_record_can_hold_is_refused(record, value):
    text = json.dumps(record | {"machine": {"x": 0}}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    data = text.replace('"machine":{"x":0}', f'"machine":{{"x":{value}}}').encode()
    with pytest.raises(SchemaError):
        read_record(data, "record")


def test_a_record_in_other_bytes_is_refused(record):
    with pytest.raises(SchemaError, match="canonical form"):
        read_record(json.dumps(record).encode(), "record")


texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-canonical.MAX_EXACT_INT, canonical.MAX_EXACT_INT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(json_values)
def test_canonical_bytes_read_back_to_the_same_bytes(value):
    data = canonical.dumps(value, "value")
    again = canonical.loads(data, "value")
    assert again == value
    assert canonical.dumps(again, "value") == data


def test_key_order_does_not_matter_and_what_json_has_not_is_refused():
    assert canonical.dumps({"b": 1.0, "a": [True, None]}, "x") == canonical.dumps({"a": (True, None), "b": 1}, "x")
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=r"x\.a\[1\]=.*a metric that is undefined is None"):
            canonical.dumps({"a": [1, value]}, "x")
