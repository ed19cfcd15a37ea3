"""Play an episode with the skill agent: run a task of an `agent.yaml` in a copy of the agent's workspace."""
# The scores: `turns`, `steps`, `requests` and `score`. `score` is 1 if the model says that the task is done
# and, if `expected` (a text or a number) is given, the answer, a response or a written file contains it.

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from grue.errors import FleetError, MCPServerStartupError, TraceError
from grue.fleet import host_settings
from grue.fleet.work import Episode, cached_in_a_run, contains, work
from grue.hosts.skill_agent import AgentConfig, Orchestrator, RunResult, load_config
from grue.hosts.skill_agent.facts import McpConnectionFailed, McpServersConnected
from grue.runtime.files import os_errors_as
from grue.testing.offline import offline_endpoint, reply_to_task
from grue.tracing.reading import open_episode
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, require_key

_WORKSPACE = "workspace"
_CONNECTING = [kind.__struct_config__.tag for kind in (McpConnectionFailed, McpServersConnected)]
_MOST_FILE_BYTES = 2**20


class TaskCase(host_settings.HostCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a case. `seed` does not change how the episode is played."""

    agent: str
    task: str | None = None
    expected: str | int | float | None = None
    content: str | None = None  # `completed` adds a hash of the files in the agent's skills and workspace


def completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Add the model, the base URL (unless `offline`) and `content` to a case; raises `FleetError`."""
    with host_settings.usable_case("run"):
        case = msgspec.convert(settings, TaskCase)
        with os_errors_as(FleetError, f"read {case.agent}"):
            config, content = _agent(case.agent, Path(case.agent).stat().st_mtime_ns)
        host_settings.require_usable(case.base_url)
        llm = _llm(case, config).settings
        if not case.offline:
            require_key(llm.base_url, llm.api_key)
    if not (case.task or config.task):
        raise FleetError(f"{case.agent} has no task: set `task` in the sweep's settings.")
    added = {"model": llm.model, "content": content}
    return {**settings, **added, **({} if case.offline else {"base_url": llm.base_url})}


@work(files=("agent",), scores=("score", "turns", "steps", "requests"), settings=TaskCase, complete=completed)
def run_task(case: dict[str, Any], episode: Episode) -> dict[str, float]:
    """Run the case's task; return the scores. Raises an `MCPError` if it fails or lacks a required server."""
    settings = msgspec.convert(case, TaskCase)
    config = load_config(settings.agent)
    original, config.workspace = config.workspace, episode.folder / _WORKSPACE
    config.mcp_enabled = config.mcp_enabled and settings.mcp
    config.llm = _llm(settings, config)
    result = _result(config, settings, episode, original)
    if config.on_connect_failure == "raise":
        _require_servers(episode.trace, config.optional_servers)
    if result.reason == "failed":
        raise host_settings.error_of_failed(episode, f"The run ended with {result.reason}: {result.detail}")
    done = result.succeeded
    if done and settings.expected is not None:
        texts = (result.answer, *result.responses, *_written(config.workspace, original))
        done = any(contains(text, settings.expected) for text in texts)
    return {
        "score": float(done),
        "turns": float(result.turns),
        "steps": float(len(result.steps)),
        "requests": float(result.requests),
    }


def _result(config: AgentConfig, case: TaskCase, episode: Episode, workspace: Path) -> RunResult:
    agent = Orchestrator(config, folder=episode.folder)
    agent.scripted = case.offline
    if host_settings.continue_interrupted(episode):
        try:
            return agent.resume()
        except TraceError:  # the attempt was interrupted too early to be resumed
            host_settings.begin_again(episode)
            agent = Orchestrator(config, folder=episode.folder)
            agent.scripted = case.offline
    # Keep links as links, so that a link that leads out of the workspace is refused, as in `grue run`.
    shutil.copytree(workspace, config.workspace, symlinks=True, ignore=host_settings.not_of_the_workspace)
    return agent.run(case.task or config.task)


def _require_servers(trace: Path, optional: Collection[str]) -> None:
    failed: McpConnectionFailed | None = None
    for line in open_episode(trace).lines():
        if line.tag in _CONNECTING:
            body = line.envelope().body
            if isinstance(body, McpServersConnected):
                failed = None  # an earlier process had failed, and this one has connected
            elif isinstance(body, McpConnectionFailed) and body.server_name not in optional:
                failed = body
    if failed is not None:
        raise MCPServerStartupError(failed.error, server=failed.server_name)


@cached_in_a_run
def _agent(path: str, _changed_ns: int) -> tuple[AgentConfig, str]:
    """Read an `agent.yaml`, and hash its skills and its workspace. `_changed_ns` is for the cache only."""
    config = load_config(path)
    folders = [folder for folder in (config.skills, config.workspace) if folder is not None]
    return config, host_settings.files_digest(folders)


def _llm(case: TaskCase, config: AgentConfig) -> LlmEndpoint:
    llm = config.llm if isinstance(config.llm, LlmSettings) else config.llm.settings
    if case.offline:
        return offline_endpoint(reply_to_task, llm)
    return LlmEndpoint(host_settings.chosen_endpoint(llm, case.base_url, case.model))


def _written(workspace: Path, original: Path) -> Iterator[str]:
    """Yield the text of each file of up to 1 MiB in `workspace` that is new or differs from `original`."""
    for path in sorted(workspace.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_FILE_BYTES:
            continue
        before, content = original / path.relative_to(workspace), path.read_bytes()
        if not before.is_file() or before.read_bytes() != content:
            yield content.decode("utf-8", "replace")
