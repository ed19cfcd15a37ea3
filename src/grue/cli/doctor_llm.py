"""The checks of `grue doctor` for the configured LLM endpoint: its list of models, and a few small turns.

The turns ask for a short reply, offer a tool, and want an answer with a schema. If the model does not call
the tool, the tokens of the prompt with and without the tool tell whether the endpoint passes tools on.
"""

import difflib
from collections.abc import Iterator
from typing import Any, Literal

import anyio
from msgspec import Struct, structs

from grue import messages as m
from grue.cli.project import project_tables
from grue.config.settings import GameConfiguration
from grue.config.wiring import llm_settings
from grue.engine.answers import AnswerSpec
from grue.engine.runner import Runner, TurnRequest
from grue.errors import AnswerError, LLMError, MCPConfigError, MCPError
from grue.policies import TurnLimits
from grue.protocol.answers import has_shape
from grue.protocol.chat_wire.failures import DOCTOR_CHECKS, Fault
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.protocol.chat_wire.profiles import find_model, read_models, rule_for
from grue.protocol.retry import RetryPolicy
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.function_tools import FunctionTools
from grue.tracing.facts import counted
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, key_names, needs_key
from grue.transports.llm.exchange import Answered

Verdict = Literal["ok", "note", "open", "WRONG"]


class Finding(Struct, frozen=True):
    """The result of one check. Only `WRONG` makes the exit status 1. `open`: the check could not decide."""

    verdict: Verdict
    text: str  # the first line says what was found, the further lines what to do
    lacking: str = ""  # what cannot be used because of the finding; empty: nothing


_SHORT, _ROOM = 16, 400
"""Limits of a reply, in tokens. `_SHORT` is the smallest limit that every endpoint accepts; `_ROOM` is enough
for a tool call or a JSON object."""

_PATIENCE_S = 30.0
_SYSTEM = "You are asked by a program that tries whether you can be reached. Be brief."
_TEXT = {"swatch": {"type": "string"}}
_SWATCH: m.JsonObject = {"type": "object", "properties": _TEXT, "required": ["swatch"]}
"""The schema of an answer. Only a model that gets the schema will write the property `swatch`."""

_SAY, _CALL, _NAME = "Say: ok.", "Call the thermometer, and say what it shows.", "Name a colour."
"""`_SAY` and `_CALL` differ in length, so an endpoint that really counts tokens reports different counts."""

_COUNTED = 5  # the least number of tokens that a tool's name and description add to a prompt
_TEMPLATE = """\
Use a chat template that has a place for tools: with llama.cpp's server --jinja, and --chat-template-file if
the model's own has none; with Ollama a model that is marked "tools"."""

_MOST_NAMED, _MOST_CHARS = 10, 1_000

_SHAPES = {"json_object": "JSON objects, but no schema", "none": "no shape at all"}


def look_at_llm(config: GameConfiguration, *, network: bool, named: bool) -> Iterator[Finding]:
    """Yield findings about the model and each fallback model. `named`: the user has chosen the endpoint."""
    try:
        settings = llm_settings(config)
        # Check each model without its fallback models (`then`), which could answer for a model that is down.
        chain = [LlmEndpoint(_patient(structs.replace(each, then=()))) for each in (settings, *settings.then)]
    except MCPConfigError as error:
        yield Finding("WRONG", str(error))
        return
    if not settings.api_key and not named:
        one = "grue doctor --base-url URL --model NAME checks one"
        yield Finding("note", f"No LLM is configured: {one}. grue play --offline works without one.")
        return
    for endpoint in chain:
        asked = endpoint.settings
        url = shown_endpoint(asked.base_url)
        if not asked.api_key and needs_key(asked.base_url):
            names = " or ".join(key_names(asked.base_url))
            yield Finding("WRONG", f"There is no key for {url}.\nSet {names} in the environment.")
        elif not network:
            yield Finding("ok", f"{asked.model} at {url}; not contacted, because of --no-network")
        else:
            yield from _asked(endpoint)


def names_an_endpoint(config: GameConfiguration) -> bool:
    """Return whether the project's table `llm` has any setting, or the endpoint is not the default one."""
    project = project_tables()
    other = config.client_base_url != GameConfiguration().client_base_url
    return other or bool(project and project.tables["llm"])


def _patient(settings: LlmSettings) -> LlmSettings:
    # To end soon, a check does not retry. A time limit that the project configures is kept.
    written = settings.retry.timeout_s != RetryPolicy().timeout_s
    limit = settings.retry.timeout_s if written else _PATIENCE_S
    retry = structs.replace(settings.retry, max_retries=0, timeout_s=limit, length_retry_factor=1.0)
    room = min(settings.max_tokens or _ROOM, _ROOM)
    return structs.replace(settings, retry=retry, max_tokens=room)


def _asked(endpoint: LlmEndpoint) -> Iterator[Finding]:
    answer = anyio.run(_models, endpoint)
    known = _model_list(endpoint, answer)
    if known.verdict == "WRONG":
        yield known
        return
    spoken = _Tried(_brief(endpoint), _SAY)
    told = _short_reply(endpoint, spoken)
    yield told
    if told.verdict == "WRONG":
        if known.verdict == "note":
            yield known
        return
    yield known
    yield _tools(endpoint, spoken)
    yield _shape(endpoint)


async def _models(endpoint: LlmEndpoint) -> Answered | Fault:
    async with endpoint:
        return await endpoint.models()


def _model_list(endpoint: LlmEndpoint, answer: Answered | Fault) -> Finding:
    model = endpoint.settings.model
    if isinstance(answer, Answered) and answer.status in (401, 403):
        answer = answer.fault
    if isinstance(answer, Fault) and answer.kind in ("unreachable", "refused"):
        failure = endpoint.describe(answer)
        what = "refuses the key" if answer.kind == "refused" else "cannot be reached"
        advice = f"{failure.remedy.removesuffix(DOCTOR_CHECKS)}\nUse --no-network to skip this check."
        return Finding("WRONG", f"{failure.endpoint} {what}: {failure.message}\n{advice}")
    models = read_models(answer.body) if isinstance(answer, Answered) else None
    if not models:
        return Finding("note", "It does not list its models.")
    if find_model(models, model):
        return Finding("ok", f"{model} is in its list of {counted(len(models), 'model')}")
    near = difflib.get_close_matches(model, models, n=3, cutoff=0.4)
    named = near or sorted(models)[:_MOST_NAMED]
    more = f" and {len(models) - len(named)} more" if not near and len(models) > len(named) else ""
    listed = printable(", ".join(named), _MOST_CHARS)
    advice = f"{'The nearest are' if near else 'It has'}: {listed}{more}"
    return Finding("note", f"{model} is not in its list of {counted(len(models), 'model')}.\n{advice}")


def _brief(endpoint: LlmEndpoint) -> LlmEndpoint:
    return LlmEndpoint(structs.replace(endpoint.settings, max_tokens=_SHORT))


def _short_reply(endpoint: LlmEndpoint, tried: "_Tried") -> Finding:
    settings = endpoint.settings
    wire = endpoint.profile.wire.replace("_", " ")
    where = f"{settings.model} at {shown_endpoint(settings.base_url)} ({wire})"
    if tried.failure is not None:
        return Finding("WRONG", f"{where} does not answer.\n{tried.failure}")
    return Finding("ok", f"{where}; a short reply takes {tried.replies[0].elapsed_s:.2f} s")


def _tools(endpoint: LlmEndpoint, spoken: "_Tried") -> Finding:
    tried = _Tried(endpoint, _CALL, tool=True)
    if tried.support is not None and not tried.support.supported:
        return Finding("note", f"Tools: no, {tried.support.reason}.\nA turn with tools ends with an error.")
    if tried.failure is not None:
        return _open_tools(endpoint, spoken, tried.failure)
    if not tried.replies[0].tool_calls and (counts := _left_out(endpoint, tried, spoken)):
        return _not_shown(counts)
    called = "it called one" if tried.replies[0].tool_calls else "they were accepted, but it did not call one"
    rule = rule_for(endpoint.settings.model)
    if rule is not None and not rule.supported:
        return Finding("note", f"Tools: {called}\nBy its name it would not support them: {rule.reason}.")
    return Finding("ok", f"Tools: {called}")


def _open_tools(endpoint: LlmEndpoint, spoken: "_Tried", failure: MCPError) -> Finding:
    # After a timeout try again: a short reply may come in time, and says how many tokens the prompt has.
    open_question = isinstance(failure, LLMError) and failure.kind == "timed_out"
    brief = _Tried(_brief(endpoint), _CALL, tool=True) if open_question else None
    counts = _left_out(endpoint, brief, spoken) if brief is not None and brief.replies else None
    if counts is not None:
        return _not_shown(counts)
    return Finding("open" if open_question else "note", f"Tools: {_in_a_word(failure)}.\n{failure}")


def _not_shown(counts: tuple[int, int]) -> Finding:
    said = f"The prompt has {counts[0]} tokens with a tool, and {counts[1]} without"
    text = f"Tools: the chat template leaves them out. {said}.\n{_TEMPLATE}"
    return Finding("note", text, lacking="tools, which the model does not see")


def _left_out(endpoint: LlmEndpoint, offered: "_Tried", spoken: "_Tried") -> tuple[int, int] | None:
    """If the model does not see an offered tool, return a prompt's tokens with the tool, and without it.

    `None`: the counts differ enough, so the model sees the tool; or the endpoint reports no count, or an
    equal count for two different prompts.
    """
    bare = _Tried(_brief(endpoint), _CALL)
    counts = [tried.replies[0].prompt_tokens if tried.replies else 0 for tried in (offered, bare, spoken)]
    with_tool, without, other = counts
    if not all(counts) or without == other or with_tool - without >= _COUNTED:
        return None
    return with_tool, without


def _shape(endpoint: LlmEndpoint) -> Finding:
    tried = _Tried(endpoint, _NAME, answer=AnswerSpec(_swatch, schema=_SWATCH))
    taken = _SHAPES.get(endpoint.profile.response_format)
    if tried.failure is not None and not tried.replies:
        return Finding("note", f"Structured output: {_in_a_word(tried.failure)}.\n{tried.failure}")
    if taken is not None:
        return Finding("note", f"Structured output: {taken}; the schema is put into the prompt instead.")
    if tried.replies[0].finish_reason == "length":
        cut = "unknown, since the reply was cut at its length limit"
        return Finding("note", f"Structured output: {cut}.\nRaise max_tokens, or have the model think less.")
    if not has_shape(_SWATCH, tried.replies[0].content or ""):
        told = has_shape(_SWATCH, tried.replies[-1].content or "")
        then = "told in the prompt, the model keeps to it" if told else "the model does not keep to it either"
        ignored = "the endpoint accepts a JSON schema and ignores it"
        return Finding("note", f"Structured output: {ignored}; {then}.")
    return Finding("ok", "Structured output: held to a JSON schema")


def _in_a_word(failure: MCPError) -> str:
    timed_out = isinstance(failure, LLMError) and failure.kind == "timed_out"
    return "unknown, since the reply took too long" if timed_out else "refused"


class _Tried:
    """Runs a small turn. Keeps the model's replies, and the turn's error unless it is an `AnswerError`."""

    def __init__(self, endpoint: LlmEndpoint, user: str, *, tool: bool = False, answer: Any = None) -> None:
        self.replies: list[m.CompletionReceived] = []
        self.support: m.ToolSupportChecked | None = None
        self.failure: MCPError | None = None
        recorder = Recorder()
        recorder.add(self._keep)
        servers = {"doctor": FunctionTools({"thermometer": _thermometer})} if tool else {}
        patience_s = max(_PATIENCE_S, endpoint.settings.retry.timeout_s)
        limits = TurnLimits(max_tool_iterations=1, turn_timeout_s=2 * patience_s)
        with Runner(llm=endpoint, servers=servers, limits=limits, recorder=recorder) as runner:
            try:
                runner.run_turn(TurnRequest(system=_SYSTEM, user=user, answer=answer))
            except (AnswerError, LLMError) as error:
                # An answer of the wrong form is no failure here: it shows that the model replies.
                self.failure = None if isinstance(error, AnswerError) else error
            except MCPError as error:
                self.failure = error

    def _keep(self, envelope: Envelope[Any], line: bytes) -> None:
        del line
        if isinstance(envelope.body, m.CompletionReceived):
            self.replies.append(envelope.body)
        elif isinstance(envelope.body, m.ToolSupportChecked):
            self.support = envelope.body


def _swatch(text: str) -> str:
    if not has_shape(_SWATCH, text):
        raise ValueError("it is not a JSON object of the form that was asked for")
    return text


def _thermometer() -> str:
    """A tool for the checks: return the temperature in the room."""
    return "21 degrees"
