"""The host that plays a text adventure: a plain synchronous loop around the agent.

An episode cannot be resumed with another game, with MCP switched on or off, or with an MCP server of another
name. Other changed settings (`conditions_of`) are only reported and recorded, because people also resume an
episode after they have mended its configuration.
"""

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field, structs

import grue
from grue import FailurePolicy, HttpServer, MCPError, Recorder, StdioServer, hosting
from grue import messages as m
from grue.config.mcp_servers import without_network
from grue.engine.episode_past import ends_episode
from grue.errors import GameError, LLMError, MCPConfigError, TraceError, TurnTimedOut
from grue.hosting import Envelope, EpisodeResumed, GameConfiguration, LangfuseObserver, LoggerObserver
from grue.hosts.zork import facts
from grue.hosts.zork.agent import FALLBACK_ACTION, ZorkAgent
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.games.game import Game, Observation
from grue.hosts.zork.manager import MCPManager
from grue.policies import Start
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.runtime.safe_text import beginning

RECENT = 6  # how many past commands the model is shown

_REPLY_CHARS = 160


class Move(Struct, frozen=True):
    """A command that was played at `location`, and its result."""

    command: str
    reply: str
    location: str | None
    gained: int | None  # points; `None`: the score is unknown


def context_text(
    game: str, turn: int, seen: Observation, moves: Sequence[Move], objectives: Sequence[str]
) -> str:
    """Return the user message of a turn, without the memories."""
    lines = [f"Game: {game}", f"Turn: {turn}"]
    if seen.location is not None:
        lines.append(f"Location: {seen.location}")
    if seen.inventory is not None:
        lines.append(f"Inventory: {', '.join(seen.inventory) or 'nothing'}")
    if seen.score is not None:
        most = f" of {seen.max_score}" if seen.max_score is not None else ""
        lines.append(f"Score: {seen.score}{most}")
    if objectives:
        lines += ["", "Objectives:", *(f"- {objective}" for objective in objectives)]
    if moves:
        lines += ["", "Recent actions and results:", *(_move_line(move) for move in moves[-RECENT:])]
    warning = stuck_warning(moves)
    if warning:
        lines += ["", warning]
    return "\n".join([*lines, "", "The game says:", seen.text.strip()])


def stuck_warning(moves: Sequence[Move]) -> str:
    """Return a warning for a player who is stuck; empty if the player is not."""
    last = [move.command for move in moves[-3:]]
    if len(last) == 3 and len(set(last)) == 1:
        return f"You have tried '{last[0]}' three times running. Do something else."
    recent = moves[-RECENT:]
    if len(recent) < RECENT or any(move.gained for move in recent):
        return ""
    places = {move.location for move in recent}
    replies = {move.reply for move in recent}
    if len(places) == 1 and len(replies) <= RECENT // 2:
        return "You are getting nowhere here. Try another exit, another thing, another verb."
    return ""


def _move_line(move: Move) -> str:
    reply = beginning(" ".join(move.reply.split()), _REPLY_CHARS)
    gained = f" ({move.gained:+d} points)" if move.gained else ""
    return f"> {move.command}{gained}: {reply}"


MOST_PER_PLACE = 8


class Memories:
    """Short notes on what the player's moves did, at most `MOST_PER_PLACE` for each location."""

    def __init__(self) -> None:
        self._notes: dict[str, list[str]] = {}

    def learn(self, move: Move, after: Observation) -> str | None:
        """Add a note about a move, and return the note; `None`: nothing new, or an unknown place."""
        if move.location is None:
            return None
        if after.died:
            note = f"'{move.command}' killed you here"
        elif move.gained and move.gained > 0:
            note = f"'{move.command}' brought {move.gained} points"
        elif after.location is not None and after.location != move.location:
            note = f"'{move.command}' leads to {after.location}"
        else:
            return None
        notes = self._notes.setdefault(move.location, [])
        if note in notes:
            return None
        notes.append(note)
        del notes[:-MOST_PER_PLACE]
        return note

    def text(self, location: str | None) -> str | None:
        """Return the prompt's lines about what moves did at a place, oldest first; `None`: there are none."""
        notes = self._notes.get(location or "")
        if not notes:
            return None
        return "\n".join(["What you remember of this place:", *(f"- {note}" for note in notes)])


def conditions_of(agent: ZorkAgent) -> dict[str, str]:
    """Return an agent's settings to record in the trace, without secrets."""
    config, client = agent.config, agent.client
    ours = isinstance(client, LLMClient)
    said = {
        "model": agent.model,
        "endpoint": shown_endpoint(client.config.client_base_url) if ours else type(client).__name__,
        "wire format": config.wire_format or "by endpoint",
        "sampling": _json(dataclasses.asdict(config.agent_sampling)),
        "budget": _json(dataclasses.asdict(config.budget)),
    }
    if agent.server is None:
        return said
    return {
        **said,
        f"MCP server '{agent.server}'": _definition(agent.mcp_manager),
        "tool limits": (
            f"{config.mcp_max_tool_iterations} iterations, "
            f"{config.mcp_tool_call_timeout_seconds:g} s a call, "
            f"{config.mcp_server_startup_timeout_seconds:g} s to start"
        ),
        "tool lock": _lock(agent),
    }


def require_same_tools(started: facts.EpisodeStarted, server: str | None) -> None:
    """Raise `MCPConfigError` unless the episode was begun with the MCP server `server`; `None`: with none."""
    now = (server,) if server else ()
    if now != started.servers:
        raise MCPConfigError(
            f"The episode cannot be resumed: it was begun with {_tools(started.servers)}, and now there is "
            f"{_tools(now)}. Configure MCP as it was, or play a new episode."
        )


def _tools(servers: tuple[str, ...]) -> str:
    return f"the MCP server {', '.join(map(repr, servers))}" if servers else "no MCP"


def _definition(manager: object) -> str:
    server = manager.tool_server if isinstance(manager, MCPManager) else manager
    match server:
        case StdioServer(command=command, args=args, cwd=cwd):
            # Arguments may hold secrets, so only their digest is recorded.
            return f"{command} ({_digest((command, args, cwd, sorted(server.env), server.inherit_env))})"
        case HttpServer(url=url, transport=transport):
            return f"{shown_endpoint(url)} ({_digest((url, transport, sorted(server.headers)))})"
        case _:
            return type(server).__name__


def _lock(agent: ZorkAgent) -> str:
    manager = agent.mcp_manager
    lock = manager.tool_lock if isinstance(manager, MCPManager) else None
    if lock is None or agent.server is None:
        return f"{agent.config.mcp_tool_lock}, nothing is locked"
    pins = msgspec.to_builtins(lock.pins(agent.server))
    return f"{agent.config.mcp_tool_lock}, {len(pins)} tools ({_digest(pins)})"


def _digest(value: object) -> str:
    # Use `repr`, because a tool lock can hold lone surrogates, which msgspec cannot write as JSON.
    text = repr(msgspec.to_builtins(value, builtin_types=(), order="sorted"))
    return f"sha256 {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


_FOR_GOOD = ("won", "died", "quit")


class GamePast(hosting.Past[facts.EpisodeStarted], kw_only=True):
    """The recorded part of an episode."""

    decided: list[facts.Decided] = field(default_factory=list)
    # The observations by turn, without those with a redacted secret.
    shown: dict[int, facts.Observed] = field(default_factory=dict)
    remembered: set[int] = field(default_factory=set)  # turns whose note about a place was recorded
    # Too many fallbacks in a row ended the episode after this turn. A resumed episode counts only later ones.
    forgiven: int = 0

    @property
    def turns(self) -> int:
        """Number of turns with a decision."""
        return len(self.decided)

    def take_fact(self, envelope: Envelope[Any]) -> None:
        """Update this object from the next envelope of the trace."""
        match envelope.body:
            case facts.Observed(turn=turn) as observed if not envelope.redacted:
                self.shown.setdefault(turn, observed)
            case facts.Decided() as decided:
                self.decided.append(decided)
                self.end = None
            case facts.Remembered(turn=turn):
                self.remembered.add(turn)
            case hosting.EpisodeEnded(reason="fallbacks"):
                self.forgiven = self.turns


def read_past(path: Path) -> GamePast:
    """Read how far an episode got. `path` is its run folder or the trace in the folder."""
    read = GamePast.read(path, needed=(facts.Decided,), started=facts.EpisodeStarted, over=_FOR_GOOD)
    for number, decision in enumerate(read.decided, start=1):
        if decision.turn != number:
            raise TraceError(f"{path} cannot be resumed: the decision of turn {number} is missing.")
    return read


DEFAULT_MAX_TURNS = 60
_MOST_OBJECTIVES = 5


class GameState(Struct, kw_only=True):
    """The current state of an episode."""

    episode_id: str
    turn: int = 0
    last_action: str | None = None
    last_reason: str = ""  # the `reason` of the last `Decided`
    observation: Observation = Observation(text="")
    moves: list[Move] = field(default_factory=list)
    objectives: list[str] = field(default_factory=list)
    deaths: int = 0
    fallbacks: int = 0
    fallbacks_in_a_row: int = 0
    tool_calls: int = 0
    requests: int = 0
    usage: m.Usage = m.Usage()


class EpisodeResult(Struct, frozen=True, kw_only=True):
    """How an episode ended, or its state so far."""

    episode_id: str
    game: str
    seed: int
    model: str
    scripted: bool
    reason: facts.EndReason
    detail: str
    turns: int
    score: int | None
    max_score: int | None
    deaths: int
    fallbacks: int
    tool_calls: int
    requests: int
    usage: m.Usage
    commands: tuple[str, ...]
    duration_s: float

    @property
    def succeeded(self) -> bool:
        """`False` if failures, fallbacks or an interruption ended the episode, or if it has not ended."""
        return self.reason not in ("fallbacks", "failed", "interrupted")


class EpisodeSetup(Struct, kw_only=True):
    """The parts of an episode that are not in its configuration; all have a default.

    `client`, `approve`, `turn_timeout_s`, `start` and `stream` mean the same as in a `ZorkAgent`.
    """

    game: Any = None  # `None`: the embedded game "The House"
    seed: int = 0
    max_turns: int = DEFAULT_MAX_TURNS
    client: Any = None
    mcp_manager: Any = None  # used in place of a manager made from the configuration
    recorder: Any = None
    logger: Any = None
    langfuse_client: Any = None  # gets the events of the episode; `close` only flushes it
    policy: FailurePolicy = FailurePolicy()
    approve: Any = None
    turn_timeout_s: float | None = None
    # Whether a script gives the replies, and not an LLM. This value is recorded in the trace and the result.
    # If it is true, npx downloads nothing to start the configured server.
    scripted: bool = False
    start: Start | None = None
    stream: bool = False
    settings: m.JsonObject = {}  # recorded at the episode's start, for a program that resumes it
    past: GamePast | None = None  # the episode to resume; `None`: a new episode is played


class ZorkOrchestratorV2:
    """Play one episode of a text adventure.

    Without a `config`, the settings are those of `pyproject.toml` in the working directory, or the defaults.
    `changes` are the settings that have changed since a resumed episode was last played.

    Raises:
        MCPError: The MCP configuration cannot be used, or `client` or `mcp_manager` lacks a method.
        GameError: The game is not that of the episode to resume, or cannot replay it.
        MCPConfigError: The episode to resume was begun with an MCP server of another name, or MCP was
            switched on or off since. Nothing is recorded.
    """

    def __init__(
        self, episode_id: str, config: GameConfiguration | None = None, setup: EpisodeSetup | None = None
    ) -> None:
        self.config = config if config is not None else GameConfiguration.of_project()
        self.setup = setup or EpisodeSetup()
        self.game_state = GameState(episode_id=episode_id)
        self.recorder: Recorder = self.setup.recorder or Recorder()
        self.recorder.add(self._count)
        if self.setup.logger is not None:
            # This comes before anything is recorded, so that MCP configuration errors are logged too.
            self.recorder.add(LoggerObserver(self.setup.logger, episode_id=episode_id))
        self._langfuse: LangfuseObserver | None = None
        if self.setup.langfuse_client is not None:
            self._langfuse = LangfuseObserver(self.setup.langfuse_client, session_id=episode_id)
            self.recorder.add(self._langfuse)
        self.memories = Memories()
        self.game: Game = self.setup.game if self.setup.game is not None else open_game("house")
        self._began = time.monotonic()
        self._started = False
        self._end: facts.EpisodeEnded | None = None
        self._turn_end: m.TurnCompleted | m.TurnFailed | None = None
        past = self.setup.past
        unrecorded = self._come_back(past) if past is not None else []
        self.mcp_manager = self._initialize_mcp()
        self.agent = ZorkAgent(
            config=self.config,
            client=self.setup.client,
            episode_id=episode_id,
            mcp_manager=self.mcp_manager,
            recorder=self.recorder,
            policy=self.setup.policy,
            approve=self.setup.approve,
            turn_timeout_s=self.setup.turn_timeout_s,
            start=self.setup.start,
        )
        self.agent.stream = self.setup.stream
        self._conditions = conditions_of(self.agent)
        self.changes = () if past is None else past.changes(self._conditions)
        if past is not None:
            require_same_tools(past.started, self.agent.server)
            self.agent.resume(past.turns, past.spent, past.connections, past.listings)
            self._record_resumption(past, unrecorded)

    def play_episode(self) -> EpisodeResult:
        """Play until the episode ends, and return the result.

        The end is also recorded before an `MCPError` or Ctrl-C is raised; `result` then has the reason.
        """
        try:
            while self._process_turn():
                pass
        except KeyboardInterrupt:  # Ctrl-C between two turns; during a turn, `_process_turn` records it
            self._ends("interrupted", "interrupted by Ctrl-C")
            raise
        return self.result()

    def result(self) -> EpisodeResult:
        """Return the result of the episode so far."""
        state = self.game_state
        end = self._end or self._ended("interrupted", "still being played")
        return EpisodeResult(
            episode_id=state.episode_id,
            game=self.game.name,
            seed=self.setup.past.started.seed if self.setup.past else self.setup.seed,
            model=self.agent.model,
            scripted=self.setup.scripted,
            reason=end.reason,
            detail=end.detail,
            turns=end.turns,
            score=end.score,
            max_score=end.max_score,
            deaths=state.deaths,
            fallbacks=state.fallbacks,
            tool_calls=state.tool_calls,
            requests=state.requests,
            usage=state.usage,
            commands=tuple(move.command for move in state.moves),
            duration_s=round(time.monotonic() - self._began, 3),
        )

    def close(self) -> None:
        """Close the agent and the game, and flush Langfuse; may take a few seconds."""
        self.agent.close()
        self.game.close()
        if self._langfuse is not None:
            self._langfuse.close()

    def _initialize_mcp(self) -> Any:
        if not self.config.mcp_enabled or self.setup.mcp_manager is not None:
            return self.setup.mcp_manager
        try:
            manager = MCPManager(
                config=self.config, logger=self.setup.logger, langfuse_client=self.setup.langfuse_client
            )
        except MCPError as error:
            self._note(facts.McpInitFailed(error=str(error)), turn=0)
            raise MCPConfigError(f"MCP initialization failed: {error}") from error
        if self.setup.scripted:
            manager.tool_server = without_network(manager.tool_server)
        if self.setup.past is None:
            self._note_manager(manager)
        return manager

    def _note_manager(self, manager: MCPManager) -> None:
        initialized = facts.McpInitialized(
            server=manager.server_name, ignored=manager.ignored_servers, warnings=manager.config_warnings
        )
        self._note(initialized, turn=0)

    def _start(self) -> None:
        self._started = True
        if self.setup.past is not None:
            return
        state = self.game_state
        state.observation = self.game.reset(self.setup.seed)
        self._note(
            facts.EpisodeStarted(
                episode_id=state.episode_id,
                game=self.game.name,
                game_hash=self.game.fingerprint,
                seed=self.setup.seed,
                model=self.agent.model,
                servers=(self.agent.server,) if self.agent.server else (),
                scripted=self.setup.scripted,
                max_turns=self.setup.max_turns,
                version=grue.__version__,
                settings=self.setup.settings,
                conditions=self._conditions,
            )
        )

    def _come_back(self, past: GamePast) -> list[facts.Remembered]:
        """Replay an episode's commands in the game, and restore the rest of the state from the trace.

        Return the `Remembered` facts that the trace lacks. They are recorded later, because the constructor
        may still refuse to resume.
        """
        state = self.game_state
        if past.started.game_hash != self.game.fingerprint:
            was, now = past.started, self.game
            raise GameError(
                f"The episode was begun with another game, or another version of it: {was.game} "
                f"({was.game_hash[:12]}); now there is {now.name} ({now.fingerprint[:12]})."
            )
        state.tool_calls, state.requests, state.usage = past.tool_calls, past.spent.requests, past.spent.usage
        state.observation = self.game.reset(past.started.seed)
        unrecorded: list[facts.Remembered] = []
        for decided in past.decided:
            self._check_replayed(past.shown.get(decided.turn))
            state.turn = decided.turn
            memory = self._play(decided)
            if memory is not None and memory.turn not in past.remembered:
                unrecorded.append(memory)
            if decided.turn == past.forgiven:
                state.fallbacks_in_a_row = 0
        # The program may have been killed after the next turn had ended, and before its command was played.
        # That turn's decision is used now, so the game must show the same text as then.
        self._check_replayed(past.shown.get(past.turns + 1))
        self._turn_end = past.end
        self._began -= past.lasted_s
        return unrecorded

    def _record_resumption(self, past: GamePast, unrecorded: list[facts.Remembered]) -> None:
        resumed = EpisodeResumed(
            episode_id=self.game_state.episode_id,
            turns=past.turns,
            max_turns=self.setup.max_turns,
            version=grue.__version__,
            conditions=self._conditions,
            changes=self.changes,
        )
        self._note(resumed, turn=0)
        if isinstance(self.mcp_manager, MCPManager) and self.setup.mcp_manager is None:
            self._note_manager(self.mcp_manager)
        for memory in unrecorded:
            self._note(memory, turn=memory.turn)

    def _check_replayed(self, shown: facts.Observed | None) -> None:
        seen = self.game_state.observation
        if shown is not None and shown.text != seen.text:
            raise GameError(
                f"The game does not come back to turn {shown.turn} as it was recorded: "
                "it is another version, or it is not deterministic."
            )

    def _process_turn(self) -> bool:
        """Play one turn and return `True`; `False`: the episode is over."""
        state = self.game_state
        try:
            if not self._started:
                self._start()
                self._see_whether_it_ends()
            if self._end is not None:
                return False
            state.turn += 1
            seen = state.observation
            self._note(_observed(state.turn, seen))
            decided = self._decide(seen)
            self._note(decided)
            memory = self._play(decided)
            if memory is not None:
                self._note(memory)
            self._see_whether_it_ends()
        except KeyboardInterrupt:
            self._ends("interrupted", "interrupted by Ctrl-C")
            raise
        except MCPError as error:
            self._ends("failed", str(error))
            raise
        return True

    def _decide(self, seen: Observation) -> facts.Decided:
        state = self.game_state
        self.agent.turn = state.turn - 1
        context = context_text(self.game.name, state.turn, seen, state.moves, state.objectives)
        recorded, self._turn_end = self._turn_end, None
        try:
            if recorded is not None and recorded.turn == state.turn:
                answer = self.agent.recall(recorded)
            else:
                answer = self.agent.get_action_with_reasoning(
                    game_state_text=context, relevant_memories=self.memories.text(seen.location)
                )
        except (LLMError, TurnTimedOut) as error:
            if isinstance(error, LLMError) and ends_episode(error, answered=state.fallbacks < state.turn - 1):
                raise
            return facts.Decided(
                turn=state.turn,
                action=FALLBACK_ACTION,
                reasoning="",
                new_objective=None,
                kind="fallback",
                reason=" ".join(str(error).split()),
            )
        outcome = self.agent.last_outcome
        assert outcome is not None, "an answer has an outcome"
        return facts.Decided(
            turn=state.turn,
            action=answer["action"] or FALLBACK_ACTION,
            reasoning=answer["reasoning"] or "",
            new_objective=answer["new_objective"],
            kind=outcome.kind,
            reason=outcome.reason,
        )

    def _play(self, decided: facts.Decided) -> facts.Remembered | None:
        state, seen = self.game_state, self.game_state.observation
        after = self.game.step(decided.action)
        gained = None if after.score is None or seen.score is None else after.score - seen.score
        move = Move(command=decided.action, reply=after.text, location=seen.location, gained=gained)
        state.moves.append(move)
        state.last_action = decided.action
        state.observation = after
        state.deaths += after.died
        if decided.new_objective and decided.new_objective not in state.objectives:
            state.objectives = [*state.objectives, decided.new_objective][-_MOST_OBJECTIVES:]
        fell_back = decided.kind == "fallback"
        state.fallbacks += fell_back
        state.fallbacks_in_a_row = state.fallbacks_in_a_row + 1 if fell_back else 0
        state.last_reason = decided.reason
        memory = self.memories.learn(move, after)
        if memory is None or move.location is None:
            return None
        return facts.Remembered(turn=decided.turn, location=move.location, text=memory)

    def _see_whether_it_ends(self) -> None:
        state, seen = self.game_state, self.game_state.observation
        if seen.won:
            self._ends("won", "the game is won")
        elif seen.done and seen.died:
            self._ends("died", "the player died, and the game is over")
        elif seen.done:
            self._ends("quit", "the game ended")
        elif state.fallbacks_in_a_row >= min(self.setup.policy.fallbacks_before_stop, self.setup.max_turns):
            count = "the only turn" if state.turn == 1 else f"{state.fallbacks_in_a_row} turns in a row"
            self._ends("fallbacks", f"{count} fell back to '{FALLBACK_ACTION}': {state.last_reason}")
        elif self.agent.budget_spent:
            self._ends("budget", self.agent.budget_spent)
        elif state.turn >= self.setup.max_turns:
            self._ends("turn_limit", f"the limit on turns, {self.setup.max_turns}, is used up")

    def _ends(self, reason: facts.EndReason, detail: str) -> None:
        if self._end is not None:
            return
        self._end = self._ended(reason, detail)
        # Record the state after the last command. If the last turn played no command, this was done before.
        if len(self.game_state.moves) == self.game_state.turn > 0:
            self._note(_observed(self.game_state.turn, self.game_state.observation))
        self._note(self._end)

    def _ended(self, reason: facts.EndReason, detail: str) -> facts.EpisodeEnded:
        state, seen = self.game_state, self.game_state.observation
        turns = len(state.moves) if reason == "interrupted" else state.turn
        return facts.EpisodeEnded(
            reason=reason, detail=detail, turns=turns, score=seen.score, max_score=seen.max_score
        )

    def _count(self, envelope: Envelope[Any], _line: bytes) -> None:
        end = envelope.body
        if isinstance(end, m.TurnCompleted | m.TurnFailed):
            self.game_state.tool_calls += len(end.tool_calls)
            self.game_state.requests += end.requests
            self.game_state.usage += end.usage

    def _note(self, fact: m.Message, *, turn: int | None = None) -> None:
        self.recorder.record(fact, sender="host", turn=self.game_state.turn if turn is None else turn)


def _observed(turn: int, seen: Observation) -> facts.Observed:
    return facts.Observed(turn=turn, **structs.asdict(seen))
