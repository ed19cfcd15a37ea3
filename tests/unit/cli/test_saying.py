"""What the commands print is safe to print, and JSON stays JSON."""

import json

import pytest

from grue.cli.saying import say_json

NEW_EMOJI, TURNED, TAG = "\U0001fae9", "\u202e", "\U000e0041"
"""Characters that some version of Python does not call printable, of both lengths in UTF-16."""


def test_json_is_json_whatever_characters_are_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789abcdef")
    say_json({"text": f"a{NEW_EMOJI}{TURNED}{TAG}\x1b\n", "key": "sk-0123456789abcdef"})
    printed = capsys.readouterr().out
    assert json.loads(printed)["text"] == f"a{NEW_EMOJI}{TURNED}{TAG}\x1b\n"
    assert printed.removesuffix("\n").isprintable()
    assert "0123456789abcdef" not in printed
