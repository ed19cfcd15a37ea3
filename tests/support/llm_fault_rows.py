"""Rows of the fault matrix where the model's endpoint fails: it hangs, breaks off, or sends invalid replies.

A row is a list of replies and the expected outcome. The settings choose the wire format, and the request
whether the reply is streamed. `_in_format` and `_streamed` make the rows that every format has.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fault_turns import LIFETIMES, Fault, RowOutcome
from msgspec.structs import replace

from grue import messages as m
from grue.engine.runner import Runner, TurnRequest
from grue.errors import LLMError, MCPError
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.retry import RetryPolicy
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.llm_faults import (
    broken_off,
    compressed,
    dripping,
    empty,
    error_in_200,
    error_in_stream,
    garbage_in_stream,
    in_place_of_json,
    mistyped,
    rate_limited,
    redirect,
    reset,
    stalled,
    truncated,
    web_page,
)
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, error_reply, hang_up, silence, text_reply
from grue.transports.llm.endpoint import LlmSettings

GOOD_REPLY = text_reply("The lamp is lit, and it is a very good lamp indeed.")
KEY = "sk-made-up-for-the-fault-matrix"

PATIENT = RetryPolicy(max_retries=1, initial_delay_s=0.01, max_delay_s=0.05, jitter_factor=0, timeout_s=5)
HASTY = RetryPolicy(max_retries=1, initial_delay_s=0.01, max_delay_s=0.05, jitter_factor=0, timeout_s=0.5)
"""A short time limit, for replies that never end."""

_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_CLOSED_PORT = "http://127.0.0.1:1/v1"


def drive_llm_turn(fault: Fault) -> RowOutcome:
    """Run a turn without tools against an endpoint that sends the fault's replies.

    The outcome of a turn that fails is the error's name and kind. The notes are the kinds of the failures
    that were retried, the format of the requests, and `streamed` if they were streamed.
    """
    notes: set[str] = set()

    def keep(envelope: Envelope[Any], line: bytes) -> None:
        del line
        if isinstance(envelope.body, m.CompletionRetried):
            notes.add(envelope.body.failure.kind)

    recorder = Recorder()
    recorder.add(keep)
    asked = {"system": "Be brief.", "user": "Go on.", "turn_timeout_s": fault.turn_s, **fault.request}
    with ScriptedLlmServer(fault.replies) as llm:
        known = {"base_url": llm.base_url, "model": "scripted", "api_key": KEY, "retry": PATIENT}
        settings = LlmSettings(**{**known, **fault.settings})
        with Runner(llm=settings, recorder=recorder, **LIFETIMES[fault.mode]) as runner:
            try:
                answered = runner.run_turn(TurnRequest[str](**asked))
                outcome, text = str(answered.kind), answered.response
            except MCPError as error:
                outcome, text = _ended_by(error), str(error)
        for request in llm.requests:
            notes |= {request.dialect, *(["streamed"] if request.body.get("stream") else [])}
    return RowOutcome(outcome=outcome, text=text, notes=frozenset(notes))


def _ended_by(error: MCPError) -> str:
    if KEY in str(error):
        return "the error shows the key"
    return f"LLMError {error.kind}" if isinstance(error, LLMError) else type(error).__name__


def _llm(name: str, *replies: LlmReply, outcome: str = "answered", **more: Any) -> Fault:
    """Return a row whose endpoint sends these replies, one after the other."""
    said = more.pop("says", ("lamp",) if outcome == "answered" else ())
    return Fault(
        name=f"llm-{name}",
        replies=replies,
        outcome=outcome,
        says=said,
        drive=drive_llm_turn,
        modes=("turn", "episode"),
        **more,
    )


def _retried(name: str, reply: LlmReply, kind: str, **more: Any) -> Fault:
    """Return a row whose endpoint fails once and then answers: the failure of this kind is retried."""
    notes = frozenset([kind]) | more.pop("notes", frozenset())
    return _llm(f"{name}-once", reply, GOOD_REPLY, notes=notes, **more)


def _hangs(name: str, reply: LlmReply) -> Sequence[Fault]:
    """Return two rows whose endpoint sends a reply that never ends: once, and every time."""
    hasty = {"retry": HASTY}
    words = ("no complete reply within 0.5 s",)
    return (
        _retried(name, reply, "timed_out", settings=hasty),
        _llm(name, reply, reply, outcome="LLMError timed_out", settings=hasty, says=words),
    )


PLAIN: Sequence[Fault] = (
    _llm("well-behaved", GOOD_REPLY),
    _llm("wrong-content-type", mistyped(GOOD_REPLY)),
    _llm("slow-drip", dripping(GOOD_REPLY, size=16, every_s=0.01)),
    *_hangs("silent", silence()),
    *_hangs("stalls-in-body", stalled(GOOD_REPLY)),
    *_hangs("drips-for-ever", dripping(GOOD_REPLY, size=1, every_s=0.2)),
    _llm(
        "silent-beyond-the-turn",
        silence(),
        outcome="TurnTimedOut",
        settings={"retry": RetryPolicy(timeout_s=60)},
        turn_s=0.5,
        says=("0.5 s",),
        within_s=2.0,
    ),
    _llm(
        "nobody-listens",
        outcome="LLMError unreachable",
        settings={"base_url": _CLOSED_PORT},
        says=("cannot connect",),
        notes=frozenset(["unreachable"]),
    ),
    _retried("hangs-up", hang_up(), "unavailable"),
    _retried("breaks-off", broken_off(GOOD_REPLY), "unavailable"),
    _retried("resets", reset(), "unavailable"),
    _retried("resets-in-body", reset(GOOD_REPLY, after=0.5), "unavailable"),
    _llm("resets-always", reset(), reset(), outcome="LLMError unavailable", says=("the connection broke",)),
    _retried("truncated-json", truncated(GOOD_REPLY), "invalid_reply"),
    _llm("truncated-json", truncated(GOOD_REPLY), truncated(GOOD_REPLY), outcome="LLMError invalid_reply"),
    _retried("empty-body", empty(), "invalid_reply"),
    _llm(
        "compressed-again-and-again",
        *[compressed(GOOD_REPLY, stages=3)] * 2,
        outcome="LLMError invalid_reply",
        says=("compressed 3 times",),
    ),
    _llm("compressed", compressed(GOOD_REPLY)),
    _llm(
        "compressed-without-end",
        *[compressed(text_reply(" " * 20_000_000), stages=2)] * 2,
        outcome="LLMError invalid_reply",
        says=("the reply is longer than",),
    ),
    _retried("digits-without-end", in_place_of_json(b'{"choices": ' + b"9" * 5_000 + b"}"), "invalid_reply"),
    _retried("nested-without-end", in_place_of_json(b'{"error": ' + b"[" * 50_000), "invalid_reply"),
    _llm("web-page", web_page(), web_page(), outcome="LLMError invalid_reply", says=("base URL",)),
    _retried("bad-gateway-page", web_page(502), "unavailable"),
    _llm(
        "bad-gateway-page",
        *[web_page(502, "No upstream")] * 2,
        outcome="LLMError unavailable",
        says=("No upstream",),
    ),
    _retried("error-in-200", error_in_200("Upstream is down.", 502), "unavailable"),
    _llm(
        "no-credit-in-200",
        error_in_200("Insufficient credits.", 402),
        outcome="LLMError refused",
        says=("Insufficient credits.",),
    ),
    _retried("rate-limit", rate_limited(), "unavailable"),
    _retried("rate-limit-in-seconds", rate_limited(1), "unavailable"),
    _retried("rate-limit-by-date", rate_limited(_LONG_AGO), "unavailable"),
    _llm(
        "rate-limit-always",
        *[rate_limited(1)] * 2,
        outcome="LLMError unavailable",
        says=("Rate limit exceeded", "429"),
    ),
    _llm(
        "spending-limit",
        rate_limited(1, "You have reached your monthly spending limit."),
        outcome="LLMError refused",
        says=("spending limit", "credit"),
    ),
    _llm(
        "repeats-the-key",
        error_reply(401, f"Incorrect API key provided: {KEY}."),
        outcome="LLMError refused",
        says=("Incorrect API key provided: [redacted:api_key]",),
    ),
    _llm(
        "redirects",
        redirect("http://127.0.0.1:1/elsewhere"),
        outcome="LLMError refused",
        says=("redirects to http://127.0.0.1:1/elsewhere",),
    ),
)
"""Rows with chat completions that are not streamed. Failures are retried if that can help."""


def _in_format(wire: str) -> Sequence[Fault]:
    """Return rows in another wire format."""
    more: dict[str, Any] = {"settings": {"wire": wire}, "notes": frozenset([wire])}
    return (
        _llm(f"{wire}-well-behaved", GOOD_REPLY, **more),
        _retried(f"{wire}-resets-in-body", reset(GOOD_REPLY, after=0.5), "unavailable", **more),
        _retried(f"{wire}-truncated-json", truncated(GOOD_REPLY), "invalid_reply", **more),
        _retried(f"{wire}-error-in-200", error_in_200("Upstream is down."), "unavailable", **more),
        _retried(f"{wire}-rate-limit", rate_limited(1), "unavailable", **more),
        _llm(f"{wire}-web-page", web_page(), web_page(), outcome="LLMError invalid_reply", **more),
    )


def _streamed(wire: str) -> Sequence[Fault]:
    """Return rows with streams. After a failure the request is retried from the beginning."""
    live = {"request": {"on_delta": _ignore_delta}, "notes": frozenset([wire, "streamed"])}
    more: dict[str, Any] = {"settings": {"wire": wire}, **live}
    impatient = {**more, "settings": {"wire": wire, "retry": replace(PATIENT, idle_timeout_s=0.5)}}
    timed_out = {"outcome": "LLMError timed_out", **impatient}
    return (
        _llm(f"{wire}-stream-well-behaved", GOOD_REPLY, **more),
        _llm(f"{wire}-stream-drips", dripping(GOOD_REPLY, size=64, every_s=0.002), **more),
        _retried(f"{wire}-stream-with-garbage", garbage_in_stream(GOOD_REPLY), "damaged", **more),
        _llm(
            f"{wire}-stream-with-garbage",
            *[garbage_in_stream(GOOD_REPLY)] * 2,
            outcome="LLMError damaged",
            says=("the stream is damaged", "is not JSON"),
            **more,
        ),
        _retried(
            f"{wire}-stream-not-utf-8", garbage_in_stream(GOOD_REPLY, b"data: {\xe9}\n\n"), "damaged", **more
        ),
        _retried(f"{wire}-stream-stalls", stalled(GOOD_REPLY), "timed_out", **impatient),
        _llm(f"{wire}-stream-stalls", stalled(GOOD_REPLY), stalled(GOOD_REPLY), **timed_out),
        _retried(f"{wire}-stream-resets", reset(GOOD_REPLY, after=0.5), "unavailable", **more),
        _retried(f"{wire}-stream-ends-early", truncated(GOOD_REPLY), "unavailable", **more),
        _retried(f"{wire}-stream-error", error_in_stream(GOOD_REPLY), "unavailable", **more),
    )


def _ignore_delta(delta: m.TextDelta) -> None:
    """Do nothing: with a callback for deltas, replies are streamed."""
    del delta


LLM_FAULTS: Sequence[Fault] = (
    *PLAIN,
    *(row for wire in FORMATS if wire != "chat_completions" for row in _in_format(wire)),
    *(row for wire in FORMATS for row in _streamed(wire)),
)
"""All rows of this module."""
