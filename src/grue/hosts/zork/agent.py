"""The agent as its host sees it: one blocking call a turn, a dict back (R10.4, R15.4)."""

import logging
import weakref
from collections.abc import Mapping
from typing import Any, cast

import anyio.to_thread
from msgspec.structs import replace

from grue.config.settings import GameConfiguration
from grue.config.wiring import episode_budget, on_tool_drift, turn_limits
from grue.engine.tool_servers import ToolServer, hide_secrets
from grue.engine.turn_errors import error_for
from grue.hosts.zork.agent_wiring import model_of, own_manager, route_of, tool_server_of
from grue.hosts.zork.chat_messages import Sampling
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.listeners import tell_langfuse, tell_loggers
from grue.hosts.zork.prompts import SYSTEM_PROMPT
from grue.hosts.zork.response import AgentResponse, answer_spec
from grue.messages import FailurePolicy, ServerName, TextDelta, TurnCompleted, TurnFailed
from grue.observers.langfuse import LangfuseObserver
from grue.protocol.budget import Spent
from grue.protocol.connection import Disabled, Settled
from grue.runner import Runner, TurnOutcome, TurnRequest, outcome_of
from grue.runtime.trace import Recorder

_RAW_SHOWN = 100
_UNKNOWN = "unknown"
_TOLD_S = 2.0
"""How long a turn waits at its end until the manager's Langfuse client knows of it. A few ms are usual; the
first turn may have to wait for the import of langfuse."""


class ZorkAgent:
    """Decide on one game command a turn, thinking with tools where the model asks for them.

    Sampling parameters that are `None` are taken from the configuration.

    Args:
        config: Limits and policies of the turn.
        model: The model; `None`: the configuration's.
        client: An `LLMClient`, or any object with `chat.completions.create`; `None`: a new `LLMClient`. A
            `_supports_tool_calling` of its own decides whether the model is offered tools.
        max_tokens: Longest completion, in tokens.
        logger: Takes the seeds' records. The logger and the Langfuse client of an `MCPManager` are told of
            the turns too, and once, though agent and manager may have been given the same ones.
        episode_id: Carried by every record.
        mcp_manager: An `MCPManager`, a `StdioServer` or `HttpServer`, or any object with the four coroutines;
            `None`: no tools. Methods that a subclass of `MCPManager` overrides are called in every turn.
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
        episode_id: str = _UNKNOWN,
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
        self._sampling = cast("Sampling", sampling)
        self._limits = turn_limits(config, turn_timeout_s)
        self._policy = replace(policy or FailurePolicy(), on_tool_drift=on_tool_drift(config))
        self._spawn_ahead = spawn_ahead
        self._server: ServerName | None = None
        self._langfuse: LangfuseObserver | None = None
        self._langfuse_keeps_up = True
        self._route = route_of(mcp_manager, self.client)
        self._runner = self._wire(recorder or Recorder())

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
            if self._route.manager_called and not self._spawn_ahead:
                self.mcp_manager.kill_leftovers()  # the turn's event loop has ended
            self._wait_for_langfuse()
        return self._result(outcome)

    def close(self) -> None:
        """End what lives from turn to turn, and flush the manager's Langfuse client, within seconds.

        Without it, that client is flushed at the program's end. A second call does nothing.
        """
        self._runner.close()
        if self._langfuse is not None:
            self._langfuse.close()

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
        if self._langfuse is not None:
            await anyio.to_thread.run_sync(self._wait_for_langfuse)
        return self._result(outcome)

    def _request(self, game_state_text: str, memories: str | None) -> TurnRequest[AgentResponse]:
        self.turn += 1
        self._rewire()
        self._before_turn()
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

    def _wire(self, recorder: Recorder) -> Runner:
        """Return a runner for the turns from now on, and have those who want to hear of them told."""
        servers: dict[str, ToolServer] = {}
        manager = own_manager(self.mcp_manager) if self.mcp_enabled else None
        if self.mcp_enabled:
            self._server, server = tool_server_of(self.mcp_manager, self._route)
            servers = {self._server: server}
        heard = (self.logger, manager.logger if manager else None)
        tell_loggers(recorder, *heard, episode_id=self.episode_id)
        if manager is not None:
            hide_secrets(recorder, [manager.tool_server])
            self._tell_langfuse(recorder, manager.langfuse_client)
        return Runner(
            llm=model_of(self.client, self.model, self.config, self._sampling, self._route),
            servers=servers,
            limits=self._limits,
            policy=self._policy,
            recorder=recorder,
            tool_lock=manager.tool_lock if manager else None,
            budget=episode_budget(self.config),
            lifetime="episode" if self._spawn_ahead else "turn",
            spawn_ahead=self._spawn_ahead,
        )

    def _rewire(self) -> None:
        """Wire the turns anew if the manager or the client was replaced, or methods of them were."""
        route = route_of(self.mcp_manager, self.client)
        if route == self._route:
            return
        same_manager = route.manager == self._route.manager
        self._route, before, server = route, self._runner, self._server
        self._runner = self._wire(before.recorder)
        self._runner.spent = before.spent
        if same_manager and server is not None:
            self._runner.remember(server, before.connection(server))
        before.close()

    def _tell_langfuse(self, recorder: Recorder, client: Any) -> None:
        session_id = None if self.episode_id == _UNKNOWN else self.episode_id
        observer = tell_langfuse(recorder, client, session_id=session_id)
        if observer is not None:
            self._langfuse = observer
            # An agent that is lost without `close` has everything sent in the background.
            weakref.finalize(self, observer.close, timeout_s=0)

    def _wait_for_langfuse(self) -> None:
        """Wait until the manager's client has been told of the turn, so that its `flush` sends all of it.

        A client that takes too long is not waited for again: it would hold up every turn.
        """
        if self._langfuse is not None and self._langfuse_keeps_up:
            self._langfuse_keeps_up = self._langfuse.wait_idle(_TOLD_S)

    def _before_turn(self) -> None:
        """Take over from the manager that its server is given up."""
        if self._server is None or not getattr(self.mcp_manager, "is_disabled", False):
            return
        if not isinstance(self._runner.connection(self._server), Disabled):
            self._runner.remember(self._server, Disabled("the MCP manager is disabled"))

    def _after_turn(self) -> None:
        """Let the façade know what the episode knows of its server."""
        manager = own_manager(self.mcp_manager)
        if manager is not None and self._server is not None:
            manager.connection = self._runner.connection(self._server)


def _unheard(delta: TextDelta) -> None:
    """Leave it to the trace's observers."""
