"""The synchronous agent that a host uses: one blocking call for each turn, which returns a dict.

A turn does not call the methods of grue's own `LLMClient` and `MCPManager`, unless a program has overridden
them: it takes only their settings. It calls the methods of any other client or manager.
"""

import functools
import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, Field

from grue import AnswerSpec, FailurePolicy, Recorder, Runner, TurnOutcome, TurnRequest
from grue import messages as m
from grue.config.wiring import on_tool_drift, runner_options, turn_limits
from grue.engine.current_episode import with_default
from grue.engine.tool_servers import hide_secrets
from grue.engine.turn import outcome_of
from grue.hosting import GameConfiguration, LangfuseObserver, LoggerObserver, ToolServer, error_for
from grue.hosts.zork.chat_messages import Sampling
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.client_actor import client_actor
from grue.hosts.zork.games.commands import sanitise_command
from grue.hosts.zork.look_alikes import is_overridden
from grue.hosts.zork.manager import TURN_METHODS, MCPManager
from grue.hosts.zork.manager_connection import OverriddenManagerConnection, connect_manager
from grue.policies import Keep, Start, starts_ahead
from grue.protocol.turn.connection import Disabled, Settled
from grue.protocol.turn.prices import Spent
from grue.tool_sessions.server_specs import McpServer

FALLBACK_ACTION = "look"
"""The command that is played if the model gives no playable one. It usually only uses up a game turn."""


class AgentResponse(BaseModel):
    """The model's decision for one turn."""

    thinking: str = Field(description="Why this is the best next command, in one or two sentences.")
    action: str = Field(description="One game command, such as 'take lamp' or 'north'. Never more than one.")
    new_objective: str | None = Field(
        default=None, description="A goal that takes several turns, when there is a new one; otherwise null."
    )


def playable(response: AgentResponse) -> AgentResponse:
    """Return the response with its action cleaned up; raises `ValueError` if no playable command is left."""
    action = sanitise_command(response.action)
    if action is None:
        raise ValueError(f"action: {response.action!r} is not one command that the game takes")
    return response.model_copy(update={"action": action})


def answer_spec() -> AnswerSpec[AgentResponse]:
    """Return the spec of a turn's answer: an `AgentResponse` that `playable` accepts, or the fallback."""
    return AnswerSpec.from_model(
        AgentResponse, check=playable, fallback=AgentResponse(thinking="", action=FALLBACK_ACTION), told=True
    )


SYSTEM_PROMPT = """\
You play a text adventure, one command a turn, to score as many points as possible and to win.

Each turn you are shown where you are, what you carry, your score, what you did lately, what you remember of
this place, and the game's own text. Reply with exactly one command.

How to play well:
- Commands are short: a direction (north, up), or a verb and a thing (take lamp, open case, unlock door with
  key). One command only, never a list, never an explanation.
- Read the text closely: things, exits and warnings in it are real, everything else is not.
- When a command failed, do not repeat it; try another way or go elsewhere.
- Dark places are dangerous: have a light with you.

If tools are offered, use them to think when a puzzle needs several steps of reasoning; for plain moves answer
directly. Tools never act in the game: the answer does.

Answer with one JSON object and nothing else:
{"thinking": "why", "action": "the command", "new_objective": "a longer goal, or null"}
"""


def add_loggers(recorder: Recorder, *loggers: Any, episode_id: str) -> None:
    """Add an observer for each of the loggers that does not get the recorder's log records already."""
    observed = [each.logger for each in recorder.observers if isinstance(each, LoggerObserver)]
    # Begin with the loggers that are lowest in the hierarchy: their parents get the records by propagation.
    for logger in sorted(filter(None, loggers), key=lambda each: len([*_targets(each)]), reverse=True):
        if not any(logger is target for each in observed for target in _targets(each)):
            recorder.add(LoggerObserver(logger, episode_id=episode_id))
            observed.append(logger)


def _targets(logger: Any) -> Iterator[Any]:
    yield logger
    while isinstance(logger, logging.Logger) and logger.propagate and logger.parent is not None:
        logger = logger.parent
        yield logger


_UNNAMED = "mcp"  # the server's name if a manager has no `server_name`


class Route(Struct, frozen=True):
    """How a turn reaches its tools and its model. If it changes, the next turn gets a new runner."""

    manager: int  # the manager's `id()`
    manager_called: bool  # whether methods of an `MCPManager` are overridden
    client: int  # the client's `id()`
    client_called: bool  # whether an `LLMClient`'s method for completions is overridden
    client_asked: bool  # whether an `LLMClient` overrides `_supports_tool_calling`


def own_manager(manager: object) -> MCPManager | None:
    """Return the manager if it is a real `MCPManager`; `None`: it is another object, or a mock of one."""
    return manager if isinstance(manager, MCPManager) and issubclass(type(manager), MCPManager) else None


def route_of(manager: object, client: object) -> Route:
    """Return how the next turn reaches its tools and its model."""
    ours = own_manager(manager)
    llm = client if isinstance(client, LLMClient) else None
    return Route(
        manager=id(manager),
        manager_called=ours is not None and is_overridden(ours, TURN_METHODS),
        client=id(client),
        client_called=llm is not None and llm.completes_by_itself,
        client_asked=llm is not None and llm.judges_tool_support,
    )


def tool_server_of(manager: Any, route: Route) -> tuple[m.ServerName, ToolServer]:
    """Return name and tool server for a manager or an MCP server. `MCPError`: a manager lacks a coroutine."""
    if isinstance(manager, McpServer):
        return m.ServerName(manager.name), manager
    ours = own_manager(manager)
    if ours is not None:
        connect = functools.partial(OverriddenManagerConnection, ours)
        return ours.server_name, connect if route.manager_called else ours.tool_server
    server = m.ServerName(getattr(manager, "server_name", None) or _UNNAMED)
    return server, connect_manager(manager, server)


_RAW_SHOWN = 100
_UNKNOWN = "unknown"
_TOLD_S = 2.0
"""How many seconds a turn's end may wait for Langfuse, which may have to be imported in the first turn."""


class ZorkAgent:
    """Decide on one game command for each turn, with tool calls if the model makes them.

    Args:
        config: Limits and policies, and the model, time limit and sampling settings that are `None` here.
        client: An `LLMClient` (`None`: made from `config`), or any object with `chat.completions.create`,
            blocking or not. If it has a method `_supports_tool_calling` of its own, the method decides
            whether the model can call tools, unless `config` forces tool support.
        mcp_manager: An `MCPManager`, a `StdioServer` or `HttpServer`, or any object with the coroutines
            `connect_session`, `disconnect_session`, `get_tool_schemas` and `call_tool`; `None` for no tools.
            The logger and the Langfuse client of an `MCPManager` get the events of the turns too.
        policy: What happens after a failure. Its `on_tool_drift` and `retry_disabled_s` are ignored:
            `config.mcp_tool_lock` decides, and a disabled server stays disabled until the episode ends.
        start: When each turn's server starts; `None`: as the configuration says. With `after_turn` and
            `beside_turn`, one event loop runs for the whole episode, until `close`.
        approve: Called with the tool calls that need approval, as by a `Runner`; `None`: nobody is asked.

    Attributes:
        stream: Whether replies are streamed, so that the trace has the text as it arrives. A host may set it.
        server: Name of the tool server; `None` if MCP is off.
        turn: Number of the last turn; the next turn gets the next number. A host may set it.

    Source: R10.1
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
        start: Start | None = None,
        approve: Any = None,
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
        self._sampling = _sampling_of(
            config, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, max_tokens=max_tokens
        )
        self._limits = turn_limits(config, turn_timeout_s)
        self._policy = replace(
            policy or FailurePolicy(), on_tool_drift=on_tool_drift(config), retry_disabled_s=None
        )
        self._start = with_default(start, config.mcp_start)
        self._keep: Keep = "loop" if starts_ahead(self._start) else "nothing"
        self._approve = approve
        self.server: m.ServerName | None = None
        self._langfuse: LangfuseObserver | None = None
        self._langfuse_keeps_up = True
        self._route = route_of(mcp_manager, self.client)
        self._runner = self._wire(recorder or Recorder())

    @property
    def recorder(self) -> Recorder:
        """Records every message of the turns; a host may record facts of its own."""
        return self._runner.recorder

    @property
    def budget_spent(self) -> str:
        """A sentence that says which limit of the episode's budget is reached; empty: no limit is."""
        return self._runner.budget_spent

    def get_action_with_reasoning(
        self, game_state_text: str, relevant_memories: str | None = None
    ) -> dict[str, str | None]:
        """Run a turn and return its decision; blocks until the turn has ended.

        Args:
            game_state_text: The situation in the game.
            relevant_memories: Added to the situation, after a blank line.

        Returns:
            `action` (a playable command), `reasoning`, `new_objective`, `raw_response`.

        Raises:
            MCPError: Tools are configured but the model cannot call any, or an error of `Runner.run_turn`.

        Source: R10.1, R12.5
        """
        request = self._request(game_state_text, relevant_memories)
        try:
            outcome = self._runner.run_turn(request)
        finally:
            self._after_turn()
            if self._route.manager_called and self._keep == "nothing":
                # Kill the servers of sessions that were not closed. The turn's event loop has ended, so
                # nothing else would kill them before the next session.
                self.mcp_manager.kill_leftovers()
            self._wait_for_langfuse()
        return self._result(outcome)

    def close(self) -> None:
        """End servers and tasks that outlive a turn, and flush the manager's Langfuse client."""
        self._runner.close()
        if self._langfuse is not None:
            self._langfuse.close()

    def recall(self, end: m.TurnCompleted | m.TurnFailed) -> dict[str, str | None]:
        """Return the decision of a turn that an earlier run of the program finished. No request is sent.

        Raises:
            MCPError: The turn ended with this error.
        """
        self.turn = end.turn
        if isinstance(end, m.TurnFailed):
            raise error_for(end)
        spec = answer_spec()
        response = spec.fallback if end.kind == "fallback" else AgentResponse.model_validate(end.answer)
        assert response is not None, "this host has a fallback"
        return self._result(outcome_of(end, response, 0.0))

    def resume(
        self,
        turns: int,
        spent: Spent,
        connections: Mapping[m.ServerName, Settled],
        listings: Mapping[m.ServerName, tuple[m.ToolDefinition, ...]] | None = None,
    ) -> None:
        """Set the state of an episode that is continued after `turns` turns.

        Args:
            turns: Number of turns that were played.
            spent: Requests, tokens and cost of these turns.
            connections: The state of the connection to each server.
            listings: The tools that each server listed last. A turn may offer them before the server starts.

        Source: D12, P27
        """
        self.turn = turns
        self._runner.spent = spent
        for server, connection in connections.items():
            self._runner.remember(server, connection, (listings or {}).get(server, ()))
        self._after_turn()

    async def _generate_action_async(
        self, game_state_text: str, relevant_memories: str | None = None
    ) -> dict[str, str | None]:
        """Do the same as `get_action_with_reasoning`, in the caller's event loop."""
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
        server, is_disabled = self.server, getattr(self.mcp_manager, "is_disabled", False)
        if server is not None and is_disabled and not isinstance(self._runner.connection(server), Disabled):
            self._runner.remember(server, Disabled("the MCP manager is disabled"))
        user = f"{game_state_text}\n\n{memories}" if memories else game_state_text
        return TurnRequest(
            system=self.system_prompt,
            user=user,
            answer=answer_spec(),
            turn=self.turn,
            json_results=True,
            final_request=m.FINAL_REQUEST,
            on_delta=(lambda _: None) if self.stream else None,  # switches streaming on
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
        servers: dict[str, ToolServer] = {}
        manager = own_manager(self.mcp_manager) if self.mcp_enabled else None
        if self.mcp_enabled:
            self.server, server = tool_server_of(self.mcp_manager, self._route)
            servers = {self.server: server}
        heard = (self.logger, manager.logger if manager else None)
        add_loggers(recorder, *heard, episode_id=self.episode_id)
        if manager is not None:
            hide_secrets(recorder, [manager.tool_server])
            self._tell_langfuse(recorder, manager.langfuse_client)
        config, llm = self.config, self.client
        if isinstance(llm, LLMClient) and not self._route.client_called:
            forced = config.mcp_force_tool_support
            llm = llm.endpoint(self.model, force_tool_support=forced, **self._sampling)
        else:
            llm = client_actor(llm, self.model, config, **self._sampling)
        options = runner_options(config, manager.tool_lock if manager else None)
        options |= {"limits": self._limits, "policy": self._policy, "start": self._start}
        return Runner(
            llm=llm, servers=servers, recorder=recorder, approve=self._approve, keep=self._keep, **options
        )

    def _rewire(self) -> None:
        route = route_of(self.mcp_manager, self.client)
        if route == self._route:
            return
        same_manager = route.manager == self._route.manager
        self._route, before, server = route, self._runner, self.server
        self._runner = self._wire(before.recorder)
        self._runner.spent = before.spent
        if same_manager and server is not None:
            self._runner.remember(server, before.connection(server))
        before.close()

    def _tell_langfuse(self, recorder: Recorder, client: Any) -> None:
        observed = [each for each in recorder.observers if isinstance(each, LangfuseObserver)]
        if client is None or any(each.client is client and not each.closed for each in observed):
            return
        session_id = None if self.episode_id == _UNKNOWN else self.episode_id
        self._langfuse = LangfuseObserver(client, session_id=session_id)
        recorder.add(self._langfuse)
        # If the agent is dropped without `close`, the remaining events are sent in the background.
        weakref.finalize(self, self._langfuse.close, timeout_s=0)

    def _wait_for_langfuse(self) -> None:
        """Wait up to 2 s until the Langfuse client has the turn's events; after one timeout, never again."""
        if self._langfuse is not None and self._langfuse_keeps_up:
            self._langfuse_keeps_up = self._langfuse.wait_idle(_TOLD_S)

    def _after_turn(self) -> None:
        manager = own_manager(self.mcp_manager)
        if manager is not None and self.server is not None:
            manager.connection = self._runner.connection(self.server)


def _sampling_of(config: GameConfiguration, **given: float | None) -> Sampling:
    sampling = {
        name: getattr(config.agent_sampling, name) if value is None else value
        for name, value in given.items()
    }
    return cast("Sampling", sampling)
