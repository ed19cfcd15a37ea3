"""`Runner`: the public entry for running turns. It holds the settings and passes each turn to an event loop.

Between turns a runner keeps no session and no event loop, unless `keep` says otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from grue import messages as m
from grue import policies
from grue.actors.llm import LlmFactory
from grue.engine import tool_servers
from grue.engine import turn as turns
from grue.engine.answers import AnswerSpec, T
from grue.engine.approval import Approval, Approve, Parking
from grue.engine.conversations.conversation import Conversation
from grue.engine.conversations.kept_conversation import KeptConversation
from grue.engine.current_episode import CurrentEpisode, Episode, Work, starts_of, with_default
from grue.engine.outside_turns.tool_access import AsyncToolAccess
from grue.engine.turn import BatchItem, TurnHandle, TurnOutcome, TurnRequest, TurnSettings, outcome_of
from grue.engine.turn_actors import TurnResources
from grue.engine.wiring import OwnTrace, recorder_that_tells, wire
from grue.errors import MCPConfigError
from grue.field_checks import own_keywords, shown
from grue.protocol.tools.lock import ToolLock
from grue.protocol.turn.connection import Disabled, Settled, Untried
from grue.protocol.turn.prices import Spent
from grue.runtime.files import as_path
from grue.runtime.loading import importing
from grue.runtime.loops.closing import Closing
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.host_tools import ToolServer
from grue.tool_sessions.server_requests import Elicit
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

if TYPE_CHECKING:
    from grue.engine.outside_turns.server_sessions import SessionWork

__all__ = ["LlmFactory", "Runner", "TurnOutcome", "TurnRequest", "outcome_of"]
V = TypeVar("V")


class Runner(AsyncToolAccess, Closing):
    """Run the turns of one episode.

    Use it as a context manager, or call `close`. Thread-safe: with `keep="nothing"` the turns of several
    threads run in parallel, each in its own event loop. Otherwise, and beside `start_turn`, one at a time.

    Args:
        llm: The model: an endpoint, its settings, or a factory for an actor of your own. With a list of
            settings, `[a, b]`, the model of `b` is asked if the model of `a` gives no whole reply, or takes
            no tools (`LlmSettings.then`). A factory's `support_check` says when to check for tool support.
        servers: Tool servers by name; a dot may only follow `mcp`, as in `mcp.files`. Empty: no tools.
        limits: How much a turn may use.
        policy: What to do after a failure.
        recorder: Records all messages; `None`: a new one, which also logs problems to the logger `grue`.
        trace: Where to write the trace: a `.jsonl` file, or a folder in which each runner creates a run
            folder of its own. `None`: the runner itself writes no trace.
        process_limits: How server processes are ended, and how large their messages may be.
        elicit: A coroutine function that asks the user a server's question; `None`: questions are declined.
        tool_lock: The tool definitions that the user has approved. `policy.on_tool_drift` says how to treat
            other definitions. `None`: all tools that the servers list are accepted.
        tool_policy: Which tool calls are made, asked about or denied; `None`: all are made.
        approve: A function, which runs in a thread, or a coroutine function. It gets all of the policy's
            questions about the calls of one reply. The wait counts against the turn's time limit. `None`:
            nobody can be asked, so these calls are denied unless the policy parks turns.
        context: How turns stay within the model's context window; `None`: the history is never shortened.
        tool_search: When the model gets `find_tools` and `call_tool` instead of many tools; `None`: never.
        budget: What all turns together may spend; `None`: no limit. A single turn has `limits.budget`.
        keep: What outlives a turn. `nothing`: sessions and connections to the model end with the turn.
            `loop`: one event loop in a background thread, from the first turn to `close`; connections to the
            model stay open. `sessions`: also the sessions, one per server (in `map`: for each worker).
        start: When a server starts, unless its own options say when. `before`: before the first request.
            `beside`: at the same time, if the server's tools are known. `beside_if_locked`: at the same time,
            if the tool lock lists the tools. `when_called`: when a tool is called, if the tools are known.
            With `keep="loop"`, two values start servers in advance for the next turn: `after_turn` when a
            turn has ended, `beside_turn` (in `map` also without `keep`) while a turn waits for its model.
            `("after_turn", "beside")`: the second value is for servers not started in advance.

    Raises:
        MCPConfigError: An argument is invalid, or `keep` and `start` conflict.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old.
        TraceError: The file `trace` is not empty, or the trace cannot be written.
    """

    @own_keywords
    def __init__(
        self,
        *,
        llm: LlmSettings | Sequence[LlmSettings] | LlmEndpoint | LlmFactory,
        servers: Mapping[str, ToolServer] | None = None,
        limits: policies.TurnLimits | None = None,
        policy: policies.FailurePolicy | None = None,
        recorder: Recorder | None = None,
        trace: str | PathLike[str] | None = None,
        process_limits: ProcessLimits | None = None,
        elicit: Elicit | None = None,
        tool_lock: ToolLock | None = None,
        tool_policy: policies.ToolPolicy | None = None,
        approve: Approve | None = None,
        context: policies.ContextPolicy | None = None,
        tool_search: policies.ToolSearch | None = None,
        budget: policies.Budget | None = None,
        keep: policies.Keep = "nothing",
        start: policies.Start = policies.DEFAULT_START,
    ) -> None:
        tool_servers.refuse_other_kinds(recorder=recorder, trace=trace, approve=approve)
        self.recorder = recorder or recorder_that_tells()
        usable = tool_servers.settings_or_default
        self.limits = usable("limits", limits, policies.TurnLimits())
        self.policy = usable("policy", policy, policies.FailurePolicy())
        self.context = None if context is None else usable("context", context, policies.ContextPolicy())
        self.tool_search = (
            None if tool_search is None else usable("tool_search", tool_search, policies.ToolSearch())
        )
        self.budget = usable("budget", budget, policies.Budget())
        sessions, when = starts_of(keep, start)
        wiring = wire(llm, servers or {}, self.recorder, process_limits, elicit, tool_lock)
        ready = tool_servers.with_settings(wiring.servers, self.limits, self.policy, when)
        self._presumed = presumed = tool_servers.PresumedListings(ready, tool_lock)
        self.tool_policy = tool_servers.usable_policy(tool_policy, ready)
        approval = Approval(approve, Parking(self.recorder) if self.tool_policy.parking else None)
        self._wiring = replace(wiring, servers=ready, approval=approval, presumed=presumed)
        self._memory = turns.EpisodeMemory()
        self._traces: list[TraceWriter] = []
        self._spending = turns.Spending()
        self._episode = CurrentEpisode(wiring.endpoint, self.recorder, sessions, lasting=keep != "nothing")
        self._batches: weakref.WeakSet[Episode] = weakref.WeakSet()
        self._trace = None if trace is None else OwnTrace(trace, self.recorder)

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str] = "pyproject.toml",
        *,
        llm: LlmSettings | Sequence[LlmSettings] | LlmEndpoint | LlmFactory | None = None,
        recorder: Recorder | None = None,
        trace: str | PathLike[str] | None = None,
        approve: Approve | None = None,
        keep: policies.Keep = "nothing",
        start: policies.Start | None = None,
    ) -> Self:
        """Make a runner from `[tool.grue.*]` (in older projects `[tool.zorkgpt.*]`) of a TOML file.

        The servers come from a second file: `mcp_config.json` beside the TOML file, or what `config_file` in
        the table `mcp` names. It is read if it exists. With `enabled = false` in that table, no servers are
        read; with `enabled = true`, the second file must exist. The endpoint's API key is in the environment
        variable `GRUE_API_KEY`, or that of its provider, such as `OPENROUTER_API_KEY`. `llm` and `start`
        replace the values of the TOML file, and with `llm` no API key is needed. But if `start` is
        `"after_turn"` or `"beside_turn"`, servers not started in advance start as the TOML file says.

        Raises:
            MCPConfigError: A file is missing, or a value in it is invalid; also as for `Runner`.
        """
        from grue.config.wiring import from_configuration, runner_options

        configured = from_configuration(path)
        options = runner_options(configured.config, configured.tool_lock)
        options["start"] = with_default(start, options["start"])
        return cls(
            llm=configured.llm if llm is None else llm,
            servers=configured.servers,
            recorder=recorder,
            trace=trace,
            approve=approve,
            keep=keep,
            **options,
        )

    def close(self) -> None:
        """End the episode's sessions and event loop within seconds. A second call does nothing.

        Running turns and batches are cancelled. A later turn starts a new loop. But if the runner has a
        `trace`, or has resumed a turn, a later turn raises `TraceError`, because the trace is closed.
        """
        for batch in list(self._batches):
            batch.loop.close()
        self._episode.close()
        while self._traces:
            self._traces.pop().close()
        if self._trace is not None:
            self._trace.close()

    @property
    def trace(self) -> Path | None:
        """The absolute path of the trace file or run folder; `None`: the runner was made without `trace=`."""
        return None if self._trace is None else self._trace.path

    @property
    def servers(self) -> Sequence[str]:
        """Names of the tool servers, in the order of `servers=`."""
        return tuple(self._wiring.servers)

    @property
    def turn(self) -> int:
        """Number of the turn that was started last, not counting `map` and `fork`; 0: none was started."""
        return self._memory.turn

    @property
    def spent(self) -> Spent:
        """The requests, tokens and cost of the turns that have ended, also by a failure or a cancellation.

        To continue an earlier episode, set this to what that episode had spent.
        """
        return self._spending.spent

    @spent.setter
    def spent(self, spent: Spent) -> None:
        self._spending.spent = spent

    @property
    def budget_spent(self) -> str:
        """The limit of the episode's budget that was reached, in words; empty: further turns can be run."""
        return self.spent.reached(self.budget)

    @property
    def disabled(self) -> Mapping[str, str]:
        """The names of the disabled servers, each with the reason.

        `FailurePolicy.retry_disabled_s` says when they are tried again.
        """
        states = self._memory.connections.items()
        return {name: state.reason for name, state in states if isinstance(state, Disabled)}

    def connection(self, server: str) -> Settled:
        """Return what the episode knows about a server, for example `Disabled`.

        The value is plain data, which you can store and later give to `remember`.
        """
        return self._memory.connections.get(m.ServerName(server), Untried())

    def remember(
        self, server: str, connection: Settled | None, listing: Sequence[m.ToolDefinition] = ()
    ) -> None:
        """Restore what an earlier process knew about a server of this episode.

        Args:
            server: The server's name.
            connection: What `Runner.connection` returned in that process; `None`: leave the state unchanged.
            listing: The tools that the server listed last; empty: they are not known.

        Raises:
            MCPConfigError: `connection` or an item of `listing` has another type.
        """
        if not isinstance(connection, Settled | None):
            raise MCPConfigError(f"remember() wants what connection() returned, not {shown(connection)}.")
        listing = tuple(listing)
        if not all(isinstance(each, m.ToolDefinition) for each in listing):
            raise MCPConfigError(f"remember() wants a listing of ToolDefinitions, not {shown(listing)}.")
        self._memory.learn({} if connection is None else {m.ServerName(server): connection})
        self._presumed.recall({m.ServerName(server): listing})

    @own_keywords
    def run_turn(self, request: TurnRequest[T] | str) -> TurnOutcome[T]:
        """Run a turn and return its outcome, blocking. A text is short for `TurnRequest(user=text)`.

        With `keep="nothing"` this is one `anyio.run`, unless turns from `start_turn` run. When it returns or
        raises, no process of this turn is alive. With any other `keep` the turn runs in the episode's loop.
        With `keep="loop"` and a `start` in advance (`after_turn`, `beside_turn`), the turn's server processes
        end in the background, at the latest before the next turn's first tool call, or before that turn ends.

        A call inside a running event loop blocks that loop; grue warns, except in a notebook. If one of the
        program's signal handlers raises an exception during the turn, the turn ends.

        Raises:
            MCPServerStartupError: The episode's first connect to a server failed, and `policy` says to raise.
            LLMError: The model gave no completion, after all retries.
            ApprovalPending: The policy asks about a tool call, and the turn was parked.
            BudgetSpent: The episode's budget is used up. Nothing was started.
            MCPError: The model cannot call tools. Or the caller is a turn of this episode, a forked process,
                or a signal handler that interrupted grue or an import. Or no descriptors or threads are left.
            TurnTimedOut: The turn's time limit passed.
            AnswerError: The model gave no acceptable answer, and the request has no fallback.
            ActorCrashed: An unexpected exception was raised; it is the `__cause__` of this error.
            SystemExit: A callback of the host other than `elicit` raised it. Other exceptions of a callback
                that are not of the class `Exception` are raised too.
            TurnCancelled: Another thread closed the runner.
            KeyboardInterrupt: Ctrl-C was pressed. Raised within seconds, after the clean-up.

        Source: R6.1, R10.1, P39
        """
        return self._episode.run(self._turn(request).run)

    async def run_turn_async(self, request: TurnRequest[T] | str) -> TurnOutcome[T]:
        """Run a turn as `run_turn` does, in the caller's event loop. Cancellation ends the turn.

        With `keep="loop"` or `"sessions"` the turn runs in the episode's loop, and the caller awaits it.
        """
        return await self._episode.run_async(self._turn(request).run)

    @own_keywords
    def start_turn(self, request: TurnRequest[T] | str) -> TurnHandle[TurnOutcome[T]]:
        """Start a turn and return at once, for programs whose own loop must not block, such as a game.

        These turns run one after the other, and a later `run_turn` waits for them. With `keep="nothing"` they
        run in a background thread, which ends after the last of them. Call `warm_up` first: the imports of
        the first turn block all threads.

        Raises:
            MCPError: The runner is being closed, or belongs to the parent process.
        """
        turn = self._turn(request)
        return TurnHandle(self._episode.submit(turn.run), turn.progress)

    def resume(
        self,
        trace: str | PathLike[str],
        decisions: Iterable[policies.ApprovalDecision] = (),
        *,
        answer: AnswerSpec[T] | None = None,
        turn: int | None = None,
        on_delta: Callable[[m.TextDelta], None] | None = None,
        conversation: KeptConversation | None = None,
    ) -> TurnOutcome[T]:
        """Go on with a turn that was parked, in this process or another one, and return its outcome.

        The servers start as in any turn. A question whose tool has another definition by now is asked again.
        Iterations, tokens, cost and the rest of the time limit are carried over; the time in which the turn
        was parked does not count. The limits are those that the turn was started with; the budget and the
        tool policy are the runner's. The trace is continued, and locked until the runner is closed.

        A turn whose process was killed can be resumed too, if its policy parks turns. A call that was sent
        and not answered is not sent again. In place of a result, the model reads that the call may have taken
        effect. But if the call has become an MCP task, the server is asked for the task's result.

        Args:
            trace: The trace file, or its run folder.
            decisions: The answers to the questions of the parked turn (see `parked_turns`). A question
                without an answer is asked again. If the questions have expired, their calls are denied.
            answer: As in the turn's request. Pass it again, because a trace cannot hold it.
            turn: Number of the turn; `None`: the only turn that can be resumed.
            on_delta: As in the turn's request.
            conversation: Set by `Conversation.resume`. `None`: if the turn belongs to a conversation, that
                conversation is taken from this runner, from its file, or from the trace.

        Raises:
            NothingToResume: No turn can be resumed; several can, and `turn` is `None`; or `turn` runs or has
                ended.
            ConversationError: The turn's conversation is missing, in use or damaged, or has gone on.
            ChangeRefused: Changed arguments do not fit the tool's input schema. Nothing was started.
            BudgetSpent: The runner's budget is spent. The turn can still be resumed, with a larger budget.
            TraceError: The trace cannot be read or written, another process writes it, or a secret was
                removed from the turn. Or this runner writes another trace, or has already run a turn.
            MCPError: As `run_turn`; or the runner lacks a server of the turn, or `answer` has another schema.
        """
        with self._resumed(trace, decisions, answer, turn, on_delta, conversation) as resumed:
            return self._episode.run(resumed.run)

    async def resume_async(
        self,
        trace: str | PathLike[str],
        decisions: Iterable[policies.ApprovalDecision] = (),
        *,
        answer: AnswerSpec[T] | None = None,
        turn: int | None = None,
        on_delta: Callable[[m.TextDelta], None] | None = None,
        conversation: KeptConversation | None = None,
    ) -> TurnOutcome[T]:
        """Do the same as `resume`, without blocking the caller's event loop. Cancellation ends the turn."""
        with self._resumed(trace, decisions, answer, turn, on_delta, conversation) as resumed:
            return await self._episode.run_async(resumed.run)

    def fork(
        self,
        trace: str | PathLike[str],
        *,
        turn: int | None = None,
        at: int | None = None,
        system: str | None = None,
        changes: Mapping[str, object] | None = None,
        tool_results: Mapping[str, object] | None = None,
        tools: Mapping[str, Sequence[m.ToolDefinition]] | None = None,
        misses: policies.Misses = "fail",
        answer: AnswerSpec[T] | type[T] | None = None,
        on_delta: Callable[[m.TextDelta], None] | None = None,
        **settings: object,
    ) -> TurnOutcome[T]:
        """Run a recorded turn again from a place in it, with this runner's model, and return the outcome.

        The part before the fork is taken from the trace. From there on the model answers. Tool calls with the
        same tool and arguments get the recorded results; questions of the policy get the recorded answers.
        Limits and policies are as recorded, and what the fork itself spends counts against the runner's
        budget. The trace is only read; this runner's own trace repeats the turn up to the fork and names the
        trace that it was forked from. A runner's forks run one at a time, even if several threads call this.

        Args:
            trace: The trace file, or its run folder.
            turn: Number of the turn; `None`: the trace's only turn.
            at: Number of a message of the turn. The fork is at the last possible place before this message:
                before a request to the model, or between a reply and its tool calls or the check of its
                answer. `None`: the fork is at the turn's beginning, or before the first result that
                `tool_results` replaces. If several turns have the number `turn`, `at` chooses one of them;
                `None`: the last.
            system: Another system text.
            changes: Other values of fields of `TurnLimits` and `FailurePolicy`, such as `budget.requests`.
            tool_results: Other results of recorded calls, by id: a JSON value or a `ToolCallResult`.
            tools: Other tools that servers list, by the server's name.
            misses: What happens to a call without a recorded result: `fail`, `call` the tool, or `ask` the
                runner's `approve` whether to call it.
            answer: As in the turn's request; `None`: the answer is text, or JSON if a schema was recorded.
            on_delta: As in the turn's request.
            settings: Further `changes`, as keywords: `max_result_chars=50_000`.

        Raises:
            ForkMissed: The trace has no result for a call of the fork, or no answer to a question of it.
            BudgetSpent: The runner's budget is spent.
            TraceError: The trace cannot be read, or a secret was removed from the turn before the fork.
            MCPError: As `run_turn`; or the trace has no such turn, message or call.
        """
        from grue.engine.fork import ForkedRun, ForkRequest  # few programs need it

        asked = ForkRequest(
            trace=trace,
            turn=turn,
            at=at,
            system=system,
            changes={**changes, **settings} if isinstance(changes, Mapping) else changes or settings,
            tool_results=tool_results or {},
            tools=tools or {},
            misses=misses,
            answer=answer,
            on_delta=on_delta,
        )
        with turns.one_fork_at_a_time(self._wiring):
            forked: ForkedRun[T] = ForkedRun(asked, self._settings())
            return self._episode.run(forked.run)

    def _resumed(
        self, trace: str | PathLike[str], decisions: Iterable[policies.ApprovalDecision], *asked: Any
    ) -> AbstractContextManager[turns.HostTurn[Any]]:
        from grue.engine.conversations.resume import ResumeRequest, resumed_run  # few programs need it

        given = tuple(decisions) if isinstance(decisions, Iterable) else (decisions,)
        request = ResumeRequest(trace, given, *asked)
        return resumed_run(request, self._settings(), self._memory, self._traces)

    def conversation(
        self, system: str = "", *, path: str | PathLike[str] | None = None, name: str = ""
    ) -> Conversation:
        """Start a conversation: turns that follow each other and know what was said before.

        `Conversation.load` and `Conversation.from_trace` continue an earlier conversation.

        Args:
            system: The conversation's instructions.
            path: A new file to which each turn is appended, mode 600; `None`: keep it in memory only.
            name: The conversation's id in traces; default: a random id.

        Raises:
            ConversationError: The file is not empty, or cannot be written.
        """
        return Conversation.start(self, system, path=path, name=name)

    @own_keywords
    def map(
        self,
        requests: Iterable[TurnRequest[T] | str],
        *,
        concurrency: int = 8,
        resume_from: str | PathLike[str] | None = None,
        progress: bool = False,
        total: int | None = None,
        batch: str | PathLike[str] | policies.Batching | None = None,
    ) -> Iterator[BatchItem[TurnOutcome[T]]]:
        """Run many turns in parallel; yield a `BatchItem` for each, in order: `index`, `outcome` or `error`.

        Each turn is a separate episode. Its number is its position, from 1, or a higher number if the runner
        runs other turns beside the batch. It has sessions of its own, but with `keep="sessions"` each of the
        `concurrency` workers keeps one session per server for all its turns. With
        `start="after_turn"` or `"beside_turn"` sessions for at most `concurrency` further turns are
        prewarmed, beside the running turns. The turns share the model's endpoint, the recorder and the
        runner's budget; turns that are running when the budget is used up may exceed it. A failed turn yields
        an item with the error. At most twice `concurrency` requests are read ahead, but with `batch` all, and
        in a work of `grue fleet run --batch` all, or 1,000 if `requests` has no length. If iterating over
        `requests` raises, the batch ends. Closing the iterator cancels the running turns.

        Args:
            requests: Any number, each a `TurnRequest` or a text. Read lazily, in the iterating thread.
            concurrency: The most turns that run in parallel; at least 1.
            resume_from: The trace of an earlier run of the same batch. A turn that was completed there is not
                run again, unless its request (texts, images, servers, tools, answer schema) or conversation
                has changed, its answer is not accepted any more, or a secret was removed from it.
            progress: Show a progress bar on standard error, at a terminal or in a notebook.
            total: Number of requests for the bar, if `requests` has no length, for example a generator.
            batch: A folder, or `Batching`: the model is asked through the provider's batches, which answer
                later, at a lower price. While a turn waits for a reply, its state is in a file. If the
                process ends early, the same call goes on from the folder, which has the traces, and repeats
                no request.

        Raises:
            LLMError: With `batch`: the provider accepts no batch, or could not be reached for a long time.
            KeyboardInterrupt: Ctrl-C was pressed while waiting for the next item.
            TraceError: `resume_from` cannot be read.
            MCPError: With `batch`: the folder cannot be used, or another process uses it.
            ValueError: `concurrency` is no whole number of at least 1, `total` is no whole number of at least
                0, or both `batch` and `resume_from` are given.
            MCPConfigError: `requests` is a single request. Or with `batch`, `llm` is not one model.
        """
        with importing():  # here, so that a program's first turn does not wait for the import
            from grue.engine.batch import Batch, CompletedTurns, run_batch, with_bar

        if isinstance(requests, str | TurnRequest) or {"__iter__", "__getitem__"}.isdisjoint(dir(requests)):
            raise MCPConfigError(f"map() wants a list of requests, not one {type(requests).__name__}.")
        if not isinstance(concurrency, int) or concurrency < 1:
            raise ValueError(f"concurrency is a whole number, at least 1, not {shown(concurrency)}")
        if not isinstance(total, int | None) or (total or 0) < 0:
            raise ValueError(f"total is a whole number, at least 0, not {shown(total)}")
        if batch is not None and resume_from is not None:
            raise ValueError("with batch=, the folder says where to go on: leave resume_from= out")

        def begin() -> Episode:
            sessions = self._episode.batch_sessions
            episode = Episode(self._wiring.endpoint, self.recorder, sessions, at_once=concurrency)
            self._batches.add(episode)
            return episode

        earlier = None if resume_from is None else CompletedTurns(resume_from)
        plan = Batch(begin=begin, settings=self._settings(), concurrency=concurrency, resume_from=earlier)
        items: Iterator[BatchItem[TurnOutcome[T]]] = run_batch(requests, plan)  # begins at the first `next`
        if batch is not None:
            from grue.engine.waiting_turns import run_waiting  # few programs need it

            if not isinstance(batch, policies.Batching):
                batch = policies.Batching(folder=str(as_path(batch, "map(batch=)")))
            items = run_waiting(requests, plan, batch)
        return with_bar(items, requests, total) if progress else items

    def warm_up(self) -> None:
        """Import the modules that the first turn needs, in advance.

        In a new process the imports block for a second or more. No server is started, and nothing is sent.

        Raises:
            MissingDependencyError: `mcp` is absent or too old.
            MCPError: The caller is a turn in the runner's background loop. Or this process was forked while
                that loop ran.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        tool_servers.load_sessions(self._wiring.servers.values())
        self._episode.run_in_loop(self._prepare_endpoint, beside=True)

    def _outside_turns(self, work: SessionWork[V]) -> V:
        return self._episode.run_outside_turns(self._in_sessions(work))

    async def _outside_turns_async(self, work: SessionWork[V]) -> V:
        return await self._episode.run_async(self._in_sessions(work), beside=True)

    def _in_sessions(self, work: SessionWork[V]) -> Work[V]:
        with importing():  # few runners need this import
            from grue.engine.outside_turns.server_sessions import outside_turns

        return outside_turns(self._settings(), work)

    async def _prepare_endpoint(self, _: TurnResources) -> None:
        if self._wiring.endpoint is not None:
            await self._wiring.endpoint.prepare()

    def _turn(self, request: TurnRequest[T] | str) -> turns.HostTurn[T]:
        return turns.HostTurn(request, self._settings(), self._memory)

    def _settings(self) -> TurnSettings:
        return TurnSettings(
            wiring=self._wiring,
            limits=self.limits,
            policy=self.policy,
            tool_policy=self.tool_policy,
            context=self.context,
            tool_search=self.tool_search,
            budget=self.budget,
            spending=self._spending,
        )
