"""The model, the tool servers and the policy of a chat, from its options and the project's settings."""

import sys
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from grue.cli.chat.options import ChatOptions
from grue.cli.project import BUNDLED, known_servers
from grue.cli.sandbox import watched_server
from grue.config.settings import GameConfiguration
from grue.config.wiring import episode_budget, llm_settings, on_tool_drift, tool_lock, turn_limits
from grue.hosts.agent_loop.names import prefixed_policy
from grue.policies import DEFAULT_START, Budget, FailurePolicy, StartWhen, ToolPolicy, ToolRule, TurnLimits
from grue.protocol.tools.lock import ToolLock
from grue.testing.offline import MODEL, OFFLINE_URL, PIECE_PAUSE_S, ScriptedModelTransport, reply_in_chat
from grue.tool_sessions.server_specs import McpServer
from grue.transports.llm.endpoint import LlmEndpoint, require_key


class ChatWiring(Struct, frozen=True, kw_only=True):
    """The parts of a chat.

    Attributes:
        endpoint: The model's endpoint.
        servers: The MCP servers, by name.
        notes: Sentences about settings that have no effect.
        learned: Returns the box that the watched server needs, as text; `None`: none is watched.
    """

    endpoint: LlmEndpoint
    servers: dict[str, McpServer]
    limits: TurnLimits
    policy: FailurePolicy
    tool_policy: ToolPolicy
    tool_lock: ToolLock | None
    budget: Budget
    start: StartWhen = DEFAULT_START
    notes: tuple[str, ...] = ()
    learned: Callable[[], str] | None = None


def wire_chat(options: ChatOptions) -> ChatWiring:
    """Return the parts of a chat. Nothing is started.

    Raises:
        MCPConfigError: An option, a setting or a file cannot be used, or there is no key for the endpoint.
        MissingDependencyError: There are MCP servers, and `mcp` is not installed.
    """
    config = GameConfiguration.of_project()
    config.ask(options.base_url, options.model or (MODEL if options.offline else None))
    servers: dict[str, McpServer] = {}
    notes: tuple[str, ...] = ()
    lock: ToolLock | None = None
    if options.mcp:
        known = known_servers(config, options.mcp_config, unasked=True)
        servers = known.servers
        notes = (*known.warnings, *(f"{name}: {reason}" for name, reason in known.unusable.items()))
        if options.mcp_config is not None:
            config.mcp_config_file = str(options.mcp_config.absolute())
        lock = None if known.source == BUNDLED else tool_lock(config)
    learned = None
    if options.learn is not None:
        watched, learned = watched_server(servers, options.learn)
        servers = {**servers, options.learn: watched}
    return ChatWiring(
        endpoint=_endpoint(options, config),
        servers=servers,
        limits=turn_limits(config, options.turn_timeout_s),
        policy=FailurePolicy(on_tool_drift=on_tool_drift(config)),
        tool_policy=_tool_policy(config.tool_policy, ask=options.ask),
        tool_lock=lock,
        budget=episode_budget(config),
        start=config.mcp_start,
        notes=notes,
        learned=learned,
    )


def _tool_policy(policy: ToolPolicy, *, ask: bool) -> ToolPolicy:
    """Return the policy of a chat. No turn parks: the person who is asked sits at the terminal."""
    if ask:
        asking = (replace(rule, verdict="ask") if rule.verdict == "allow" else rule for rule in policy.rules)
        policy = replace(policy, rules=(*asking, ToolRule(verdict="ask")))
    return prefixed_policy(replace(policy, parking=False))


def _endpoint(options: ChatOptions, config: GameConfiguration) -> LlmEndpoint:
    settings = llm_settings(config)
    if options.offline:
        settings = replace(settings, base_url=OFFLINE_URL, api_key="")
        pause_s = PIECE_PAUSE_S if sys.stdout.isatty() else 0.0
        transport = ScriptedModelTransport(script=reply_in_chat, pause_s=pause_s)
        return LlmEndpoint(settings, transport=transport)
    otherwise = ", name another endpoint with --base-url, or chat with --offline"
    require_key(settings.base_url, settings.api_key, otherwise)
    return LlmEndpoint(settings)
