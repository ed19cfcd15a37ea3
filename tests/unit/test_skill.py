"""The skill for coding agents: every name in it exists, and a program that follows it works."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import grue
import grue.errors
import grue.messages
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

SKILL = (Path(__file__).resolve().parents[2] / "docs/skills/grue/SKILL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", SKILL, re.MULTILINE | re.DOTALL)


def test_every_name_that_it_imports_or_mentions_exists() -> None:
    imported = re.findall(r"^from (grue[\w.]*) import (.+)$", SKILL, re.MULTILINE)
    assert len(imported) >= 3
    for module, names in imported:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    prose = re.sub(r"^```.*?^```$", "", SKILL, flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`([A-Z]\w+)(?:[.(]|`)", prose):
        if name not in ("GRUE_API_KEY", "RUN", "Verdict"):
            homes = (grue, grue.errors, grue.messages)
            assert any(hasattr(home, name) for home in homes), name
    for method in re.findall(r"\brunner\.(\w+)\(", prose):
        assert hasattr(grue.Runner, method), method
    for method in re.findall(r"`handle\.(\w+)\(", prose):
        assert hasattr(grue.TurnHandle, method), method
    for method in re.findall(r"`talk\.(\w+)\(", prose):
        assert hasattr(grue.Conversation, method), method


def test_a_program_that_follows_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block, with what the prose adds: a second turn, a batch, a handle and the errors."""
    monkeypatch.chdir(tmp_path)
    verdict = text_reply('{"category": "delivery", "urgent": true}')
    script = [tool_calls_reply(("crm.customer_level", {"name": "Ann"})), verdict, *[text_reply("Noted.")] * 4]
    with ScriptedLlmServer(script) as model:
        code = BLOCKS[0].replace("http://localhost:11434/v1", model.base_url)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, "SKILL.md", "exec"), names)
        assert names["outcome"].response.category == "delivery"
        assert [call.result.content for call in names["outcome"].tool_calls] == ["gold"]
        with grue.Runner(llm=names["llm"]) as runner:
            talk = runner.conversation("system text")
            assert talk.ask("...").response == "Noted."
            requests = [grue.TurnRequest(user=text) for text in ("a", "b")]
            assert [item.error for item in runner.map(requests, concurrency=8)] == [None, None]
            handle = runner.start_turn(requests[0])
            assert handle.result().response == "Noted."
            assert handle.done()
    assert list((tmp_path / "runs").glob("*/trace.jsonl"))
