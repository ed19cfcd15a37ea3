"""Play an episode with the agent loop: give the case's `inputs` (texts) to a model, one after another.

The scores: `requests`, `tool_calls` and, if the case has `expected` (a text or a number), `score`: 1 if the
last answer contains it, else 0. An interrupted attempt is played again from its first input.
"""

from pathlib import Path
from typing import Any

import msgspec

from grue.config.mcp_servers import MCPConfig, tool_servers
from grue.config.settings import GameConfiguration
from grue.config.wiring import llm_settings, tool_lock
from grue.errors import MCPConfigError
from grue.fleet.host_settings import ProjectCase, chosen_endpoint, usable_case, with_endpoint
from grue.fleet.work import Episode, contains, work
from grue.hosting import ToolServer
from grue.hosts.agent_loop import AgentLoop
from grue.hosts.agent_loop.loop import RunnerOptions, configured_options
from grue.hosts.zork.bundled import BUNDLED_NAME, bundled_server
from grue.testing.offline import offline_endpoint, reply_in_chat
from grue.transports.llm.endpoint import LlmEndpoint


class TalkCase(ProjectCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a case. `seed` does not change how the episode is played."""

    inputs: list[str]
    expected: str | int | float | None = None
    system: str = ""


def completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a case's settings, completed by `with_endpoint`; raises `FleetError` if they cannot be used."""
    with usable_case("played"):
        case = msgspec.convert(settings, TalkCase)
        _servers(case)
        if case.mcp and case.mcp_config is not None:
            _options(case)  # raises if a required tool lock is missing
        if not case.inputs:
            raise MCPConfigError("`inputs` is empty")
        return with_endpoint(settings)


@work(files=("mcp_config",), settings=TalkCase, complete=completed)
def converse(case: dict[str, Any], episode: Episode) -> dict[str, float]:
    """Send the case's `inputs` to the model, one after the other, in one conversation; return the scores."""
    settings = msgspec.convert(case, TalkCase)
    answer, tool_calls = "", 0
    options: RunnerOptions = {**_options(settings), "trace": episode.trace}
    with AgentLoop(_llm(settings), system=settings.system, servers=_servers(settings), **options) as loop:
        for text in settings.inputs:
            answer = loop.run(text)
            tool_calls += 0 if loop.last_outcome is None else len(loop.last_outcome.tool_calls)
        requests = loop.runner.spent.requests
    (episode.folder / "answer.txt").write_text(answer, encoding="utf-8")
    counts = {"requests": float(requests), "tool_calls": float(tool_calls)}
    if settings.expected is None:
        return counts  # without the key `score`, because nothing was compared
    return {"score": float(contains(answer, settings.expected)), **counts}


def _llm(case: TalkCase) -> LlmEndpoint:
    if case.offline:
        return offline_endpoint(reply_in_chat)
    return LlmEndpoint(
        chosen_endpoint(llm_settings(GameConfiguration.of_project()), case.base_url, case.model)
    )


def _options(case: TalkCase) -> RunnerOptions:
    config = GameConfiguration.of_project()
    own = case.mcp and case.mcp_config is not None
    if own:
        config.mcp_config_file = str(Path(str(case.mcp_config)).absolute())
    return configured_options(config, tool_lock(config) if own else None)


def _servers(case: TalkCase) -> dict[str, ToolServer]:
    if not case.mcp:
        return {}
    if case.mcp_config is None:
        return {BUNDLED_NAME: bundled_server()}
    return dict(tool_servers(MCPConfig.from_file(Path(case.mcp_config).absolute())))
