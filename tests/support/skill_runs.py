"""Runs of the skill agent with a scripted model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grue import LlmSettings
from grue.hosts.skill_agent import AgentConfig, Orchestrator, RunResult
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, text_reply


def act(*actions: tuple[str, dict[str, Any]], thought: str = "") -> LlmReply:
    """Return a reply of the model with these actions."""
    listed = [{"type": kind, "params": params} for kind, params in actions]
    return text_reply(json.dumps({"thought": thought, "actions": listed}))


def call(tool: str, **arguments: object) -> tuple[str, dict[str, Any]]:
    return "mcp_call", {"tool_name": tool, "arguments": arguments}


def finish(answer: str = "done", **more: object) -> tuple[str, dict[str, Any]]:
    return "finish", {"answer": answer, **more}


class Events(list[tuple[str, dict[str, Any]]]):
    """A callback for `on_event` that keeps the events."""

    def __call__(self, name: str, fields: dict[str, Any]) -> None:
        self.append((name, fields))

    @property
    def names(self) -> list[str]:
        """The names of the events about MCP."""
        return [name for name, _ in self if name.startswith("mcp_")]

    def fields(self, name: str) -> dict[str, Any]:
        """Return the fields of the only event of this name."""
        (found,) = (fields for each, fields in self if each == name)
        return found


class Ran:
    """A finished run, with its events and the messages of each request to the model."""

    def __init__(self, result: RunResult, events: Events, server: ScriptedLlmServer) -> None:
        self.result = result
        self.events = events
        self.requests = [request.messages for request in server.requests]

    @property
    def statuses(self) -> list[str]:
        return [step.status for step in self.result.steps]

    def said(self, request: int = -1) -> str:
        """Return the last message of a request, a text of the user."""
        return str(self.requests[request][-1]["content"])

    def results(self, request: int = -1) -> list[dict[str, Any]]:
        """Return the results that the model got in a request."""
        found: list[dict[str, Any]] = json.loads(self.said(request).partition("RESULTS:\n")[2])
        return found


@contextmanager
def scripted(*replies: LlmReply) -> Iterator[tuple[ScriptedLlmServer, LlmSettings]]:
    with ScriptedLlmServer(list(replies)) as server:
        yield server, LlmSettings(base_url=server.base_url, model="scripted")


def run(
    replies: list[LlmReply],
    *,
    folder: Path | None = None,
    task: str = "Do it.",
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Ran:
    """Run a task with these replies."""
    events = Events()
    with scripted(*replies) as (server, llm):
        settings = AgentConfig(llm=llm, **(config or {}))
        orchestrator = Orchestrator(settings, folder=folder, on_event=events, **more)
        return Ran(orchestrator.run(task), events, server)
