"""An endpoint whose chat template leaves the tools out of the prompt: the trace and the log say so."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.messages import ToolsUnseen
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, completion, tool_calls_reply
from grue.tracing.observers.events import LoggerObserver
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay


def read(path: str, start: int = 0, length: int = 10_000) -> str:
    """Read a file of the workspace, and return its text.

    Args:
        path: The file, relative to the workspace. Folders are separated by slashes.
        start: The first character to return, counted from zero.
        length: How many characters to return at most.
    """
    return path[start:length]


def search(pattern: str, folder: str = ".") -> list[str]:
    """Search the files of a folder, and of the folders in it, and return the lines with the pattern.

    Args:
        pattern: A regular expression.
        folder: The folder, relative to the workspace.
    """
    return [pattern, folder]


def counted(request: LlmRequest, content: str, *, tools: bool) -> LlmReply:
    """Reply, with the tokens of a prompt that has the texts, and the tools or not; four bytes are a token."""
    texts = sum(len(str(message["content"])) // 4 + 5 for message in request.messages)
    listed = len(str(request.chat.get("tools", ""))) // 4 if tools else 0
    usage = {"prompt_tokens": texts + listed, "completion_tokens": 5, "total_tokens": texts + listed + 5}
    return completion({"role": "assistant", "content": content}, usage=usage)


def without_tools(request: LlmRequest) -> LlmReply:
    return counted(request, "notes.txt says hello.", tools=False)


def with_tools(request: LlmRequest) -> LlmReply:
    return counted(request, "I need no tool.", tools=True)


def calling(request: LlmRequest) -> LlmReply:
    """Call a tool, so the model has been shown it, whatever is counted."""
    if any(message["role"] == "tool" for message in request.messages):
        return without_tools(request)
    return tool_calls_reply((request.tool_names[0], {"path": "notes.txt"}))


def not_counting(request: LlmRequest) -> LlmReply:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return completion({"role": "assistant", "content": "Hello."}, usage=usage)


@pytest.mark.parametrize("wire", list(FORMATS))
@pytest.mark.parametrize(
    ("script", "noted"), [(without_tools, 1), (with_tools, 0), (calling, 0), (not_counting, 0)]
)
def test_it_is_noted_once_that_the_model_seems_not_to_be_shown_the_tools(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wire: WireName,
    script: Callable[[LlmRequest], LlmReply],
    noted: int,
) -> None:
    trace = tmp_path / "turns.jsonl"
    with ScriptedLlmServer(script) as llm, caplog.at_level(logging.WARNING):
        settings = LlmSettings(base_url=llm.base_url, model="small", wire=wire, api_key="sk-made-up")
        servers = {"files": FunctionTools([read, search])}
        with Runner(llm=settings, servers=servers, trace=trace) as runner:
            runner.recorder.add(LoggerObserver(logging.getLogger("turns")))
            for _ in range(2):
                assert runner.run_turn(TurnRequest(user="What does notes.txt say?")).kind == "answered"
    notes = [each.body for each in open_episode(trace) if isinstance(each.body, ToolsUnseen)]
    assert len(notes) == noted
    told = [record.getMessage() for record in caplog.records if "chat template" in record.getMessage()]
    assert len(told) == noted
    if noted:
        assert (notes[0].tools, notes[0].request) == (2, 1)
        assert f"has counted {notes[0].prompt_tokens} tokens for a prompt with 2 tools" in told[0]
    assert all(turn.divergence is None for turn in replay(open_episode(trace)))
