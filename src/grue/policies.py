"""What users set, as plain data (limits, policies, rules), and the `Literal` types that modules share.

Programs import the public classes from `grue`, not from here.
"""

from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from grue.errors import MCPConfigError
from grue.field_checks import ByName, OwnKeywords, check_settings, shown

# --- Types that allow only certain words
#
# If you add a word, mypy reports places that have to handle it. Never remove a word: old traces contain it.

ProcessEnding: TypeAlias = Literal["none", "polite", "terminated", "killed", "died"]
"""How a server process ended.

- `none`: it still runs, or there is no process.
- `polite`: it exited by itself when its stdin was closed.
- `terminated`: it exited on SIGTERM.
- `killed`: it was killed with SIGKILL.
- `died`: it exited before it was asked to.
"""

Ending: TypeAlias = Literal[ProcessEnding, "handed_over"]
"""How a server ended at the end of a turn's session: a `ProcessEnding`, or `handed_over` to the pool."""

ServerPhase: TypeAlias = Literal["spawn", "initialize", "list", "call", "close"]
NoticeKind: TypeAlias = Literal[
    "noise",
    "bad_tool",
    "bad_schema",
    "bad_elicit",
    "too_large",
    "log",
    "progress",
    "updated",
    "updates_ended",
]
"""What a notice about a server (`ServerNoted`) reports.

- `noise`: the server sent something that is not a JSON-RPC message, such as a line of its log on stdout; or
  a process sent an answer to no request, such as an error with the id `null`.
- `bad_tool`: a tool of the server, or a part of its listing, cannot be used and was left out; or the tools
  could not be listed again; or a pattern in the settings or the request matches no tool.
- `bad_schema`: a tool's arguments or results are not checked: its schema is unusable, or they are too large.
- `bad_elicit`: the host's `elicit` function failed, or its answer is unusable; the server got an error.
- `too_large`: a message was not read, or kept as text only, because of its size; or too many notices came.
- `log`, `progress`: the server sent a notification of this kind.
- `updated`: a resource that the host has subscribed to, or the list of prompts or resources, has changed; the
  notice's text is the resource's URI or the name of the list.
- `updates_ended`: a stream of such updates (`subscriptions/listen`) has ended, and the session goes on; the
  notice's text has the `subscriptionId` and the reason.
"""

UNLISTED = ", and the server lists no such tool"
"""The end of a `bad_tool` notice about a pattern, in a server's settings, that matches no tool."""

AfterFailedConnect: TypeAlias = Literal["retry", "disable", "raise"]
SettlementKind: TypeAlias = Literal[
    "returned", "timed_out", "died", "skipped", "rejected", "denied", "interrupted"
]
"""How a tool call was settled. `ToolCallRecord` explains the words."""

FailureKind: TypeAlias = Literal[
    "refused", "unavailable", "timed_out", "invalid_reply", "damaged", "unreachable"
]
"""How a completion request failed, which decides on retries. `LlmFailure` explains the words."""

FailureReason: TypeAlias = Literal[
    "key",
    "permission",
    "credit",
    "rate",
    "overloaded",
    "region",
    "model",
    "tools",
    "content",
    "too_long",
    "request",
    "address",
    "connection",
    "timeout",
    "reply",
]
"""Why a completion request failed, as far as the endpoint's reply shows.

- `key`: the API key is missing, wrong, expired or revoked.
- `permission`: the key is right, but its account may not do this.
- `credit`: no money is left, or a spending limit is reached. Waiting does not help.
- `rate`: too many requests or tokens in a period. Waiting helps; `retry_after_s` says how long, if known.
- `overloaded`: the endpoint has no capacity now, or failed by itself.
- `region`: the endpoint does not serve this country or region.
- `model`: there is no such model, or not for this account.
- `tools`: the model or the endpoint takes no tools.
- `content`: moderation refused what was sent.
- `too_long`: the request is longer than the model's context window, or than what the endpoint accepts.
- `request`: the endpoint refuses the form of the request, or a value in it.
- `address`: the base URL does not lead to an endpoint.
- `connection`: no connection was made, or it broke.
- `timeout`: a time limit passed.
- `reply`: the reply is not a completion, is damaged, or contains a garbled tool call of the model.
"""

Misses: TypeAlias = Literal["fail", "call", "ask"]
"""What a fork of a recorded turn does with a tool call that the record has no result for.

- `fail`: the fork fails, and nothing is called.
- `call`: the tool is called.
- `ask`: a person is asked, and the tool is called if the person approves.
"""

MediaKind: TypeAlias = Literal["image", "audio", "file"]
ToolChange: TypeAlias = Literal["added", "removed", "changed"]

ForceReason: TypeAlias = Literal["max_iterations", "no_content", "tool_timeout", "server_died", "budget"]
"""Why the final answer is requested without tools."""


# --- The policy for tools

Verdict = Literal["allow", "ask", "deny"]
"""A rule's verdict: a call is made, is made after a person has approved it, or is not made."""


class ToolAnnotations(Struct, metaclass=ByName, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Statements about a tool's behaviour; those of a server are untrusted. A field is `None` if not stated.

    Attributes:
        read_only: The tool changes nothing.
        destructive: It may delete or overwrite. Only meaningful for a tool that is not read-only.
        idempotent: Repeating a call has no further effect. Only meaningful for a tool that is not read-only.
        open_world: It reaches things outside the server's own domain, such as the web.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class ToolRule(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True, omit_defaults=True):
    """One rule of a `ToolPolicy`: which tools it is about, and what happens to calls of these tools.

    A rule matches a tool if each condition that is set holds for the tool: `tools`, `read_only`,
    `destructive`, `idempotent`, `open_world` and `boxed`. A rule without a condition matches every tool.

    Attributes:
        tools: Patterns of canonical names (`server.tool`), of which one has to match. `*` stands for any
            characters, `?` for one, `[ab]` for one of a set. Upper and lower case differ.
        read_only: Match only tools whose annotation has this value; `None`: any. A missing annotation has the
            default of the MCP specification: not read-only, destructive, not idempotent, open world. A
            read-only tool always counts as idempotent and not destructive.
        destructive: As `read_only`.
        idempotent: As `read_only`.
        open_world: As `read_only`.
        boxed: `True`: match only tools whose server or command runs in a sandbox that this machine
            enforces completely. `False`: match only other tools. `None`: any.
        verdict: What happens to a call of a matching tool.
        max_calls: The most calls of each matching tool in one turn, those that a person has denied included;
            further calls are denied. `None`: no limit. A host's own calls (`Runner.call`) are not
            counted: only a limit of 0 denies them.
        parallel: Whether calls may run while calls to other servers run, if trusted annotations say that the
            tool is read-only. Calls to the same server always run one at a time.
        reason: With `deny`, told to the model; with `ask`, shown to the person who is asked.
    """

    tools: tuple[str, ...] = ("*",)
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    boxed: bool | None = None
    verdict: Verdict = "allow"
    max_calls: int | None = None
    parallel: bool = False
    reason: str = ""


class ToolPolicy(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True, omit_defaults=True):
    """The rules that decide which tool calls are made. The default allows every call, one at a time.

    Attributes:
        rules: The first rule that matches a tool decides. A tool that no rule matches is allowed.
        trusted: Servers whose annotations are trusted. The annotations of the host's own functions are always
            trusted, and so are those in the tool lock, unless `on_tool_drift` is `ignore`. Annotations that
            are not trusted can only make a verdict stricter.
        parking: What follows if nobody answers (no `approve` callback, or it returns `None`). `True`: the
            turn ends, and `Runner.resume` continues it; requires a trace file. `False`, or if a secret was
            removed from the turn's trace: the call is denied.
        park_for_s: Seconds after which a parked question expires and its call is denied. `None`: never.
    """

    rules: tuple[ToolRule, ...] = ()
    trusted: tuple[str, ...] = ()
    parking: bool = False
    park_for_s: float | None = None


# --- Questions about tool calls, and decisions


class ApprovalDecision(Struct, metaclass=ByName, frozen=True, kw_only=True, omit_defaults=True):
    """A person's answer to one question. Make it with a method of the question.

    The answer is used only for a call with the same id, tool, arguments and tool definition.

    Attributes:
        name: Canonical name of the tool.
        arguments_digest: Identifies the arguments that the person saw.
        definition_digest: Identifies the tool's definition that the question was about.
        verdict: Make the call, do not make it, or make it with other arguments (`change`).
        arguments: The other arguments, for `change`.
        reason: Why the call is denied; sent to the model.
    """

    call_id: str
    name: str
    arguments_digest: str
    definition_digest: str
    verdict: Literal["approve", "deny", "change"]
    arguments: dict[str, object] | None = None
    reason: str = ""


class ApprovalQuestion(Struct, metaclass=ByName, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that is made only if a person approves it.

    Attributes:
        call_id: Id of the call in its turn.
        name: Canonical name of the tool.
        arguments: What the model wants to call the tool with; untrusted.
        reason: Why a person is asked; empty if a rule of the policy asks and gives no reason.
        description: The server's text about the tool; untrusted.
        input_schema: Schema of the arguments, for a person who changes them; untrusted. `None`: not recorded.
    """

    call_id: str
    name: str
    arguments: dict[str, object]
    arguments_digest: str
    definition_digest: str
    reason: str = ""
    description: str = ""
    input_schema: dict[str, object] | None = None

    def approve(self) -> ApprovalDecision:
        """Return the decision to make the call with the arguments in this question."""
        return self._decision(verdict="approve")

    def deny(self, reason: str = "") -> ApprovalDecision:
        """Return the decision not to make the call. The model is sent `reason`."""
        return self._decision(verdict="deny", reason=reason)

    def change(self, arguments: dict[str, object]) -> ApprovalDecision:
        """Return the decision to make the call with other arguments. The model is told these arguments.

        Arguments that do not fit `input_schema` are refused when the decision is used, not by this method.
        """
        return self._decision(verdict="change", arguments=arguments)

    def _decision(self, **answer: Any) -> ApprovalDecision:
        return ApprovalDecision(
            call_id=self.call_id,
            name=self.name,
            arguments_digest=self.arguments_digest,
            definition_digest=self.definition_digest,
            **answer,
        )


# --- The context window

SUMMARY_REQUEST = (
    "The conversation so far will be replaced by your summary of it. Write down what is needed to go on "
    "without it: the task, what has been done and found out, with names, numbers and ids as they were given, "
    "what failed, and what is left to do. Use at most {words} words. Call no tools."
)


_LOW_WATER = 0.6
_MOST_FOUND = 50


class ToolSearch(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True, omit_defaults=True):
    """If there are many tools, offer the model two tools instead, which find and call the others.

    These are `find_tools(query)` and `call_tool(name, arguments)`. The list of tools in the prompt stays the
    same, so prompt caches stay valid. Policies, approvals and records of calls show the tool that is called.

    Attributes:
        above: A whole number: the two tools are used if there are more tools than this. A share below 1: they
            are used if the definitions of all tools would fill more than this share of the context window. A
            window that is not known is taken to have 128,000 tokens.
        most: How many tools `find_tools` returns at most.
        always: Patterns of canonical names (`files.read`, `web.*`) of tools that are offered beside the two.

    Raises:
        MCPConfigError: A number is out of its range.
    """

    above: int | float = 40
    most: int = 5
    always: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, any_number=("above",))
        if not (self.above >= 1 and self.above % 1 == 0) and not 0 <= self.above < 1:
            given = shown(self.above)
            text = f"above is {given}; it must be a number of tools, or a share of the window below 1."
            raise MCPConfigError.of_value("ToolSearch", ("above",), text)
        if not 1 <= self.most <= _MOST_FOUND:
            text = f"most is {shown(self.most)}; it must be from 1 to {_MOST_FOUND}."
            raise MCPConfigError.of_value("ToolSearch", ("most",), text)


class ContextPolicy(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """How to keep a conversation within the model's context window.

    If a request would be larger than `high_water`, the oldest tool results, and the user texts that have a
    `TurnRequest.user_stub`, are replaced by short stubs, until the request is no larger than `low_water`. If
    that is not enough, the model may be asked for a summary, which replaces most of the history. A result
    that still does not fit is cut in the middle. The last reply and its results never become stubs.

    Attributes:
        window_tokens: The model's context window, in tokens; `None`: not known. Then nothing is cleared
            before the endpoint has refused a request as too long.
        reply_tokens: The part of the window that is reserved for the reply, but at most half the window.
        high_water: Clear if a request would fill more than this share of `window_tokens - reply_tokens`.
        low_water: Clear until the request fills at most this share of `window_tokens - reply_tokens`.
        max_summaries: The most summaries in one turn. Each is a request that the budget counts.
        summary_request: The text that asks for a summary; `{words}` is replaced by the summary's word limit.
        read_only: Patterns of canonical names (`files.*`) of tools that change nothing. Used only if the
            model cannot read cleared results by `read_result` (see `TurnLimits.long_results`). Then the stub
            of such a tool's result says that the tool can be called again; other stubs say that the call must
            not be repeated. A tool that is read-only by its definition in the tool lock needs no pattern.
        bytes_per_token: Used to estimate a text's tokens, until the endpoint's own counts correct it.

    Raises:
        MCPConfigError: A number is out of its range.
    """

    window_tokens: int | None = None
    reply_tokens: int = 2048
    high_water: float = 0.9
    low_water: float = _LOW_WATER
    max_summaries: int = 1
    summary_request: str = SUMMARY_REQUEST
    read_only: tuple[str, ...] = ()
    bytes_per_token: float = 3.0

    def __post_init__(self) -> None:
        check_settings(self, above_0=("window_tokens", "bytes_per_token"))
        if not 0 < self.low_water < self.high_water <= 1:
            wrong = "high_water" if self.low_water == _LOW_WATER else "low_water"
            text = f"low_water ({self.low_water:g}) must be above 0 and below high_water "
            text += f"({self.high_water:g}), which must be at most 1."
            raise MCPConfigError.of_value("ContextPolicy", (wrong,), text)
        if self.bytes_per_token >= 1000:
            text = f"bytes_per_token is {self.bytes_per_token:g}; it must be below 1000."
            raise MCPConfigError.of_value("ContextPolicy", ("bytes_per_token",), text)


class ContextItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The size of a part of a conversation, estimated unless the endpoint has `counted` the tokens."""

    tokens: int
    counted: bool = False
    call_id: str = ""  # set only for the result of a tool call
    tool: str = ""  # the called tool's canonical name; set only for the result of a tool call
    stub: str = ""  # a shorter text that replaces a user text when it is cleared; empty: it is never cleared

    @property
    def clearable(self) -> bool:
        """`True` if a stub can replace this part of the conversation."""
        return bool(self.call_id or self.stub)


class ContextOverflow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint's refusal of a request that is too long, with the sizes that the refusal names."""

    window_tokens: int | None = None
    prompt_tokens: int | None = None


# --- Limits, and what a turn does after a failure

STARTUP_TIMEOUT_S = 10.0
"""The default limit in seconds for starting a server, if its command does not have to download the server."""


class Budget(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How much may be spent on the model; `None`: no limit.

    A turn that reaches a limit requests the final answer, and ends even if that answer is not acceptable.

    Attributes:
        requests: Completions, including the forced final one, summaries and sampling. Retries do not count.
        tokens: Input and output tokens together.
        cost_usd: Sum of the costs that the endpoint reports, or that grue computes from a `Price`.
    """

    requests: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        check_settings(self)


class Batching(Struct, metaclass=ByName, frozen=True, kw_only=True):
    """Settings of turns whose requests are sent in a provider's batches: answered later, at a lower price.

    Attributes:
        folder: The folder for the stored requests, the batches' states and the turns' traces.
        most_items: The most requests of one batch; `None`: as many as the provider takes.
        first_look_s: Seconds between two polls of the batches, at first and after replies have come. Each
            further wait is 1.5 times as long, up to `look_every_s`.
        look_every_s: The longest wait between two polls, in seconds.
        patience_s: Give up when the provider has failed to answer for this many seconds. A later run with
            the same `folder` goes on with the batches.
        batch_timeout_s: Give up when a batch has not ended after this many seconds. Providers promise a day.
        retry_failed: Whether turns that failed in an earlier run are run again, from their beginning.
    """

    folder: str
    most_items: int | None = None
    first_look_s: float = 5.0
    look_every_s: float = 300.0
    patience_s: float = 3600.0
    batch_timeout_s: float = 259_200.0
    retry_failed: bool = False

    def __post_init__(self) -> None:
        check_settings(self, above_0=("most_items", "first_look_s", "look_every_s", "batch_timeout_s"))


TURN_TIMEOUT_S = 1800.0
"""Default of `turn_timeout_s`. Six tries of 120 s and the backoff between them take less (`RetryPolicy`)."""


_ABOVE_0 = ("tool_call_timeout_s", "server_startup_timeout_s", "turn_timeout_s", "startup_timeouts_s")


class TurnLimits(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True, gc=False):
    """How much a turn may use.

    Attributes:
        max_tool_iterations: After so many replies with tool calls the final answer is asked for; 0: no tools.
        tool_call_timeout_s: Time limit of each tool call.
        server_startup_timeout_s: Time limit for spawn, handshake and listing together. `None`: 10 s, and 60 s
            for a command such as `npx` that may have to download the server.
        startup_timeouts_s: By server name, limits that replace `server_startup_timeout_s`. For other servers,
            the runner adds the limits in the servers' own options.
        starts_at_once: How many servers that start at their first call (`when_called`) may start together.
        max_result_chars: Longest tool result that goes into the conversation. The trace keeps all of it.
        long_results: What the model gets of a longer result. `refer`: its beginning, its end, its size, and a
            handle with which the model can read the rest (`read_result`). `cut`: only its beginning; this
            always applies if `TurnRequest.json_results` is set.
        max_image_bytes: Largest image that is sent to the model; 0: no image is sent.
        max_media_bytes: Total size of the images, audio and files that are sent to the model in one turn; 0:
            nothing is sent. In place of what is too large in a tool result, the model gets a text with type
            and size. An image of the host that is too large raises `MCPError`.
        max_samplings: Requests that all servers together may make to the model (MCP sampling); 0: no request.
        turn_timeout_s: Time limit of the whole turn, including closing the sessions and waiting for a person;
            `None`: no limit.
        teardown_s: Seconds of `turn_timeout_s` that are reserved for closing the sessions of servers, at most
            half of it. `None`: a tenth of it, at most 0.5 s. Without `turn_timeout_s`: how many seconds a
            cancelled turn waits for its sessions to close; `None` is then 5 s.
        budget: Limits on requests, tokens and cost. A turn that reaches one has to give its final answer.

    Source: R13.1, R13.2, R13.3
    """

    max_tool_iterations: int = 20
    tool_call_timeout_s: float = 30.0
    server_startup_timeout_s: float | None = None
    max_result_chars: int = 20_000
    long_results: Literal["refer", "cut"] = "refer"
    max_image_bytes: int = 5 * 1024 * 1024
    max_media_bytes: int = 20 * 1024 * 1024
    max_samplings: int = 0
    turn_timeout_s: float | None = TURN_TIMEOUT_S
    teardown_s: float | None = None
    budget: Budget = Budget()
    startup_timeouts_s: dict[str, float] = {}
    starts_at_once: int = 8

    def __post_init__(self) -> None:
        check_settings(self, above_0=_ABOVE_0)

    def startup_timeout_s(self, server: str) -> float:
        """Return the limit in seconds for starting a server.

        The servers' own options and the 60 s for a download count only if they are in `startup_timeouts_s`.
        """
        common_s = self.server_startup_timeout_s
        return self.startup_timeouts_s.get(server, STARTUP_TIMEOUT_S if common_s is None else common_s)


Keep = Literal["nothing", "loop", "sessions"]
"""What stays open after a turn of a runner. `nothing`: all that it started has ended. `loop`: the event loop,
in a thread of its own, and the connections to the model. `sessions`: also the sessions with tool servers."""

StartWhen = Literal["before", "beside_if_locked", "beside", "when_called"]
"""When a server starts in a turn.

`before`: before the first request, which waits for the server's list of tools. `beside`: at the same time as
the first request, if the server's tools are known (from this runner, the trace that is resumed, the user's
cache or the tool lock), else as `before`. `beside_if_locked`: at the same time as the first request, if the
listing file of the tool lock has the server's tools, else as `before`. `when_called`: at the first call of
one of the server's tools, if the tools are known, else at the turn's start. If the first request has to wait
for one server's list of tools, it waits for those of all servers that start with the turn.
"""

StartAhead = Literal["after_turn", "beside_turn"]
"""When a server is started in advance for the next turn. `after_turn` (with `keep="loop"`): when this turn
has ended; in `Runner.map`, as `beside_turn`. `beside_turn` (with `keep="loop"`, or in `Runner.map`): while
this turn waits for its model, so perhaps before its calls have changed what the server reads at its start."""

DEFAULT_START: StartWhen = "beside_if_locked"

Start: TypeAlias = StartWhen | StartAhead | tuple[StartAhead, StartWhen]
"""When the servers of a runner start. A pair has two parts: when servers are started in advance for the next
turn, and when a server starts that was not started in advance."""


def starts_ahead(start: Start) -> bool:
    """Return whether servers are started in advance for the next turn."""
    words: tuple[str, ...] = start if isinstance(start, tuple) else (start,)
    return any(each in get_args(StartAhead) for each in words)


OnToolDrift = Literal["ignore", "report", "refuse"]
"""How to treat a tool that differs from the tool lock. Only `refuse` withholds it from the model."""

OnFirstConnect = Literal["raise", "disable"]
"""What follows a failed first connect: an error, or a turn without the server's tools."""


class FailurePolicy(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True, gc=False):
    """How a turn goes on after a failure.

    Attributes:
        first_connect: What follows if the first connect to a server in the episode, or in a resumed turn,
            fails. `raise`: the turn fails; a resumed turn that has made no call and got no reply stays
            parked. `disable`: the turn goes on without the server's tools.
        first_connects: By server name, values that apply instead of `first_connect`. The runner adds servers
            with the option `required` (`True`: `raise`, `False`: `disable`), and those that start when they
            are called (`disable`).
        connect_retries: Further attempts in a turn to connect to a server that was connected before, and that
            grue has not given up since.
        retry_disabled_s: For how many seconds grue does not connect to a server that it has given up. The
            next turn after that tries to connect once more; each time that fails, the wait doubles, up to 15
            minutes (or to this value, if it is larger). `None`: until the episode ends.
        after_timeout: When a call has timed out, what happens to the calls of the same reply that have not
            been sent. `skip`: they are not made. `continue`: they are made. `force`: they are not made, and
            the model is asked for its final answer.
        after_death: What follows if a server dies during a turn. `force`: the model is asked for its final
            answer. `reconnect`: grue connects to the server again, once in a turn, and only if
            `max_tool_iterations` is not reached; else as `force`.
        fallbacks_before_stop: `grue play` ends an episode after this many fallback answers in a row.
        on_tool_drift: What to do about a tool that differs from the tool lock, if any, or is not in it.

    Source: R6, R6.1, R6.5, R6.6, R6.7
    """

    first_connect: OnFirstConnect = "raise"
    connect_retries: int = 1
    retry_disabled_s: float | None = 30.0
    after_timeout: Literal["skip", "continue", "force"] = "skip"
    after_death: Literal["force", "reconnect"] = "force"
    fallbacks_before_stop: int = 3
    on_tool_drift: OnToolDrift = "report"
    first_connects: dict[str, OnFirstConnect] = {}

    def __post_init__(self) -> None:
        check_settings(self)

    def on_first_connect(self, server: str) -> OnFirstConnect:
        """Return the policy for a failed first connect to this server."""
        return self.first_connects.get(server, self.first_connect)


SupportCheck = Literal["skip", "beside", "before"]
"""When to check whether the model supports tools: never, while the sessions are being opened, or before."""
