"""`Conversation`: turns of one runner that follow each other; each begins with the history so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Self, TypedDict, Unpack

from grue import messages as m
from grue.engine.answers import AnswerSpec, T
from grue.engine.conversations.kept_conversation import KeptConversation
from grue.engine.turn import Image, TurnOutcome, TurnRequest
from grue.errors import MCPConfigError, NothingToResume
from grue.policies import ApprovalDecision, ApprovalQuestion, ContextPolicy, ToolSearch
from grue.protocol.context.history import items_of
from grue.runtime.files import as_path
from grue.runtime.loops.closing import Closing
from grue.runtime.safe_text import well_formed


class RunsTurns(Protocol):
    """The methods of a `Runner` that a conversation calls."""

    def run_turn(self, request: TurnRequest[T]) -> TurnOutcome[T]:
        """Run a turn, blocking."""

    async def run_turn_async(self, request: TurnRequest[T]) -> TurnOutcome[T]:
        """Run a turn, without blocking the caller's event loop."""

    def resume(self, *_: Any, **asked: Any) -> TurnOutcome[Any]:
        """Go on with a parked turn, blocking."""

    async def resume_async(self, *_: Any, **asked: Any) -> TurnOutcome[Any]:
        """Go on with a parked turn, without blocking the caller's event loop."""


class AskOptions(TypedDict, total=False):
    """Further arguments of `ask`, with the meaning that they have in a `TurnRequest`."""

    images: Sequence[Image]
    tools: bool | tuple[str, ...]
    final_request: str
    repair_request: str
    turn_timeout_s: float
    on_delta: Callable[[m.TextDelta], None]
    context: ContextPolicy
    tool_search: ToolSearch
    user_stub: str


class ResumeOptions(TypedDict, total=False):
    """Further arguments of `resume`, with the meaning that they have for `Runner.resume`."""

    answer: AnswerSpec[Any]
    on_delta: Callable[[m.TextDelta], None]


class Conversation(Closing):
    """Turns that follow each other. Made by `Runner.conversation`, `load`, `loads`, `from_trace`, `branch`.

    Each turn has the runner's model, and the runner's tools and limits unless `ask` gets others
    (`AskOptions`). If a turn fails or is cancelled, the conversation keeps what was said in the turn: a tool
    call that was under way is answered "interrupted; it may have taken effect". A turn that ends before
    its first request to the model, for example because a server does not start, adds nothing.

    Only one turn runs at a time: `ask` raises `ConversationBusy` while another turn runs. Close a saved
    conversation with `close` or use it as a context manager, so that another process can load it.
    """

    def __init__(self, runner: RunsTurns, kept: KeptConversation) -> None:
        if not hasattr(runner, "run_turn"):
            kept.close()
            raise MCPConfigError(f"A conversation wants the runner of its turns, not {runner!r:.60}.")
        self._runner = runner
        self._kept = kept

    @classmethod
    def start(
        cls, runner: RunsTurns, system: str, *, path: str | PathLike[str] | None = None, name: str = ""
    ) -> Self:
        """Start a conversation, as `Runner.conversation` does."""
        if not isinstance(system, str):
            raise MCPConfigError(f"conversation() wants its instructions as a text, not {system!r:.60}.")
        if not isinstance(name, str | None):
            raise MCPConfigError(
                f"conversation() wants a text as its name: name='{name!s:.60}', not name={name!r:.60}."
            )
        kept = KeptConversation(well_formed(system), name=well_formed(name or ""))
        if path is not None:
            kept.save(as_path(path, "conversation(path=)"))
        return cls(runner, kept)

    @classmethod
    def load(cls, path: str | PathLike[str], runner: RunsTurns) -> Self:
        """Continue a saved conversation; new entries are appended to its file.

        The requests begin with the same bytes as before, if `runner` offers the same tools to the same model
        at the same endpoint. Another model gets the same texts, tool calls and results, without the thoughts
        that it cannot read (`ThoughtsDropped` in the trace).

        Raises:
            ConversationError: The file is missing, in use, damaged (the error names the line), of a newer
                version of grue, or no conversation.
        """
        return cls(runner, KeptConversation.load(as_path(path, "load()")))

    @classmethod
    def loads(cls, text: str, runner: RunsTurns) -> Self:
        """Continue the conversation in a text that `dumps` has returned, as `load` does, but without a file.

        Raises:
            ConversationError: The text is no conversation, is damaged, or is of a newer version of grue.
        """
        if not isinstance(text, str):
            raise MCPConfigError(f"loads() wants the text that dumps() has returned, not {text!r:.60}.")
        return cls(runner, KeptConversation.loads(text))

    @classmethod
    def from_trace(cls, path: str | PathLike[str], runner: RunsTurns, *, name: str | None = None) -> Self:
        """Continue a conversation that a trace has recorded. Until you save it, it is in memory only.

        Args:
            path: The trace, or the run folder that holds it.
            runner: Runs the conversation's further turns.
            name: The conversation's id; `None`: that of the last turn. `turn-3` continues turn 3, if that
                turn belonged to no conversation.

        Raises:
            TraceError: The trace cannot be read.
            ConversationError: The trace lacks the conversation, a part of it, or a secret in it (redacted).
        """
        if not isinstance(name, str | None):
            raise MCPConfigError(f"from_trace() wants a conversation's id, name='turn-3', not {name!r:.60}.")
        from grue.engine.conversations import recorded_conversation  # few programs need it

        kept, listings = recorded_conversation.resume_conversation(path, name)
        remember = getattr(runner, "remember", None)  # the host's own class of runner may lack this method
        if remember is not None:
            for server, listing in listings.items():
                remember(server, None, listing)
        return cls(runner, kept)

    @property
    def id(self) -> str:
        """The conversation's id. In a trace, the `RunTurn` of each of its turns has it in `history`."""
        return self._kept.id

    @property
    def system(self) -> str:
        """The conversation's instructions, its system text."""
        return self._kept.system

    @property
    def path(self) -> Path | None:
        """The file that the conversation is appended to; `None`: the conversation is in memory only."""
        return self._kept.path

    @property
    def history(self) -> tuple[m.ConversationItem | m.AssistantReply, ...]:
        """The items so far, oldest first. A system text is the first. Empty before the first request."""
        return items_of(self._kept.said)

    @property
    def parked_turn(self) -> int | None:
        """The number of the parked turn; `None`: no turn is parked."""
        mark = self._kept.open_turn
        return mark.turn if mark is not None and mark.state == "parked" else None

    @property
    def questions(self) -> tuple[ApprovalQuestion, ...]:
        """The questions that the parked turn waits for; empty if no turn is parked."""
        mark = self._kept.open_turn
        return () if mark is None else mark.questions

    def ask(
        self, text: str, *, answer: AnswerSpec[T] | type[T] | None = None, **how: Unpack[AskOptions]
    ) -> TurnOutcome[T]:
        """Run the next turn and return its outcome, blocking.

        Args:
            text: What the user says.
            answer: The type of the answer, or an `AnswerSpec`; `None`: any text.
            **how: `images`, `tools`, `on_delta` and others (`AskOptions`), as in a `TurnRequest`.

        Raises:
            ApprovalPending: The policy asks about a tool call, and the turn was parked. Go on with `resume`.
            ConversationParked: An earlier turn is parked. Nothing was started.
            ConversationBusy: Another turn continues the conversation. Nothing was started.
            ConversationError: The runner's `llm` is a factory that is no `grue.hosting.LendingFactory`. Or
                the file cannot be written: `save` to another one.
            MCPError: As `Runner.run_turn`. What was said in the turn is kept.
            KeyboardInterrupt: Ctrl-C was pressed. What was said in the turn is kept.
        """
        with self._kept.asked():
            return self._runner.run_turn(self.request(text, answer=answer, **how))

    async def ask_async(
        self, text: str, *, answer: AnswerSpec[T] | type[T] | None = None, **how: Unpack[AskOptions]
    ) -> TurnOutcome[T]:
        """Do the same as `ask`, without blocking the caller's event loop. Cancellation ends the turn."""
        with self._kept.asked():
            return await self._runner.run_turn_async(self.request(text, answer=answer, **how))

    def resume(
        self,
        decisions: Iterable[ApprovalDecision] = (),
        *,
        trace: str | PathLike[str] | None = None,
        **how: Unpack[ResumeOptions],
    ) -> TurnOutcome[Any]:
        """Go on with the turn that was parked, as `Runner.resume` does, and return its outcome.

        A turn whose process was killed can be resumed too, if its policy parks turns, and nothing was said in
        the conversation since.

        Args:
            decisions: The answers to `questions`. A question without an answer is asked again.
            trace: The trace of the turn, if the file was moved since the turn began.
            **how: `answer` and `on_delta`, as for `ask`. Pass them again, because a trace cannot hold them.

        Raises:
            NothingToResume: No turn of the conversation is parked, or the turn was resumed already.
            ConversationBusy: A turn continues the conversation.
            MCPError: As `Runner.resume`.
        """
        with self._kept.asked():
            return self._runner.resume(**self._resumption(decisions, trace, how))

    async def resume_async(
        self,
        decisions: Iterable[ApprovalDecision] = (),
        *,
        trace: str | PathLike[str] | None = None,
        **how: Unpack[ResumeOptions],
    ) -> TurnOutcome[Any]:
        """Do the same as `resume`, without blocking the caller's event loop. Cancellation ends the turn."""
        with self._kept.asked():
            return await self._runner.resume_async(**self._resumption(decisions, trace, how))

    def abandon(self) -> None:
        """Give up the parked turn: calls that were not made are answered "not called". It cannot be resumed.

        A turn whose process was killed is given up too: its calls are answered "interrupted". If there is no
        such turn, nothing happens.

        Raises:
            ConversationBusy: A turn continues the conversation.
            ConversationError: The file cannot be written.
        """
        self._kept.abandon()

    def _resumption(
        self, decisions: Iterable[ApprovalDecision], trace: str | PathLike[str] | None, how: ResumeOptions
    ) -> dict[str, Any]:
        mark = self._kept.open_turn
        if mark is None:
            raise NothingToResume(f"No turn of the conversation {self.id} is parked.")
        place = {"trace": trace or mark.trace, "turn": mark.turn, "conversation": self._kept}
        return {**how, **place, "decisions": decisions}

    def request(
        self, text: str, *, answer: AnswerSpec[T] | type[T] | None = None, **how: Unpack[AskOptions]
    ) -> TurnRequest[T]:
        """Return the next turn as a request, for `Runner.start_turn` and `Runner.map`.

        One call of `map` may continue many conversations, each with one request. `map(resume_from=...)` takes
        over a turn of the earlier run only if the conversation has the same entries now as it had in that
        run, either right before the turn or right after it.
        """
        if not isinstance(text, str):
            raise MCPConfigError(
                f"ask() wants a text and options by name, ask('...', answer=int), not {type(text).__name__}."
            )
        return TurnRequest(system=self._kept.system, user=text, answer=answer, conversation=self._kept, **how)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the conversation to a new file, mode 600, and append to that file from now on.

        The file is not redacted: it holds the secrets that were said.

        Raises:
            ConversationBusy: A turn continues the conversation.
            ConversationError: The file is not empty, or cannot be written.
        """
        self._kept.save(as_path(path, "save()"))

    def dumps(self) -> str:
        """Return the conversation as text, for a database. `loads` continues it, in this process or another.

        The text has the format of a conversation's file. It is not redacted: it holds secrets that were said.

        Raises:
            ConversationBusy: A turn continues the conversation.
        """
        return self._kept.dumps()

    def branch(self) -> Conversation:
        """Return a conversation that begins with the entries so far and has an id of its own.

        The new conversation is in memory only. In it, a parked turn is given up, as by `abandon`. From then
        on the two conversations are independent.

        Raises:
            ConversationBusy: A turn continues the conversation.
        """
        return Conversation(self._runner, self._kept.branch())

    def close(self) -> None:
        """Close the conversation's file. The conversation can go on in memory. A second call does nothing."""
        self._kept.close()
