"""Fork a recorded turn: repeat its messages up to a chosen message, and run the turn anew from there on.

A turn can be forked only where a single message decides what happens next: before a request to the model, and
between a reply and its tool calls or the check of its answer. From there on the turn runs like any other, but
its calls to servers get the recorded results, if any (`engine/recorded_tools.py`).
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from grue import errors
from grue import messages as m
from grue.actors.llm import EndpointActors
from grue.engine.answers import AnswerSpec, recorded_fallback, recorded_spec, spec_of
from grue.engine.conversations import recorded_conversation as recorded
from grue.engine.recorded_tools import RecordedApproval, TurnRecord
from grue.engine.tool_servers import check_fields, usable_servers
from grue.engine.turn import EpisodeMemory, HostTurn, RestOfTurn, TurnOutcome, TurnRequest, TurnSettings
from grue.engine.turn_actors import TurnResources, TurnsPast
from grue.engine.wiring import Wiring
from grue.field_checks import shown
from grue.policies import Misses
from grue.protocol.chat_wire.profile import SAMPLING
from grue.protocol.context.history import History
from grue.protocol.tool_loop import AGENT, NOTED_EVENTS, IllegalEvent, step
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.names import SERVER as BUILT_IN
from grue.protocol.turn.prices import Spent
from grue.protocol.turn.resuming import can_fork_at
from grue.protocol.turn.states import Idle, LiveState, TurnState
from grue.runtime.actor import Note
from grue.tool_sessions.connection import ToolConnection
from grue.tracing.changes import merged, parted
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

T = TypeVar("T")

_GONE = (
    "A fork asks the model of its runner. If the recorded one was a script, it has ended: call fork inside"
    " `with ScriptedLlmServer(replies) as model`, with model.base_url."
)

_OTHER_SYSTEM = "the fork has another system text"
_MESSAGES = tuple(kind for kind in get_args(m.AnyMessage) if kind is not m.TextDelta)


class ForkRequest(Struct, frozen=True, kw_only=True):
    """A request to fork a turn; the attributes are the arguments of `Runner.fork`."""

    trace: str | PathLike[str]
    turn: int | None = None
    at: int | None = None
    system: str | None = None
    changes: Mapping[str, object] = field(default_factory=dict)
    tool_results: Mapping[str, object] = field(default_factory=dict)
    tools: Mapping[str, Sequence[m.ToolDefinition]] = field(default_factory=dict)
    misses: Misses = "fail"
    answer: AnswerSpec[Any] | type | None = None
    on_delta: Callable[[m.TextDelta], None] | None = None

    def __post_init__(self) -> None:
        if self.misses not in get_args(Misses):
            known = ", ".join(map(repr, get_args(Misses)))
            raise errors.MCPConfigError(f"misses= wants one of {known}, not {self.misses!r:.60}.")
        for name in ("turn", "at"):
            if not isinstance(getattr(self, name), int | None):
                raise errors.MCPConfigError(f"{name}= wants a number, not {shown(getattr(self, name))}.")
        for name in ("tool_results", "tools", "changes"):
            if not isinstance(getattr(self, name), Mapping):
                raise errors.MCPConfigError(f"{name}= wants a dictionary, not {shown(getattr(self, name))}.")
        for server, tools in self.tools.items():
            listed = tools if isinstance(tools, list | tuple) else [None]
            if not all(isinstance(each, m.ToolDefinition) for each in listed):
                wanted = f"a list of ToolDefinition for {server}"
                raise errors.MCPConfigError(f"tools= wants {wanted}, not {shown(tools)}.")
            for each in tools:
                check_fields("tools", each)
        for result in self.tool_results.values():
            if isinstance(result, m.ToolCallResult):
                check_fields("tool_results", result)


class _Place(Struct, frozen=True):
    event: EpisodeEnvelope  # the last recorded message before the place
    # The agent's events from its last `RunTurn` on, without `event`; empty: the whole turn is run again.
    events: tuple[m.TurnEvent, ...]
    opened: tuple[m.ServerName, ...] = ()  # the servers whose sessions are open at the place
    spent: Spent = Spent()  # what the turn had spent before the place, which the fork does not pay again
    iterations: int = 0  # the number of replies with tool calls before the place


class RecordedRun(Struct, frozen=True, kw_only=True):
    """The messages of a recorded turn."""

    path: Path
    episode: str
    envelopes: tuple[EpisodeEnvelope, ...]
    earlier: tuple[EpisodeEnvelope, ...] = ()  # the messages before the turn, if it continues a conversation

    @property
    def first(self) -> m.RunTurn:
        """The message that began the turn."""
        body = self.envelopes[0].body
        assert isinstance(body, m.RunTurn), "it is read from there"
        return body

    @property
    def begun(self) -> m.RunTurn:
        """The message that began the turn, with limits, policy and system text as forks have changed them."""
        begun = self.first
        for envelope in self.envelopes:
            match envelope.body:
                case m.TurnForked(limits=limits, policy=policy):
                    begun = replace(begun, limits=limits or begun.limits, policy=policy or begun.policy)
                case m.HistoryRewritten(reason=reason, rewrite=rewrite) if reason == _OTHER_SYSTEM:
                    begun = replace(begun, system=_system_in(rewrite.entries))
        return begun

    def listings(self, after: int) -> dict[m.ServerName, tuple[m.ToolDefinition, ...]]:
        """Return the lists of tools, by server, that `TurnForked` messages after message `after` have set."""
        listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
        for each in self.envelopes:
            if each.seq > after and isinstance(each.body, m.TurnForked):
                listings |= each.body.listings
        return listings

    @property
    def messages(self) -> tuple[EpisodeEnvelope, ...]:
        """The messages of the turn, without pieces of streamed replies and without facts of hosts."""
        return tuple(each for each in self.envelopes if isinstance(each.body, _MESSAGES))

    def asks(self, place: _Place) -> m.ModelAsked | None:
        """Return the model that the recorded turn asked, with what grue had learned of it before `place`.

        `None`: no model is recorded.
        """
        asks: m.ModelAsked | None = None
        for each in self.envelopes:
            before = each.seq <= place.event.seq
            match each.body:
                case m.RunTurn(asks=told) | m.TurnForked(asks=told) if told is not None:
                    if not before and asks and (asks.model, asks.address) == (told.model, told.address):
                        # `told` has what grue learned after `place`, such as refused settings: undo that.
                        kept = {name: asks.sampling[name] for name in _refused(told) if name in asks.sampling}
                        sampling = kept | told.sampling
                        told = replace(told, form=asks.form, wire=asks.wire, sampling=sampling)
                    asks = told
                case m.ModelPassedOver(asks=told) if before:
                    asks = told
                case m.FormAdapted(changed=changed) if before and asks is not None:
                    asks = _learned(asks, changed)
                case m.SchemaIgnored() if before and asks is not None:
                    asks = _learned(asks, {"ignores_schema": True})
        return asks

    def place(self, at: int | None) -> _Place:
        """Return the last possible place for a fork before message `at`; with `at=None`, the turn's begin."""
        begun, last = self.envelopes[0], self.envelopes[-1]
        if at is None or at == begun.seq:
            return _Place(begun, ())
        if not begun.seq < at <= last.seq:
            raise errors.MCPError(
                f"Turn {self.begun.turn} of {self.path} has the messages {begun.seq} to {last.seq}, and no"
                f" message {at}. `grue trace show` has their numbers."
            )
        return [_Place(begun, ()), *self._places(at)][-1]

    def _places(self, at: int) -> Iterator[_Place]:
        state: TurnState = Idle()
        events: list[m.TurnEvent] = []
        for envelope in self.envelopes:
            if envelope.seq >= at:
                return
            event: Any = envelope.body
            if not (envelope.receiver == AGENT or isinstance(event, NOTED_EVENTS)):
                continue
            if isinstance(event, m.RunTurn):
                state, events = Idle(), []
            before = state
            try:
                state, commands = step(before, event)
            except IllegalEvent as error:
                what = f"Turn {self.begun.turn} of {self.path} cannot be forked"
                raise errors.TraceError(f"{what}: {error}") from error
            if events and isinstance(state, LiveState) and can_fork_at(before, state, commands):
                turn = before.turn if isinstance(before, LiveState) else None
                requests = 0 if turn is None else turn.requests + turn.sampled
                spent = Spent(requests=requests, usage=state.turn.usage)
                yield _Place(envelope, tuple(events), state.turn.open, spent, state.turn.iterations)
            events.append(event)


def read_run(path: str | PathLike[str], turn: int | None, at: int | None = None) -> RecordedRun:
    """Read the turn with the number `turn`, or with `turn=None` the trace's only turn.

    If several turns have the number, read the last; with `at`, the last that began at that message or before.
    """
    reader, forks = open_episode(path), recorded.forks_of(path)
    begun: dict[int, list[tuple[int, recorded.ForkPlace | None]]] = {}
    others: dict[int, None] = {}
    for line, fork in recorded.with_forks(path, forks):
        number = line.line.turn
        if line.tag == "RunTurn" and turn not in (None, number):
            others[number] = None
        elif line.tag == "RunTurn":
            body = line.envelope().body
            if number not in begun or (isinstance(body, m.RunTurn) and body.resumed is None):
                begun.setdefault(number, []).append((line.line.seq, fork))
    if turn is None and len(begun) > 1:
        raise errors.MCPError(
            f"{reader.path} holds several turns: {_some(begun)}. Name one: --turn N (in Python turn=N)."
        )
    if not begun:
        held = f" {turn}. Its turns: {_some(others)}" if others else ""
        raise errors.MCPError(f"{reader.path} holds no turn{held}.")
    ((number, firsts),) = begun.items()
    first, own = next((each for each in reversed(firsts) if at is None or each[0] <= at), firsts[0])
    until = next((seq for seq, fork in firsts if seq > first and fork is own), math.inf)
    envelopes = [
        line.envelope()
        for line, fork in recorded.with_forks(path, forks)
        if fork is own and line.line.turn == number and first <= line.line.seq < until
    ]
    run = RecordedRun(path=reader.path, episode=reader.header.episode, envelopes=tuple(envelopes))
    past = run.begun.history
    if past is None or not past.length:
        return run
    # A fork in an old trace does not say where its copied messages begin: take all messages before it.
    old = own is not None and own.first == first
    earlier = (
        line.envelope()
        for line, fork in recorded.with_forks(path, forks)
        if (fork is own or old) and line.line.turn > 0 and line.line.seq < first
    )
    return replace(run, earlier=tuple(each for each in earlier if isinstance(each.body, _MESSAGES)))


def _learned(asks: m.ModelAsked, changed: m.JsonObject) -> m.ModelAsked:
    told = replace(asks, form=asks.form | changed, wire=str(changed.get("wire", asks.wire)))
    sampling = {name: value for name, value in asks.sampling.items() if name not in _refused(told)}
    return replace(told, sampling=sampling)


def _refused(asks: m.ModelAsked) -> frozenset[str]:
    """Return the sampling settings that are not sent, because the endpoint has refused them."""
    accepted = asks.form.get("sampling")
    return SAMPLING.difference(accepted) if isinstance(accepted, list) else frozenset()


def _some(numbers: Collection[int]) -> str:
    listed = ", ".join(map(str, [*numbers][:20]))
    return listed if len(numbers) <= 20 else f"{listed} and {len(numbers) - 20} more"


class ForkedRun(HostTurn[T]):
    """One fork of a turn. The constructor starts nothing; it raises `MCPError` as `Runner.fork` does."""

    def __init__(self, asked: ForkRequest, settings: TurnSettings) -> None:
        run = read_run(asked.trace, asked.turn, asked.at)
        place = run.place(_fork_at(asked, run))
        changed = changed_turn(run.begun, asked.changes, asked.system)
        rest = RestOfTurn(settings.spending, place.spent, counted=place.spent)
        budget = rest.left_for(changed, settings.budget, f"Turn {changed.turn} cannot be forked")
        changed = replace(changed, limits=replace(changed.limits, budget=budget))
        if asked.answer is not None and not place.events:
            changed = replace(changed, fallback=recorded_fallback(spec_of(asked.answer)))
        listings = run.listings(place.event.seq)
        listings |= {m.ServerName(name): tuple(tools) for name, tools in asked.tools.items()}
        unknown = [name for name in listings if name not in changed.servers]
        if unknown:
            known = ", ".join(changed.servers) or "none"
            raise errors.MCPError(
                f"Turn {changed.turn} has no server {unknown[0]!r} that could list tools. It has: {known}."
            )
        record = TurnRecord(run.envelopes, place.event.seq, listings, asked.tool_results)
        fork = RecordedApproval(
            record=record,
            misses=asked.misses,
            results=_replaced_results(asked, record, place, run),
            where=f"turn {changed.turn} of {run.path}",
            approve=settings.wiring.approval.approve,
        )
        talk = said_until(run, place, changed)
        history = talk.history
        rewrites = _new_system(run, changed, history)
        if rewrites and not place.events and changed.history is not None and history.ledger is not None:
            changed = replace(changed, history=history.ledger.reference(changed.history.conversation))
        endpoint, asks = settings.wiring.endpoint, run.asks(place)
        if endpoint is not None and asks is not None:
            endpoint.of_chain(asks).recall_form(asks)
        wiring = _wiring(settings.wiring, changed, talk, fork)
        if endpoint is not None and place.events:
            # A turn stays with the model that has answered, so its fork begins with that model.
            endpoint = endpoint.of_chain(asks)
            if endpoint is not wiring.endpoint and isinstance(wiring.llm, EndpointActors):
                wiring = replace(wiring, llm=replace(wiring.llm, begins=endpoint))
        memory = EpisodeMemory()
        memory.learn(record.connections(run.begun.policy, changed.policy.connect_retries))
        self.earlier = talk.results(run.path)
        self.record = _past(asked, run, place, changed, listings, rewrites, endpoint)
        self.begun = _said_before_resumption(run, place)
        request: TurnRequest[T] = TurnRequest(
            system=changed.system,
            user=changed.user,
            answer=_answer(asked, changed),
            turn=changed.turn,
            on_delta=asked.on_delta,
            json_results=not changed.plain_results,
        )
        super().__init__(request, replace(settings, wiring=wiring, spending=rest), memory)
        self.started_by = changed

    async def run(self, resources: TurnResources) -> TurnOutcome[T]:
        """Run the turn as `HostTurn.run` does; may raise `ForkMissed`."""
        try:
            return await super().run(resources)
        except errors.ApprovalPending as pending:
            names = ", ".join(dict.fromkeys(question.name for question in pending.questions))
            raise errors.ApprovalPending(
                f"The fork of turn {pending.turn} waits for an approval of {names}, as the turn itself does."
                " A fork cannot be resumed: resume the recorded turn, and fork it when it has ended.",
                turn=pending.turn,
                questions=pending.questions,
                expires_at=pending.expires_at,
            ) from None
        except errors.LLMError as error:
            if error.kind == "unreachable":
                error.add_note(_GONE)
            raise
        except errors.ActorCrashed as crashed:
            if isinstance(crashed.__cause__, errors.ForkMissed):
                raise crashed.__cause__ from None
            raise


def _fork_at(asked: ForkRequest, run: RecordedRun) -> int | None:
    """Return the number of the message before which to fork; `None`: fork at the turn's beginning."""
    calls = TurnRecord(run.envelopes, 0, {}).settled
    unknown = [name for name in asked.tool_results if name not in calls]
    if unknown:
        known = ", ".join(calls) or "none"
        raise errors.MCPError(
            f"Turn {run.begun.turn} of {run.path} has no result of a call {unknown[0]!r}. It has: {known}."
        )
    found = [calls[name] for name in asked.tool_results]
    for call in found:
        if call.server == BUILT_IN:
            raise errors.MCPError(
                f"{call.call.call_id} is a call of grue's own tool {call.call.tool}. A fork runs this tool"
                " again, so the call cannot get another result."
            )
    return min(call.seq for call in found) if asked.at is None and found else asked.at


def _replaced_results(
    asked: ForkRequest, record: TurnRecord, place: _Place, run: RecordedRun
) -> dict[str, m.ToolCallResult]:
    """Return the new results, by call id; raise `MCPError` for a call that was settled before the fork."""
    for name in asked.tool_results:
        seq = record.settled[name].seq
        if seq <= place.event.seq:
            raise errors.MCPError(
                f"The call {name} of turn {run.begun.turn} was settled by message {seq}, before the"
                f" fork: its result cannot be another one. Fork at message {seq} or before it."
            )
    return {
        name: value if isinstance(value, m.ToolCallResult) else tool_results.success(value)
        for name, value in asked.tool_results.items()
    }


def changed_turn(begun: m.RunTurn, changes: Mapping[str, Any], system: str | None = None) -> m.RunTurn:
    """Return `begun` with changed limits and failure policy, and with `system` unless it is `None`."""
    try:
        policy, limits = parted(changes)
        return replace(
            begun,
            system=begun.system if system is None else system,
            policy=merged(begun.policy, policy),
            limits=merged(begun.limits, limits),
        )
    except ValueError as error:
        named = next((name for name in changes if name in LlmSettings.__struct_fields__), "")
        where = f" {named} is a setting of the model: --set llm.{named}=..., or llm= of the Runner."
        text = f"The fork cannot use these changes: {error}.{where if named else ''}"
        raise errors.MCPConfigError(text) from error


def _answer(asked: ForkRequest, run: m.RunTurn) -> AnswerSpec[Any]:
    if asked.answer is None:
        if run.answer is None:
            return AnswerSpec(str, fallback=run.fallback)
        return recorded_spec(run.answer, fallback=run.fallback, told=not run.states_answer)
    spec = spec_of(asked.answer)
    if spec.schema != run.answer or recorded_fallback(spec) != run.fallback:
        other = "form of answer" if spec.schema != run.answer else "fallback"
        raise errors.MCPError(
            f"Turn {run.turn} was started with another {other}. Fork it with the same `answer`, or"
            " without one: then the answer is JSON."
        )
    return spec


def said_until(run: RecordedRun, place: _Place, changed: m.RunTurn) -> recorded.Talk:
    """Return the conversation up to the fork at `place`."""
    until = [each for each in run.envelopes if each.seq <= place.event.seq]
    redacted = next((each for each in (*run.earlier, *until) if each.redacted), None)
    if redacted is not None:
        raise errors.TraceError(
            f"Turn {changed.turn} of {run.path} cannot be forked: a secret was removed from message"
            f" {redacted.seq}, which comes before the fork."
        )
    return recorded.said_before(run.path, (*run.earlier, *until), changed.conversation)


def _said_before_resumption(run: RecordedRun, place: _Place) -> History | None:
    """Return the turn's entries from before its resumption; `None`: the fork is before any resumption."""
    first = place.events[0] if place.events else None
    if not isinstance(first, m.RunTurn) or first.resumed is None:
        return None
    part: recorded.RecordedTurn | None = None
    for envelope in run.envelopes:
        if isinstance(envelope.body, m.RunTurn):
            part = recorded.RecordedTurn(envelope, envelope.body, part)
            if envelope.body is first:
                break
        elif part is not None:
            part.add(envelope)
    return None if part is None else part.said_alone()


def _wiring(wiring: Wiring, run: m.RunTurn, talk: recorded.Talk, fork: RecordedApproval) -> Wiring:
    def nothing(_: Note) -> ToolConnection:
        raise AssertionError("a fork that fails at misses opens no server")

    servers = wiring.servers
    if fork.misses == "fail":
        servers = usable_servers(dict.fromkeys(run.servers, nothing))
    missing = [name for name in run.servers if name not in servers]
    if missing:
        raise errors.MCPError(
            f'Turn {run.turn} uses servers that this runner lacks: {", ".join(missing)}. With misses="fail"'
            " none is needed."
        )
    wiring = replace(wiring, servers=servers, approval=fork, presumed=None)
    if not talk.history.entries:
        return wiring
    return wiring.lending(run.conversation, talk.history, talk.tools)


def _past(
    asked: ForkRequest,
    run: RecordedRun,
    place: _Place,
    changed: m.RunTurn,
    listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]],
    rewrites: tuple[m.HistoryRewritten, ...],
    endpoint: LlmEndpoint | None,
) -> TurnsPast:
    first, now, seq = run.first, run.begun, place.event.seq
    asks = None if endpoint is None else endpoint.asked()
    forked = m.TurnForked(
        trace=str(run.path.absolute()),
        episode=run.episode,
        turn=changed.turn,
        at=seq,
        misses=asked.misses,
        changed=tuple(_changed(asked, run.asks(place), asks)),
        limits=None if changed.limits == now.limits == first.limits else changed.limits,
        policy=None if changed.policy == now.policy == first.policy else changed.policy,
        listings=listings,
        asks=asks,
    )
    if not place.events:
        return TurnsPast(noted=forked, copied=run.earlier, rewrites=rewrites)
    told = {each.seq for each in run.envelopes if each.seq < seq and each.receiver == AGENT}
    # Copy also what the agent sent because of a message before `seq`, even if it was recorded after `seq`.
    caused = (each for each in run.envelopes if each.sender == AGENT and each.cause in told)
    followed = {each.seq for each in caused if not isinstance(each.body, m.TurnEnd | m.TurnWaits)}
    before = [each for each in run.envelopes if each.seq < seq or each.seq in followed]
    copied = [each for each in before if isinstance(each.body, _MESSAGES)]
    opened = [each.body for each in copied if isinstance(each.body, m.OpenSession)]
    answered = m.Settlement | m.ToolRejected | m.ToolDenied
    bodies = [each.body for each in (*copied, place.event)]
    return TurnsPast(
        noted=replace(
            forked,
            iterations=place.iterations,
            requests=place.spent.requests,
            usage=place.spent.usage,
            calls=tuple(body.call_id for body in bodies if isinstance(body, answered)),
        ),
        begun=next(each for each in reversed(copied) if isinstance(each.body, m.RunTurn)),
        copied=(*run.earlier, *copied),
        events=place.events,
        event=place.event,
        rewrites=rewrites,
        reopened={each.server: each for each in opened if each.server in place.opened},
    )


def _changed(asked: ForkRequest, before: m.ModelAsked | None, asks: m.ModelAsked | None) -> Iterator[str]:
    if asked.system is not None:
        yield "system"
    yield from asked.changes
    yield from (f"result of {name}" for name in asked.tool_results)
    yield from (f"tools of {name}" for name in asked.tools)
    if before is None or asks is None:
        return
    if before.model != asks.model:
        yield f"model {asks.model}"
    if before.address != asks.address:
        yield f"base_url {asks.address}"
    for name in dict.fromkeys((*before.sampling, *asks.sampling)):
        if before.sampling.get(name) != asks.sampling.get(name):
            yield name


def _new_system(run: RecordedRun, changed: m.RunTurn, history: History) -> tuple[m.HistoryRewritten, ...]:
    """Give `history` the system text of `changed`, if that differs; return the note about the change."""
    first = history.entries[0] if history.entries else None
    if not isinstance(first, m.Said) or changed.system == run.begun.system == run.first.system:
        return ()
    if changed.system == _system_in((first,)):
        return ()
    rest = tuple(item for item in first.items if not isinstance(item, m.SystemText))
    given = (m.SystemText(changed.system),) if changed.system else ()
    rewritten = m.Rewritten(0, 1, (replace(first, items=(*given, *rest)),))
    history.rewrite(rewritten)
    return (m.HistoryRewritten(conversation=changed.conversation, rewrite=rewritten, reason=_OTHER_SYSTEM),)


def _system_in(entries: Sequence[m.Said | m.AssistantReply]) -> str:
    items = entries[0].items if entries and isinstance(entries[0], m.Said) else ()
    return next((item.text for item in items if isinstance(item, m.SystemText)), "")
