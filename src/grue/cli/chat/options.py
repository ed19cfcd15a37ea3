"""The options of `grue chat`, and which of them a run records so that it can be resumed."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from grue.cli.chat.facts import ChatPast
from grue.cli.play_options import ASKED, EpisodeOptions, existing, resumed_options
from grue.cli.project import BUNDLED_SERVER, KnownServers, declines_mcp, known_servers, watched_server
from grue.config.mcp_servers import without_network
from grue.config.settings import GameConfiguration
from grue.config.wiring import llm_settings, tool_lock, turn_limits
from grue.hosts.agent_loop.loop import RunnerOptions, configured_options, prefixed_policy
from grue.policies import ContextPolicy, ToolPolicy, ToolRule
from grue.protocol.tools.lock import ToolLock
from grue.testing.offline import MODEL, offline_endpoint, reply_in_chat
from grue.tool_sessions.server_specs import McpServer
from grue.transports.llm.endpoint import LlmEndpoint, require_key

INSTRUCTIONS = "You are a helpful assistant at a terminal. Answer briefly, in plain text. Use the tools."


class ChatOptions(EpisodeOptions, frozen=True, kw_only=True):
    """The options of `grue chat`; see its help."""

    mcp_config: Path | None = None
    mcp: bool = True
    instructions: str = INSTRUCTIONS
    ask: bool = False
    turn_timeout_s: float | None = None
    started_in: Path | None = None  # where the chat was started; `None`: in the working directory
    quiet: bool = False
    learn: str | None = None


RECORDED = (*ASKED, "instructions", "ask", "turn_timeout_s")
"""Options that are recorded, and restored when the chat is resumed."""


def as_started(options: ChatOptions, past: ChatPast) -> ChatOptions:
    """Return a chat's recorded options, with the last chosen model, and `quiet` and a given time limit."""
    started = resumed_options(options, past.started.settings, (*RECORDED, "started_in"), "grue chat")
    return replace(
        started,
        model=past.model or started.model,
        started_in=existing(started.started_in),
        turn_timeout_s=options.turn_timeout_s or started.turn_timeout_s,
    )


class ChatWiring(Struct, frozen=True, kw_only=True):
    """The parts of a chat."""

    endpoint: LlmEndpoint
    servers: dict[str, McpServer]
    runner: RunnerOptions
    notes: tuple[str, ...] = ()  # about settings without effect and unusable servers
    learned: Callable[[], tuple[str, str]] | None = None  # from `watched_server`; `None` without `--learn`


def wire_chat(options: ChatOptions) -> ChatWiring:
    """Return the parts of a chat. Nothing is started."""
    config = GameConfiguration.of_project()
    config.ask(options.base_url, options.model)
    known = KnownServers(source="", servers={})
    notes: tuple[str, ...] = ()
    lock: ToolLock | None = None
    if options.mcp:
        known = known_servers(config, options.mcp_config)
        if known.source == BUNDLED_SERVER and declines_mcp():
            known = replace(known, servers={})
        if options.offline:
            offline = {name: without_network(server) for name, server in known.servers.items()}
            known = replace(known, servers=offline)
        warnings = () if options.quiet else known.warnings
        notes = (*warnings, *(f"{name}: {reason}" for name, reason in known.unusable.items()))
        if options.mcp_config is not None:
            config.mcp_config_file = str(options.mcp_config.absolute())
        lock = None if known.source == BUNDLED_SERVER else tool_lock(config)
    servers, learned = known.servers, None
    if options.learn is not None:
        watched, learned = watched_server(known, options.learn)
        servers = {**servers, options.learn: watched}
    return ChatWiring(
        endpoint=_endpoint(options, config),
        servers=servers,
        runner={
            **configured_options(config, lock),
            "limits": turn_limits(config, options.turn_timeout_s),
            "tool_policy": _tool_policy(config.tool_policy, ask=options.ask),
            "context": config.context or ContextPolicy(),
        },
        notes=notes,
        learned=learned,
    )


def _tool_policy(policy: ToolPolicy, *, ask: bool) -> ToolPolicy:
    # Never park: a person at a terminal is asked at once, and in a pipe the call is denied.
    if ask:
        asking = (replace(rule, verdict="ask") if rule.verdict == "allow" else rule for rule in policy.rules)
        policy = replace(policy, rules=(*asking, ToolRule(verdict="ask")))
    return prefixed_policy(replace(policy, parking=False))


def _endpoint(options: ChatOptions, config: GameConfiguration) -> LlmEndpoint:
    settings = llm_settings(config)
    if options.offline:
        return offline_endpoint(reply_in_chat, settings, model=options.model or MODEL)
    otherwise = ", name another endpoint with --base-url, or chat with --offline"
    require_key(settings.base_url, settings.api_key, otherwise)
    return LlmEndpoint(settings)
