"""`Talk`, a conversation with an agent in a run folder, and `ChatOptions`. No code here uses the terminal.

Besides the trace, the run folder has the conversation's file, at first `conversation.jsonl`. Before each
turn, the trace records its name and size. `/undo` copies the file up to this size, and the conversation
continues in the copy. So `/undo` also works for turns of an earlier run.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

import grue
from grue import messages as m
from grue.cli.chat import facts
from grue.cli.chat.screen import Noticed
from grue.cli.episode_options import ASKED, EpisodeOptions, existing, recorded_options, resumed_options
from grue.cli.project import BUNDLED_SERVER, KnownServers, declines_mcp, known_servers, watched_server
from grue.cli.runs import RUNS
from grue.config.mcp_servers import without_network
from grue.config.settings import GameConfiguration
from grue.config.wiring import llm_settings, tool_lock, turn_limits
from grue.engine.conversations.conversation import Conversation
from grue.errors import ConversationError
from grue.hosts.agent_loop import AgentLoop
from grue.hosts.agent_loop.loop import RunnerOptions, configured_options
from grue.policies import ApprovalQuestion, ContextPolicy, ToolPolicy, ToolRule
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.protocol.tools.lock import ToolLock
from grue.runtime.files import as_path, os_errors_as
from grue.runtime.safe_text import well_formed, written_out
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.offline import MODEL, offline_endpoint, reply_in_chat
from grue.tool_sessions.server_requests import ElicitationRequest
from grue.tool_sessions.server_specs import McpServer
from grue.tracing.facts import ConditionChanged, EpisodeEnded, EpisodeResumed, changed_conditions
from grue.tracing.message_words import problem_in
from grue.tracing.observers.run_folder import RunFolder, new_run_path
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


RECORDED = (*ASKED, "instructions", "ask", "turn_timeout_s")  # `--resume` restores them


def as_started(options: ChatOptions, past: facts.ChatPast) -> ChatOptions:
    """Return a resumed chat's options: the recorded ones, with its last model and any new time limit."""
    started = resumed_options(options, past.started.settings, (*RECORDED, "started_in"), "grue chat")
    return replace(
        started,
        model=past.model or started.model,
        started_in=existing(started.started_in),
        turn_timeout_s=options.turn_timeout_s or started.turn_timeout_s,
    )


class ChatWiring(Struct, frozen=True, kw_only=True):
    """The endpoint, servers and runner options of a chat."""

    endpoint: LlmEndpoint
    servers: dict[str, McpServer]
    runner: RunnerOptions
    notes: tuple[str, ...] = ()  # notices about unusable servers, and about settings without effect
    learned: Callable[[], tuple[str, str]] | None = None  # made by `watched_server`; `None` without `--learn`


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
    return replace(policy, parking=False)


def _endpoint(options: ChatOptions, config: GameConfiguration) -> LlmEndpoint:
    settings = llm_settings(config)
    if options.offline:
        return offline_endpoint(reply_in_chat, settings, model=options.model or MODEL)
    otherwise = ", name another endpoint with --base-url, or chat with --offline"
    require_key(settings.base_url, settings.api_key, otherwise)
    return LlmEndpoint(settings)


# Kinds of messages that a chat shows while a turn runs.
_OF_SERVERS = (m.ServerNoted, m.ToolDrifted, m.ToolsUnseen, m.McpDisabled)
_TOLD = (*_OF_SERVERS, m.ModelPassedOver, m.CompletionRetried, m.ReplyCut, m.CostUncounted, m.FinalForced)


def transcript(history: Iterable[m.ConversationItem | m.AssistantReply]) -> str:
    """Return the conversation as Markdown. The system text is left out."""
    parts: list[str] = []
    for item in history:
        match item:
            case m.UserText(text=text):
                parts.append(f"## User\n\n{text}")
            case m.AssistantReply(content=content, tool_calls=calls):
                lines = [content] if content else []
                lines += [f"- called `{call.name}` with `{call.arguments}`" for call in calls]
                if lines:
                    parts.append("## Assistant\n\n" + "\n".join(lines))
            case m.ToolMessage(content=content):
                parts.append(f"### Result\n\n{_fenced(content)}")
    return written_out("\n\n".join(parts)) + "\n"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


FIRST_FILE = "conversation.jsonl"


class ChatResult(Struct, frozen=True, kw_only=True):
    """The result of a chat, for `result.json`. All counts include a resumed chat's earlier runs."""

    episode_id: str
    reason: str  # `ended` (the user left), `failed` (the start, a turn or a command) or `interrupted`
    model: str
    turns: int  # also turns that were taken back
    requests: int
    tokens: int
    cost_usd: float | None
    duration_s: float  # duration of the last run


class Question:
    """A turn's question: whether to make a reply's tool calls, or what input to give to a server.

    It goes from the turn, which runs in a thread of its own, to the main thread, which alone reads the
    terminal: if two threads read, each would get some of the keys. The answer is a list of
    `ApprovalDecision`s, or a JSON object or a `Declined`.
    """

    def __init__(self, asked: tuple[ApprovalQuestion, ...] | ElicitationRequest) -> None:
        self.asked = asked
        self._answered: Future[Any] = Future()

    async def put(self, report: Callable[["Question"], object]) -> Any:
        """Pass the question to `report`; return the answer when it comes. Called in the turn's event loop."""
        report(self)
        return await asyncio.wrap_future(self._answered)

    def answer(self, answer: object) -> None:
        """Answer the question. Can be called in any thread."""
        with suppress(InvalidStateError):  # the turn was cancelled
            self._answered.set_result(answer)


class Talk:
    """A conversation, as a context manager. `on_event` is called in the thread that calls `say`."""

    def __init__(self, options: ChatOptions, wiring: ChatWiring, on_event: Callable[[Any], object]) -> None:
        self._options = options
        self._wiring = wiring
        self._began = time.monotonic()
        self._recorder = Recorder()
        self.path = options.resume or options.run_dir or new_run_path(RUNS)
        past = facts.read_chat(self.path) if options.resume else None
        self._id = past.started.episode_id if past else well_formed(self.path.name)
        self.changed: tuple[ConditionChanged, ...] = ()
        with ExitStack() as open_things:
            self._folder = open_things.enter_context(
                RunFolder(self.path, self._recorder, episode_id=self._id, resume=past is not None)
            )
            # Read the chat again: another process may have continued it before `RunFolder` locked the folder.
            self._past = facts.read_chat(self.path) if past else None
            self._told: set[str] = set()
            self._recorder.add(self._note)
            self.loop = open_things.enter_context(self._open_loop(on_event))
            self.runner = self.loop.runner
            self._calls: dict[int, list[str]] = {}
            self.said: list[facts.UserSaid] = []  # the turns in the conversation
            self.turn = 0  # number of the last turn in the trace
            self._begin(self._past)
            self._open = open_things.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def model(self) -> str:
        """The model's name."""
        return self._wiring.endpoint.settings.model

    @property
    def endpoint(self) -> str:
        """The endpoint's URL, without secrets."""
        return shown_endpoint(self._wiring.endpoint.settings.base_url)

    def tools(self) -> tuple[m.ToolDefinition, ...]:
        """Return the tools of all servers, which are started if necessary."""
        return self.runner.tools() if self.runner.servers else ()

    def say(self, text: str) -> str:
        """Run a turn, and return the answer. The messages of a failed turn stay in the conversation."""
        file = self._file()
        self.turn += 1
        said = facts.UserSaid(turn=self.turn, file=file.name, size=file.stat().st_size)
        self._record(said)
        self.said.append(said)
        return self.loop.run(text, turn=self.turn)

    def undo(self) -> facts.TakenBack | None:
        """Take back the last turn, and return the recorded fact; `None`: there is no turn."""
        if not self.said:
            return None
        last = self.said[-1]
        old = self.path / last.file
        names = (self.path / f"conversation-{number}.jsonl" for number in itertools.count(2))
        new = next(path for path in names if not path.exists())
        copying = os_errors_as(ConversationError, f"copy {old}", path=str(old))
        with copying, old.open("rb") as source, new.open("xb") as copy:
            new.chmod(0o600)
            copy.write(source.read(last.size))
        self._load(new)
        self.said.pop()
        calls = tuple(self._calls.get(last.turn, ()))
        self._record(taken_back := facts.TakenBack(turn=last.turn, file=new.name, calls=calls))
        return taken_back

    def change_model(self, model: str) -> None:
        """Use another model of the same endpoint from now on. The servers' sessions stay open."""
        before, file = self.model, self._file()
        self._wiring.endpoint.change_model(model)
        self._load(file)
        self._record(facts.ModelChanged(before=before, now=model))

    def save(self, path: Path) -> None:
        """Write the conversation to a new file: JSON Lines if its name ends in `.jsonl`, else Markdown."""
        path = as_path(path, "/save")
        if path.suffix == ".jsonl":
            copy = self.loop.conversation.branch()
            copy.save(path)
            copy.close()
            return
        writing = os_errors_as(ConversationError, f"write {path}", path=str(path))
        with writing, path.open("x", encoding="utf-8") as file:
            path.chmod(0o600)
            file.write(transcript(self.loop.conversation.history))

    def finish(self, reason: str) -> None:
        """Record the end of the chat, and write `result.json`."""
        spent = self.runner.spent
        failed = "The start, a turn or a command failed."
        detail = {"ended": "The user left.", "failed": failed}.get(reason, "Interrupted.")
        self._record(EpisodeEnded(reason=reason, detail=detail, turns=self.turn), turn=0)
        result = ChatResult(
            episode_id=self._id,
            reason=reason,
            model=self.model,
            turns=self.turn,
            requests=spent.requests,
            tokens=spent.tokens,
            cost_usd=spent.usage.cost_usd,
            duration_s=round(time.monotonic() - self._began, 3),
        )
        self._folder.write_result(result)

    def settle(self) -> None:
        """Wait until everything recorded so far is in the trace file, or until that takes too long."""
        self._folder.flush()

    def _open_loop(self, on_event: Callable[[Any], object]) -> AgentLoop:
        wiring, system, ask = self._wiring, self._options.instructions, self._ask
        runner: RunnerOptions = {**wiring.runner, "approve": ask, "elicit": ask, "recorder": self._recorder}
        return AgentLoop(wiring.endpoint, system=system, servers=wiring.servers, on_event=on_event, **runner)

    async def _ask(self, asked: tuple[ApprovalQuestion, ...] | ElicitationRequest) -> Any:
        return await Question(asked).put(self.loop.report)

    def _begin(self, past: facts.ChatPast | None) -> None:
        servers = ", ".join(self._wiring.servers) or "none"
        conditions = {"model": self.model, "endpoint": self.endpoint, "servers": servers}
        if past is None:
            self.loop.conversation.save(self.path / FIRST_FILE)
            started = facts.EpisodeStarted(
                episode_id=self._id,
                model=self.model,
                servers=tuple(self._wiring.servers),
                scripted=self._options.offline,
                version=grue.__version__,
                settings=recorded_options(self._options, RECORDED),
                conditions=conditions,
                instructions=self._options.instructions,
            )
            self._record(started, turn=0)
            return
        self._load(self.path / (past.file or FIRST_FILE))
        self.turn, self.said, self._calls = past.turn, past.said, past.calls
        self.runner.spent = past.spent
        # `past.conditions` has the model with which the earlier run began. `/model` may have changed it.
        known = {**past.conditions, **({"model": past.model} if past.model else {})}
        self.changed = changed_conditions(known, conditions)
        resumed = EpisodeResumed(
            episode_id=self._id,
            turns=len(past.said),
            version=grue.__version__,
            conditions=conditions,
            changes=self.changed,
        )
        self._record(resumed, turn=0)

    def _load(self, file: Path) -> None:
        self.loop.conversation.close()
        self.loop.conversation = Conversation.load(file, self.runner)

    def _file(self) -> Path:
        path = self.loop.conversation.path
        if path is None or not path.is_file():
            raise ConversationError(
                f"The chat cannot go on: its file in {self.path} is gone or damaged. /save writes what was"
                " said to another file.",
                path=str(self.path),
            )
        return path

    def _record(self, fact: grue.tracing.facts.Fact, turn: int | None = None) -> None:
        self._recorder.record(fact, sender="host", turn=self.turn if turn is None else turn)

    def _note(self, envelope: Envelope[Any], _line: bytes) -> None:
        problem = problem_in(envelope.body) if isinstance(envelope.body, _TOLD) else ""
        of_this_turn = isinstance(envelope.body, m.FinalForced)
        if problem and envelope.turn and (of_this_turn or problem not in self._told):
            self._told.add(problem)
            self.loop.report(Noticed(text=problem))
        if envelope.turn and isinstance(call := envelope.body, m.ToolCalled):
            self._calls.setdefault(envelope.turn, []).append(f"{call.server}.{call.tool}")
