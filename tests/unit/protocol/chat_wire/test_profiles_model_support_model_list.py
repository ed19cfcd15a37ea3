"""What an endpoint's list of models says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_bodies import JSON_VALUES

from grue.protocol.chat_wire.profiles import ListedModel, find_model, read_models

LISTED = {
    "data": [
        {"id": "vendor/a", "supported_parameters": ["tools", "structured_outputs", 5]},
        {"id": "vendor/b", "supported_parameters": []},
        {"id": "vendor/b:free", "supported_parameters": ["tools"]},
        {"id": "vendor/c"},
        {"id": 5},
        "vendor/d",
        {"id": "models/e"},
    ]
}


def test_a_list_of_models() -> None:
    models = read_models(json.dumps(LISTED).encode())
    assert models is not None
    assert list(models) == ["vendor/a", "vendor/b", "vendor/b:free", "vendor/c", "models/e"]
    assert {name: model.takes_tools for name, model in models.items()} == {
        "vendor/a": True,
        "vendor/b": False,
        "vendor/b:free": True,
        "vendor/c": None,
        "models/e": None,
    }


def test_a_list_in_the_form_of_google_and_ollama() -> None:
    models = read_models(b'{"models": [{"name": "models/e", "version": "1"}, {"name": "f:latest"}]}')
    assert models == {name: ListedModel(name) for name in ("models/e", "f:latest")}


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"data": {}}', b'{"models": {}}', b"[" * 500]
)
def test_a_body_that_is_no_list_of_models(body: bytes) -> None:
    assert read_models(body) is None


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("vendor/a", "vendor/a"),
        ("vendor/a:nitro", "vendor/a"),
        ("vendor/b:free", "vendor/b:free"),
        ("vendor/x", None),
        ("e", "models/e"),
        ("models/e", "models/e"),
        ("a", None),
        ("", None),
    ],
)
def test_a_variant_is_as_good_as_what_it_varies(model: str, found: str | None) -> None:
    models = read_models(json.dumps(LISTED).encode())
    assert models is not None
    assert find_model(models, model) == (models[found] if found else None)


@given(
    st.binary()
    | JSON_VALUES.map(lambda value: json.dumps({"data": [value, {"id": "x", "y": value}]}).encode())
)
def test_no_list_raises(body: bytes) -> None:
    models = read_models(body) or {}
    assert all(isinstance(model, ListedModel) for model in models.values())
