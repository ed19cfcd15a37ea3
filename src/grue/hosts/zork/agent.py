"""The agent as its host sees it: one blocking call a turn, a dict back (R10.4, R15.4)."""

import logging
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from grue.config.settings import GameConfiguration
from grue.config.wiring import episode_budget, on_tool_drift, turn_limits
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.duck_types import client_actor, connect_manager
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.prompts import SYSTEM_PROMPT
from grue.hosts.zork.response import AgentResponse, answer_spec
from grue.mcp_transport.client import McpServer
from grue.messages import FailurePolicy, ServerName, TextDelta, TurnCompleted, TurnFailed
from grue.observers.python_log import LoggerObserver
from grue.protocol.budget import Spent
from grue.protocol.connection import Disabled, Settled
from grue.protocol.model_support import supports_tool_calling
from grue.runner import LlmFactory, Runner, TurnOutcome, TurnRequest, outcome_of
from grue.runtime.trace import Recorder
from grue.tool_servers import ToolServer
from grue.turn_errors import error_for, tool_support_error

_RAW_SHOWN = 100
_UNNAMED = "mcp"
"""The session's name where a manager does not say its server's; its tools keep their own names."""


class ZorkAgent:
    """Decide on one game command a turn, thinking with tools where the model asks for them.

    Sampling parameters that are `None` are taken from the configuration.

    Args:
        config: Limits and policies of the turn.
        model: The model; `None`: the configuration's.
        client: An `LLMClient`, or any object with `chat.completions.create`; `None`: a new `LLMClient`.
        max_tokens: Longest completion, in tokens.
        logger: Takes the seeds' records.
        episode_id: Carried by every record.
        mcp_manager: An `MCPManager`, a `StdioServer` or `HttpServer`, or any object with the four coroutines;
            `None`: no tools.
        recorder: Where every message is recorded; `None`: a new one.
        policy: What failures lead to; what becomes of a tool that drifts is the configuration's word.
        turn_timeout_s: Limit for a turn; `None`: none.
        spawn_ahead: One event loop for the episode, and each turn's server started while the host plays the
            move before; `close` ends it. `False`: one `anyio.run` an action (R10.1).

    Attributes:
        stream: The model's words are in the trace as they come. A host may set it.
        turn: Number of the last turn; the next one gets one more. A host may set it.
        last_outcome: What came of the last turn, whole; `None` before the first.
    """

    def __init__(
        self,
        config: GameConfiguration,
        model: str | None = None,
        client: Any = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        logger: logging.Logger | None = None,
        episode_id: str = "unknown",
        mcp_manager: Any = None,
        *,
        recorder: Recorder | None = None,
        policy: FailurePolicy | None = None,
        turn_timeout_s: float | None = None,
        spawn_ahead: bool = False,
    ) -> None:
        self.config = config
        self.model = model or config.agent_model
        self.client = client if client is not None else LLMClient(config)
        self.logger = logger
        self.episode_id = episode_id
        self.mcp_manager = mcp_manager
        self.mcp_enabled = config.mcp_enabled and mcp_manager is not None
        self.system_prompt = SYSTEM_PROMPT
        self.stream = False
        self.turn = 0
        self.last_outcome: TurnOutcome[AgentResponse] | None = None
        given = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "max_tokens": max_tokens,
        }
        sampling = {
            name: getattr(config.agent_sampling, name) if value is None else value
            for name, value in given.items()
        }
        recorder = recorder or Recorder()
        if logger is not None:
            recorder.add(LoggerObserver(logger, episode_id=episode_id))
        self._server, servers = self._tool_servers()
        self._runner = Runner(
            llm=self._llm(sampling),
            servers=servers,
            limits=turn_limits(config, turn_timeout_s),
            policy=replace(policy or FailurePolicy(), on_tool_drift=on_tool_drift(config)),
            recorder=recorder,
            tool_lock=mcp_manager.tool_lock if isinstance(mcp_manager, MCPManager) else None,
            budget=episode_budget(config),
            lifetime="episode" if spawn_ahead else "turn",
            spawn_ahead=spawn_ahead,
        )

    @property
    def server(self) -> str | None:
        """Name of the tool server; `None`: MCP is off."""
        return self._server

    @property
    def recorder(self) -> Recorder:
        """Where every message of the turns is recorded; hosts add facts of their own."""
        return self._runner.recorder

    @property
    def budget_spent(self) -> str:
        """Which limit of the episode's budget is reached, in words; empty: none."""
        return self._runner.budget_spent

    def get_action_with_reasoning(
        self, game_state_text: str, relevant_memories: str | None = None
    ) -> dict[str, str | None]:
        """Think and decide, blocking; one `anyio.run` (R10.1).

        Args:
            game_state_text: What there is to decide upon.
            relevant_memories: Added to it after a blank line.

        Returns:
            `action` (a playable command), `reasoning`, `new_objective`, `raw_response`.

        Raises:
            MCPError: Tools are wanted of a model that cannot call any (R12.5), or one of `Runner.run_turn`'s.
        """
        request = self._request(game_state_text, relevant_memories)
        try:
            outcome = self._runner.run_turn(request)
        finally:
            self._after_turn()
        return self._result(outcome)

    def close(self) -> None:
        """End what lives from turn to turn, if anything does. A second call does nothing."""
        self._runner.close()

    def recall(self, end: TurnCompleted | TurnFailed) -> dict[str, str | None]:
        """Return what a turn decided that ended before this program was started; nothing is asked again.

        Raises:
            MCPError: What the turn failed with.
        """
        self.turn = end.turn
        if isinstance(end, TurnFailed):
            raise error_for(end)
        spec = answer_spec()
        response = spec.fallback if end.kind == "fallback" else AgentResponse.model_validate(end.answer)
        assert response is not None, "this host has a fallback"
        return self._result(outcome_of(end, response, 0.0))

    def resume(self, turns: int, spent: Spent, connections: Mapping[ServerName, Settled]) -> None:
        """Go on after so many turns of an episode, with what they took and what is known of the servers.

        A turn that is resumed is never the first: a server that was in use before gets its retry (D12, P27).
        """
        self.turn = turns
        self._runner.spent = spent
        for server, connection in connections.items():
            self._runner.remember(server, connection)
        self._after_turn()

    async def _generate_action_async(
        self, game_state_text: str, relevant_memories: str | None = None
    ) -> dict[str, str | None]:
        """Think and decide in the caller's event loop; otherwise the same."""
        request = self._request(game_state_text, relevant_memories)
        try:
            outcome = await self._runner.run_turn_async(request)
        finally:
            self._after_turn()
        return self._result(outcome)

    def _request(self, game_state_text: str, memories: str | None) -> TurnRequest[AgentResponse]:
        self.turn += 1
        disabled = self._before_turn()
        offered = self.mcp_enabled and not disabled
        # An endpoint of ours is asked within the turn, where what it says outranks the model's name.
        asked = isinstance(self.client, LLMClient)
        if offered and not asked and not supports_tool_calling(self.model, self.config):
            raise tool_support_error(self.model)
        user = f"{game_state_text}\n\n{memories}" if memories else game_state_text
        return TurnRequest(
            system=self.system_prompt,
            user=user,
            answer=answer_spec(),
            turn=self.turn,
            on_delta=_unheard if self.stream else None,
        )

    def _result(self, outcome: TurnOutcome[AgentResponse]) -> dict[str, str | None]:
        self.last_outcome = outcome
        response = outcome.response
        reasoning = response.thinking
        if outcome.kind == "fallback":
            raw = (outcome.raw_response or "")[:_RAW_SHOWN]
            reasoning = f"Parse error: {outcome.reason}. Raw: {raw}"
        return {
            "action": response.action,
            "reasoning": reasoning,
            "new_objective": response.new_objective,
            "raw_response": outcome.raw_response,
        }

    def _tool_servers(self) -> tuple[ServerName | None, dict[str, ToolServer]]:
        if not self.mcp_enabled:
            return None, {}
        if isinstance(self.mcp_manager, McpServer):
            return ServerName(self.mcp_manager.name), {self.mcp_manager.name: self.mcp_manager}
        if isinstance(self.mcp_manager, MCPManager):
            server = self.mcp_manager.server_name
            return server, {server: self.mcp_manager.tool_server}
        server = ServerName(getattr(self.mcp_manager, "server_name", None) or _UNNAMED)
        return server, {server: connect_manager(self.mcp_manager, server)}

    def _llm(self, sampling: dict[str, Any]) -> Any:
        if isinstance(self.client, LLMClient):
            forced = self.config.mcp_force_tool_support
            return self.client.endpoint(self.model, force_tool_support=forced, **sampling)
        make: LlmFactory = client_actor(self.client, self.model, **sampling)
        return make

    def _before_turn(self) -> bool:
        """Take over what the manager knows of its server; return whether it is given up."""
        if self._server is None or not getattr(self.mcp_manager, "is_disabled", False):
            return False
        if not isinstance(self._runner.connection(self._server), Disabled):
            self._runner.remember(self._server, Disabled("the MCP manager is disabled"))
        return True

    def _after_turn(self) -> None:
        """Let the façade know what the episode knows of its server."""
        if isinstance(self.mcp_manager, MCPManager) and self._server is not None:
            self.mcp_manager.connection = self._runner.connection(self._server)


def _unheard(delta: TextDelta) -> None:
    """Leave it to the trace's observers."""
