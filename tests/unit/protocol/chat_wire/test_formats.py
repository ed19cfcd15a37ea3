"""The rows of the wire formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest

from grue.errors import MCPConfigError
from grue.protocol.chat_wire import batch_forms
from grue.protocol.chat_wire.batch_forms import AnthropicBatches, OpenAIBatches, batch_form_of
from grue.protocol.chat_wire.chat_completions import ChatCompletions
from grue.protocol.chat_wire.formats import FORMATS, WireName


def test_every_row_has_a_name_that_settings_can_have() -> None:
    assert list(FORMATS) == list(get_args(WireName))
    assert all(each.profile.wire == name for name, each in FORMATS.items())


def test_the_guide_names_every_wire_format() -> None:
    guide = (Path(__file__).parents[4] / "docs/guides/endpoints.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    for name, each in FORMATS.items():
        assert any(row.startswith(f"| `{name}` | `{each.path}` |") for row in rows), name


def test_the_wire_format_decides_the_form_of_batches() -> None:
    forms: Mapping[str, type] = {
        wire: type(batch_form_of(wire)) for wire, each in FORMATS.items() if each.batches
    }
    assert forms == {
        "chat_completions": OpenAIBatches,
        "responses": OpenAIBatches,
        "messages": AnthropicBatches,
    }


class Plain(ChatCompletions):
    """A format whose providers take no batches."""

    name = "plain"
    batches = None


def test_a_format_without_batches_is_not_asked_in_the_form_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_forms, "FORMATS", {"plain": Plain()})
    with pytest.raises(MCPConfigError, match="No batches are known for the wire format 'plain'"):
        batch_form_of("plain")
