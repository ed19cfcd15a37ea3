"""Hypothesis strategies for whole turns: the turn machine gets any possible events in any possible order."""

from collections import deque
from typing import Any, Literal

from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import replace
from turns import (
    ACCEPTED,
    ANSWER,
    DEADLINE,
    FALLBACK,
    INTERRUPT,
    REFUSED,
    closed,
    disabled,
    failure,
    llm_failed,
    startup_failed,
    support,
    tool,
)

from grue.messages import (
    ApprovalPostponed,
    AskApproval,
    CallsDecided,
    CallTools,
    CheckAnswer,
    CheckToolSupport,
    CloseSession,
    CompletionReceived,
    DropCompletion,
    OfferTools,
    OpenSession,
    PresumedListing,
    ReplyDropped,
    RequestCompletion,
    Resumption,
    RunTurn,
    ServerDied,
    SessionOpened,
    ToolCall,
    ToolCallResult,
    ToolReturned,
    ToolSkipped,
    ToolsPresumed,
    ToolTimedOut,
    TurnParked,
    Usage,
)
from grue.policies import (
    ApprovalQuestion,
    Budget,
    FailurePolicy,
    ToolAnnotations,
    ToolPolicy,
    ToolRule,
    TurnLimits,
)
from grue.protocol.tool_loop import step
from grue.protocol.tools.calls import is_as_decided
from grue.protocol.tools.results import NOT_AS_DECIDED, SKIPPED_AFTER_DEATH, SKIPPED_AFTER_TIMEOUT
from grue.protocol.turn.states import Finished, Idle, TurnState

TOOLS = ("look", "think", "ns.sit")
HINTS = {"look": ToolAnnotations(read_only=True), "think": ToolAnnotations(read_only=True)}
ESTIMATE = Usage(input_tokens=11, output_tokens=5, cost_usd=0.01)
COST = Usage(input_tokens=7, output_tokens=3, cost_usd=0.01)
BUDGETS = (Budget(requests=1), Budget(requests=3), Budget(tokens=25), Budget(cost_usd=0.02))
RUNS = st.builds(
    RunTurn,
    turn=st.integers(1, 9),
    system=st.just("system"),
    user=st.just("user"),
    servers=st.sampled_from([("a", "b"), ("b", "a"), ("a", "b", "c"), ("a",), ("a", "b"), ()]),
    answer=st.sampled_from([ANSWER, None]),
    fallback=st.sampled_from([FALLBACK, None]),
    limits=st.builds(
        TurnLimits,
        max_tool_iterations=st.sampled_from([3, 4, 2, 3, 1, 0]),
        budget=st.sampled_from(
            [
                *[Budget()] * 6,
                Budget(requests=1),
                Budget(requests=3),
                Budget(tokens=25),
                Budget(cost_usd=0.02),
            ]
        ),
    ),
    support_check=st.sampled_from(["skip", "skip", "beside", "before"]),
    policy=st.builds(
        FailurePolicy,
        after_timeout=st.sampled_from(["skip", "continue", "force"]),
        after_death=st.sampled_from(["force", "reconnect"]),
    ),
)


class Entry:
    """One message of a turn: an event that goes `in` to the machine, or a command that comes `out`."""

    def __init__(self, way: Literal["in", "out"], body: Any) -> None:
        self.way = way
        self.body = body

    def __repr__(self) -> str:
        return f"{self.way} {self.body}"


class Session:
    """A tool server's session that draws its answers to the machine's commands."""

    def __init__(self, draw: Any, log: list[Entry]) -> None:
        self._draw = draw
        self.events: deque[Any] = deque()
        self._listing: tuple[Any, ...] = ()

    def perform(self, command: Any) -> None:
        match command:
            case OpenSession(server=server):
                names = self._draw(st.sampled_from([*[TOOLS] * 6, TOOLS[:2], TOOLS[1:], TOOLS[2:], ()]))
                listing = tuple(
                    replace(tool(f"{server}.{name}"), annotations=HINTS.get(name)) for name in names
                )
                self._listing = listing
                opened = SessionOpened(server=server, tools=listing)
                outcomes = [*[opened] * 12, disabled(server), startup_failed(server)]
                self.events.append(self._draw(st.sampled_from(outcomes)))
            case CallTools():
                self.events.extend(self._settlements(command))
            case CloseSession(server=server):
                self.events.append(closed(server))

    def _settlements(self, batch: CallTools) -> list[Any]:
        settled: list[Any] = []
        skipping = ""
        for item in batch.calls:
            ids: dict[str, Any] = {"batch": batch.batch, "call_id": item.call_id}
            if skipping:
                settled.append(ToolSkipped(**ids, reason=skipping))
                continue
            if not is_as_decided(item, batch.server, self._listing):
                settled.append(ToolSkipped(**ids, reason=NOT_AS_DECIDED, refused=True))
                continue
            match self._draw(st.sampled_from(["ok", "timeout", "ok", "error", "timeout", "death"])):
                case "ok":
                    settled.append(ToolReturned(**ids, result=ToolCallResult(item.tool)))
                case "error":
                    settled.append(ToolReturned(**ids, result=ToolCallResult(None, True, "no")))
                case "timeout":
                    settled.append(ToolTimedOut(**ids, timeout_s=batch.timeout_s))
                    skipping = SKIPPED_AFTER_TIMEOUT if batch.after_timeout == "skip" else ""
                case _:
                    settled.append(
                        ServerDied(**ids, server=batch.server, failure=failure(batch.server, "call"))
                    )
                    skipping = SKIPPED_AFTER_DEATH
        return settled


class ArbitraryTurn:
    """A whole turn. `log` has all events that went into the machine and all its commands, in order."""

    def __init__(
        self, draw: Any, run: RunTurn, *, parks: bool = False, presumed: ToolsPresumed | None = None
    ) -> None:
        self._draw = draw
        self._parks = parks
        self.run = run
        self.log: list[Entry] = []
        # In a resumed turn, new calls have other ids than the calls before the park.
        self._calls = 0 if run.resumed is None else 100
        self._listed: list[str] = []
        self._model: deque[Any] = deque()
        self._sessions = {server: Session(draw, self.log) for server in self.run.servers}
        self._interrupted_at = draw(st.sampled_from([None] * 12 + list(range(12))))
        self.steps = 0
        state: TurnState = self._step(Idle(), run)
        if presumed is not None:
            state = self._step(state, presumed)
        while not isinstance(state, Finished):
            state = self._step(state, self._next())

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.log))

    def _next(self) -> Any:
        if self.steps == self._interrupted_at:
            return self._draw(st.sampled_from([DEADLINE, INTERRUPT]))
        queues = [self._model, *(session.events for session in self._sessions.values())]
        waiting = [queue for queue in queues if queue]
        assert waiting, f"the machine waits for something that nobody was asked for:\n{self}"
        return self._draw(st.sampled_from(waiting)).popleft()

    def _step(self, state: TurnState, event: Any) -> TurnState:
        self.steps += 1
        self.log.append(Entry("in", event))
        state, commands = step(state, event)
        for command in commands:
            self.log.append(Entry("out", command))
            self._perform(command)
        return state

    def _perform(self, command: Any) -> None:
        match command:
            case OpenSession(server=server) | CallTools(server=server) | CloseSession(server=server):
                self._sessions[server].perform(command)
            case RequestCompletion():
                self._model.append(self._reply(command))
            case DropCompletion(request=request):
                self._drop(request)
            case CheckToolSupport():
                self._model.append(support(self._draw(st.sampled_from([True, True, True, False]))))
            case CheckAnswer():
                self._model.append(self._draw(st.sampled_from([ACCEPTED, REFUSED])))
            case AskApproval(questions=questions):
                self._model.extend(self._decisions(questions))

    def _reply(self, request: RequestCompletion) -> Any:
        likely = "calls" if isinstance(request.mode, OfferTools) else "text"
        kind = self._draw(st.sampled_from([*[likely] * 8, "calls", "text", "nothing", "refusal", "failed"]))
        content = self._draw(st.sampled_from([None, "", "hm"]))
        if kind == "failed":
            return llm_failed()
        if kind == "refusal":
            return CompletionReceived(request=request.request, refusal="I would rather not.", usage=COST)
        if kind != "calls":
            text = "text" if kind == "text" else None
            return CompletionReceived(request=request.request, content=text, usage=COST)
        if isinstance(request.mode, OfferTools) and request.mode.tools is not None:
            self._listed = [item.name for item in request.mode.tools]
        names = st.sampled_from([*self._listed * 3, "a.dance", "nobody"])
        amount = self._draw(st.sampled_from([3, 1, 4, 2, 5]))
        calls = [self._draw(st.tuples(names, ARGUMENTS)) for _ in range(amount)]
        return CompletionReceived(
            request=request.request,
            content=content,
            tool_calls=tuple(self._call(*item) for item in calls),
            usage=COST,
        )

    def _drop(self, request: int) -> None:
        """Cancel a request. In some cases the cancellation is too late, and the reply still comes."""
        usage = Usage()
        if self._model and self._draw(st.booleans()):
            self._model.clear()
            usage = ESTIMATE
        self._model.append(ReplyDropped(request=request, usage=usage))

    def _decisions(self, questions: tuple[ApprovalQuestion, ...]) -> list[Any]:
        """Answer the questions in one message or two, or postpone the answers to another process."""
        if self._parks or self._draw(st.sampled_from([True, False, False])):
            return [ApprovalPostponed(expires_at=9.0)]
        decisions = []
        for question in questions:
            answers = [question.approve(), question.deny("no"), question.change({"y": 2})]
            decisions.append(self._draw(st.sampled_from(answers)))
        stray = replace(decisions[0], arguments_digest="of other arguments")
        cut = self._draw(st.integers(0, len(decisions)))
        parts = (decisions[:cut], [stray, *decisions[cut:]])
        return [CallsDecided(decisions=tuple(part)) for part in parts if part]

    def _call(self, name: str, arguments: str) -> ToolCall:
        self._calls += 1
        return ToolCall(call_id=f"c{self._calls}", name=name, arguments=arguments)

    # --- For the assertions of the property tests ---

    def came(self, *kinds: type) -> list[Any]:
        return [entry.body for entry in self.log if entry.way == "in" and isinstance(entry.body, kinds)]

    def went(self, *kinds: type) -> list[Any]:
        return [entry.body for entry in self.log if entry.way == "out" and isinstance(entry.body, kinds)]

    def after(self, reply: Entry) -> list[Any]:
        """The events and commands after a reply, up to the next request."""
        rest = [entry.body for entry in self.log[self.log.index(reply) + 1 :]]
        stop = next((n for n, body in enumerate(rest) if isinstance(body, RequestCompletion)), len(rest))
        return rest[:stop]

    @property
    def interrupted(self) -> bool:
        """Whether a deadline or an interrupt ended the turn: then answers that were due never came."""
        return any(entry.body in (DEADLINE, INTERRUPT) for entry in self.log)

    @property
    def end(self) -> Any:
        return self.log[-1].body

    def rounds(self) -> list[tuple[CompletionReceived, list[Entry], RequestCompletion | None]]:
        """Each reply with tool calls: the reply, what followed, and the next request if there was one."""
        found = []
        for start, entry in enumerate(self.log):
            if isinstance(entry.body, CompletionReceived) and entry.body.tool_calls:
                rest = self.log[start + 1 :]
                ends = (n for n, item in enumerate(rest) if isinstance(item.body, RequestCompletion))
                stop = next(ends, None)
                following = rest[stop].body if stop is not None else None
                found.append((entry.body, rest[:stop], following))
        return found


ARGUMENTS = st.sampled_from(["{}", "", '{"x": 1}', "{}", "{}", "{}", "[1]", "{broken"])


POLICIES = st.builds(
    ToolPolicy,
    rules=st.lists(
        st.builds(
            ToolRule,
            tools=st.sampled_from([("*.look",), ("*.think",), ("a.*",), ("*",), ("*.ns.*", "b.*")]),
            read_only=st.sampled_from([None, True]),
            verdict=st.sampled_from(["allow", "ask", "allow", "deny"]),
            max_calls=st.sampled_from([None, None, 1, 2]),
            parallel=st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    trusted=st.sampled_from([("a", "b", "c"), ("a", "b", "c"), ("a",), ()]),
    parking=st.booleans(),
)


@st.composite
def arbitrary_turns(draw: Any) -> ArbitraryTurn:
    return ArbitraryTurn(draw, draw(RUNS))


LISTINGS = st.sampled_from([*[TOOLS] * 6, TOOLS[:2], TOOLS[1:], ("dance",), ()])


@st.composite
def presuming_turns(draw: Any) -> ArbitraryTurn:
    """Draw a turn that may have presumed tools, which the servers may or may not list later."""
    run = draw(RUNS)
    run = replace(run, servers=run.servers or ("a", "b"))
    listings = tuple(
        PresumedListing(
            server=server,
            tools=tuple(
                replace(tool(f"{server}.{name}"), annotations=HINTS.get(name)) for name in draw(LISTINGS)
            ),
            source="locked",
        )
        for server in run.servers
    )
    return ArbitraryTurn(draw, run, presumed=ToolsPresumed(listings=listings))


@st.composite
def calling_turns(draw: Any) -> ArbitraryTurn:
    """Draw a turn with servers that start when they are called, and may list other tools than offered."""
    run = draw(RUNS)
    servers = run.servers or ("a", "b")
    waiting = draw(st.sampled_from([servers, servers[:1], servers[1:]]))
    offered = tuple(
        PresumedListing(
            server=server,
            tools=tuple(
                replace(tool(f"{server}.{name}"), annotations=HINTS.get(name)) for name in draw(LISTINGS)
            ),
            source="cache",
        )
        for server in waiting
    )
    limits = replace(run.limits, starts_at_once=draw(st.sampled_from([8, 1, 2])))
    policy = draw(
        st.sampled_from([ToolPolicy(), ToolPolicy(rules=(ToolRule(parallel=True),), trusted=servers)])
    )
    run = replace(
        run, servers=servers, when_called=offered, limits=limits, tool_policy=policy, binds_calls=True
    )
    return ArbitraryTurn(draw, run)


@st.composite
def policed_turns(draw: Any) -> ArbitraryTurn:
    """Draw a turn with a tool policy. Some turns offer only a part of the tools."""
    subset = draw(st.sampled_from([None, None, None, ("a.*", "b.look")]))
    return ArbitraryTurn(draw, replace(draw(RUNS), tool_policy=draw(POLICIES), tools=subset))


@st.composite
def resumed_turns(draw: Any) -> tuple[ArbitraryTurn, ArbitraryTurn]:
    """Draw a turn that is parked, and the turn of a later process that resumes it."""
    policy = draw(POLICIES)
    rules = (*policy.rules[:1], ToolRule(verdict="ask"))
    run = replace(draw(RUNS), tool_policy=replace(policy, rules=rules), servers=("a", "b"))
    turn = ArbitraryTurn(draw, run, parks=True)
    assume(isinstance(turn.end, TurnParked))
    decisions = [
        draw(st.sampled_from([question.approve(), question.deny(), question.change({}), None]))
        for question in turn.end.questions
    ]
    answered = tuple(decision for decision in decisions if decision is not None)
    resumed = Resumption(parked=turn.end, decisions=answered)
    return turn, ArbitraryTurn(draw, replace(turn.run, resumed=resumed))
