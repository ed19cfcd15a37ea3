"""Replay an episode: run its pure parts again on the recorded events and compare the results.

The replay runs the turn's state machine (`protocol/tool_loop.py`), the connection policy
(`protocol/turn/connection.py`) and a session's decisions after a settlement. It takes the model's replies,
the servers' behaviour, the host's answer checks and the timeouts from the recording. For the LLM actor it
checks only the order of its messages, because delays and the number of retries depend on the clock and the
network. No model, server or tool is run.

With `Changes`, a replay shows where the episode would have gone differently. What would have followed in the
same turn is unknown, so the replay skips the rest of that turn and takes the next turn as it was recorded.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.protocol.tool_loop import AGENT
from grue.tracing.changes import Changes
from grue.tracing.divergence import Divergence
from grue.tracing.facts import counted
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.replay_agent import AgentTurn, ReplayEnd, recorded_turn, replay_agent
from grue.tracing.replay_sessions import Connections, replay_sessions
from grue.tracing.turn_slices import TurnSlice, causes, split_turns

__all__ = ["Changes", "TurnReplay", "render", "replay"]

_UNCHANGED = Changes()


class TurnReplay(Struct, frozen=True, kw_only=True):
    """The result of replaying one turn.

    Attributes:
        compared: How many messages were derived and compared.
        end: How the turn ended; an unfinished turn is replayed as far as it was recorded.
        divergence: The first message that differs from the recording; `None`: none differs.
    """

    turn: int
    compared: int
    end: ReplayEnd
    divergence: Divergence | None = None


def replay(
    envelopes: Iterable[EpisodeEnvelope], changes: Changes = _UNCHANGED, *, turn: int | None = None
) -> Iterator[TurnReplay]:
    """Replay a trace turn by turn; one turn is in memory at a time.

    Args:
        envelopes: A reader of the trace, or its envelopes.
        changes: The settings to change.
        turn: Replay only turns with this number. Earlier turns are still read, for the state of the servers.

    Raises:
        TraceError: While a file is read: it is damaged.
    """
    connections = Connections()
    for turn_slice, cut_off in _with_cut_off(split_turns(envelopes)):
        connections.begin(turn_slice)
        if turn in (None, turn_slice.turn):
            recorded = recorded_turn(turn_slice, cut_off=cut_off)
            if recorded is not None:
                yield _replay_turn(recorded, turn_slice, connections, changes)
        connections.learn(turn_slice)


def render(turns: Iterable[TurnReplay], changes: Changes = _UNCHANGED) -> Iterator[str]:
    """Yield the lines of a replay's report: `identical`, or where turns differ.

    The first divergence is described in full, that of each later turn in one line.

    Args:
        turns: The results of `replay`.
        changes: The changes that `replay` was called with.
    """
    compared = total = unfinished = diverged = 0
    names = ("recorded", "changed" if changes else "replayed")
    for turn in turns:
        total += 1
        compared += turn.compared
        unfinished += turn.end != "finished" and turn.divergence is None
        if turn.divergence is None:
            continue
        diverged += 1
        if diverged == 1:
            yield f"Turn {turn.turn} differs after {counted(turn.compared, 'message')}."
            yield from turn.divergence.lines(*names)
        else:
            if diverged == 2:
                yield "Later turns, each replayed from its recorded beginning:"
            yield f"  {turn.divergence.line(*names)}"
    counts = f"{counted(total, 'turn')}, {counted(compared, 'message')} compared"
    cut = f"; {counted(unfinished, 'turn')} did not finish, replayed as far as recorded" if unfinished else ""
    yield f"different in {diverged} of {counts}{cut}" if diverged else f"identical: {counts}{cut}"


_WithCutOff: TypeAlias = Iterator[tuple[TurnSlice, bool]]


def _with_cut_off(turns: Iterator[TurnSlice]) -> _WithCutOff:
    """Yield each turn with whether the trace ends in it or the episode was resumed after it."""
    before: TurnSlice | None = None
    for turn_slice in turns:
        if before is not None:
            yield before, turn_slice.resumed or before.cut_off
        before = turn_slice
    if before is not None:
        yield before, True


def _replay_turn(
    turn: AgentTurn, turn_slice: TurnSlice, connections: Connections, changes: Changes
) -> TurnReplay:
    agent = replay_agent(turn, changes)
    sessions = replay_sessions(turn, turn_slice, connections, agent.commands if changes else {})
    if sessions.divergences and not changes:
        # In a batch, turns do not share what they learn about the servers.
        alone = replay_sessions(turn, turn_slice, Connections(), {})
        sessions = sessions if alone.divergences else alone
    found = [*sessions.divergences, *_llm_divergences(turn, turn_slice)]
    found += _excluded(turn, turn_slice, changes)
    if agent.divergence is not None:
        found.append(agent.divergence)
    first = min(found, key=_place, default=None)
    return TurnReplay(
        turn=turn.run.turn,
        compared=agent.compared + sessions.compared,
        end=agent.end,
        divergence=first,
    )


def _place(divergence: Divergence) -> float:
    if divergence.left is not None:
        return divergence.left.seq
    return divergence.because[-1].seq + 0.5 if divergence.because else 0.0


def _excluded(turn: AgentTurn, turn_slice: TurnSlice, changes: Changes) -> Iterator[Divergence]:
    """Yield the first event that could not have happened as recorded under the changed limits."""
    for envelope in turn_slice.envelopes:
        if reason := changes.excludes(envelope, turn.begun):
            because = causes(envelope, turn.by_seq)
            yield Divergence(turn=turn.run.turn, left=envelope, right=None, because=because, reason=reason)
            return


def _llm_divergences(turn: AgentTurn, turn_slice: TurnSlice) -> Iterator[Divergence]:
    """Yield messages of the LLM actor that do not fit: a reply without a request, a retry out of order."""
    asked: m.RequestCompletion | None = None
    dropping: int | None = None
    attempts: dict[int, int] = {}
    for envelope in turn_slice.envelopes:
        reason = ""
        match envelope.body:
            case m.RequestCompletion() as command if envelope.sender == AGENT:
                asked = command
            case m.CompletionReceived(request=request) | m.CompletionFailed(request=request):
                if envelope.receiver != AGENT:
                    continue  # a server's own request
                if asked is None or asked.request != request:
                    reason = f"it answers request {request}, but no such request is open"
                asked = None
            case m.DropCompletion(request=request):
                dropping = request
            case m.ReplyDropped(request=request):
                if dropping != request:
                    reason = f"it answers no command to drop the reply to request {request}"
                asked = dropping = None
            case m.CompletionRetried(attempt=attempt) if envelope.cause is not None:
                if attempt <= attempts.get(envelope.cause, 0):
                    reason = f"attempt {attempt} comes after attempt {attempts[envelope.cause]}"
                attempts[envelope.cause] = attempt
            case _:
                pass
        if reason:
            because = causes(envelope, turn.by_seq)
            yield Divergence(turn=turn.run.turn, left=envelope, right=None, because=because, reason=reason)
