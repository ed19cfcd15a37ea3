"""`grue trace to-test`: write a pytest file that runs a recorded turn again, with the recorded replies."""

import base64
import importlib
import logging
import re
import runpy
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from keyword import iskeyword
from pathlib import Path
from pprint import pformat
from types import FunctionType
from typing import Any

from msgspec import NODEFAULT, Struct, structs

import grue
from grue import errors
from grue import messages as m
from grue.cli.mock_server import importing_from_here
from grue.cli.saying import say, shown_argument, shown_path
from grue.engine.answers import unusable_answer
from grue.engine.conversations.recorded_conversation import said_before
from grue.engine.fork import RecordedRun, read_run
from grue.engine.tool_servers import usable_servers
from grue.errors import MCPConfigError, TraceError
from grue.policies import ApprovalDecision, FailurePolicy, ToolPolicy, TurnLimits
from grue.protocol.context.history import items_of
from grue.protocol.tool_loop import AGENT
from grue.protocol.tools.built_in import CALL_TOOL, READ_RESULT, find_tools
from grue.protocol.tools.calls import unlisted_tool
from grue.protocol.tools.names import split_known
from grue.runtime.files import os_errors_as, write_whole
from grue.runtime.safe_text import printable
from grue.runtime.secrets.redaction import Redaction
from grue.testing import decisions, llm_server
from grue.testing.decisions import arguments_of
from grue.tracing.message_words import failure_words

_SHORT = 300  # the most characters of a result that a test asserts, and of a printed error

_FIND_TOOLS, _READ_RESULT = find_tools(()).name, READ_RESULT.name
_NOT_AGAIN = ("timed_out", "died", "interrupted")
_SET_BY_THE_RUNNER = ("server_startup_timeout_s", "startup_timeouts_s", "teardown_s")


def to_test(
    file: Path,
    turn: int | None,
    tools: Sequence[str],
    out: Path | None,
    *,
    answer: str | None = None,
    run_once: bool = True,
) -> bool:
    """Write the test file, and run the test if `run_once`. Return `False` if the test has failed."""
    run = read_run(file, turn)
    fault = _not_again(run)
    if fault:
        raise MCPConfigError(f"Turn {run.begun.turn} cannot be told as a test: {fault}")
    named = _named(tools, run)
    spec = None if answer is None else _named_answer(answer)
    path = out or Path(f"test_{_word(run.episode)}_turn_{run.begun.turn}.py")
    if path.exists():
        raise MCPConfigError(f"{path} exists already. Remove it, or choose another name with --out.")
    try:
        images = [base64.b64decode(image.data) for image in run.begun.images]
    except ValueError as error:
        raise TraceError(f"An image of turn {run.begun.turn} in {file} is damaged: {error}.") from error
    source = "\n".join(_lines(run, named, spec, path)) + "\n"
    # Redact again, because the trace was redacted only with the secrets known when it was recorded.
    source = Redaction.of_environment().redact_text(source)
    with os_errors_as(MCPConfigError, f"write {path}", path=str(path)):
        for number, image in enumerate(images, start=1):
            _image(path, number).write_bytes(image)
        write_whole(path, source.encode())
    fault = _fault(path, run.begun.turn) if run_once else ""
    passes = ", and the test passes" if run_once and not fault else ""
    say(f"Wrote {shown_path(path)}{passes}. Run it with: python -m pytest {shown_argument(path)}")
    if fault:
        say(f"It does not pass now: {printable(fault, _SHORT)}", err=True)
    return not fault


def _fault(path: Path, turn: int) -> str:
    with ExitStack() as running:

        def scripted_llm(script: Any) -> Any:
            return running.enter_context(llm_server.ScriptedLlmServer(script, retry_after="0"))

        # The test has only the tools that were called, so do not log which patterns of the policy match none.
        logging.disable(logging.WARNING)
        running.callback(logging.disable, logging.NOTSET)
        running.enter_context(importing_from_here())
        try:
            runpy.run_path(str(path))[f"test_turn_{turn}"](scripted_llm)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - pytest.raises fails with a BaseException
            # An assertion may have no message: then report its line of code.
            line = traceback.extract_tb(error.__traceback__)[-1].line
            return f"{type(error).__name__}: {str(error) or line}"
    return ""


def _not_again(run: RecordedRun) -> str:
    end = _end(run)
    broken = next((call for call in _calls(run) if call.settlement in _NOT_AGAIN), None)
    if broken is not None:
        what = f"its call of {broken.name} {broken.settlement.replace('_', ' ')}"
        return f"{what}. The fixture faulty_mcp_server makes such faults."
    if run.begun.history is not None and _reads_earlier(_calls(run)):
        return "it reads a result of an earlier turn with read_result, and the test has only what was said."
    failed = [each.body.failure for each in run.envelopes if isinstance(each.body, m.CompletionFailed)]
    if failed:
        words = printable(failure_words(failed[0]).short, _SHORT)
        return f"its model failed ({words}). The fixture scripted_llm makes such faults, with error_reply."
    if end is None:
        return "it has no end. Choose a turn that was answered."
    if isinstance(end, m.TurnParked):
        return "it is parked. Resume it first, or choose another turn."
    if isinstance(end, m.TurnFailed):
        refused = isinstance(end.failure, m.NoAnswer) and not end.failure.stopped
        if not refused or run.begun.answer is None:
            words = printable(failure_words(end.failure).short, _SHORT)
            return f"it failed ({words}), and the replies of its model alone do not bring that about again."
    return ""


def _reads_earlier(calls: Sequence[m.ToolCallRecord]) -> bool:
    handles = {str(call.call_id) for call in calls}
    reads = (_given(each) for each in calls if each.name == _READ_RESULT and each.settlement == "returned")
    return any(isinstance(given, dict) and given.get("handle") not in handles for given in reads)


def _named(tools: Sequence[str], run: RecordedRun) -> dict[str, tuple[str, str]]:
    named: dict[str, tuple[str, str]] = {}
    for each in tools:
        server, sign, place = each.partition("=")
        found = _place(place)
        if not sign or found is None:
            raise MCPConfigError(f"--tools wants SERVER=MODULE:NAME, not {each!r:.80}.")
        if server not in run.begun.servers:
            known = ", ".join(run.begun.servers) or "none"
            raise MCPConfigError(f"The turn has no server {server!r:.80}. It has: {known}.")
        usable_servers({server: _imported(*found, f"--tools {each}")})
        named[server] = found
    return named


def _named_answer(place: str) -> tuple[str, str]:
    found = _place(place)
    if found is None:
        raise MCPConfigError(f"--answer wants MODULE:NAME, not {place!r:.80}.")
    fault = unusable_answer(_imported(*found, f"--answer {place}"))
    if fault:
        raise MCPConfigError(f"--answer {place}: {fault}.")
    return found


def _place(place: str) -> tuple[str, str] | None:
    module, colon, name = place.partition(":")
    usable = colon and name.isidentifier() and all(map(str.isidentifier, module.split(".")))
    return (module, name) if usable else None


def _imported(module: str, name: str, what: str) -> Any:
    try:
        with importing_from_here():
            return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise MCPConfigError(f"{what}: {printable(str(error), _SHORT)}.") from error
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {printable(str(error), _SHORT)}"
        raise MCPConfigError(f"{what}: the module cannot be imported from this folder: {cause}.") from error


def _word(text: str) -> str:
    return "".join(each if each.isalnum() and each.isascii() else "_" for each in text)[:60] or "episode"


def _image(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}_image_{number}")


def _lines(
    run: RecordedRun, named: dict[str, tuple[str, str]], spec: tuple[str, str] | None, path: Path
) -> Iterator[str]:
    begun, end = run.begun, _end(run)
    places = sorted({*named.values(), *([spec] if spec else ())})
    mine = _names_of(places)
    tools = {server: mine[place] for server, place in named.items()}
    body = [*_body(run, tools, mine[spec] if spec else "", path)]
    used = set(re.findall(r"\b[A-Za-z]\w+", "\n".join(body)))
    marks = any(line.startswith("@tool(") for line in body)
    yield f'"""Turn {begun.turn} of {_word(run.episode)}, as it was recorded: it {_ended(end)}.'
    yield from ("", *_ABOUT, '"""', "")
    if "Path" in used:
        yield "from pathlib import Path"
    yield "from typing import Any"
    if "ANY" in used:
        yield "from unittest.mock import ANY"
    yield ""
    if "pytest" in used:
        yield from ("import pytest", "")
    for module in sorted({module for module, _ in places}):
        own = [(name, mine[here, name]) for here, name in places if here == module]
        imported = (name if name == known else f"{name} as {known}" for name, known in own)
        yield f"from {module} import {', '.join(imported)}"
    for package in _PACKAGES:
        names = sorted(used & {*_names(package)} | ({"tool"} if package is grue and marks else set()))
        used -= {*names}
        if names:
            yield f"from {package.__name__} import {', '.join(names)}"
    yield ""
    yield from body


_ABOUT = (
    "The model says what it said then. The tools run, and so do their policy and limits. This file asks, and",
    "not your code: a change of your prompt, your limits or your function is not seen here. To test those",
    "too, let your function take the model's settings, and call it in place of `runner.run_turn(request)`:",
    "",
    "    outcome = my_agent.decide(USER, llm=llm)",
    "",
    "A scripted model says the same whatever it is asked, so for your prompt look at what it was sent, too.",
)
_PACKAGES = (grue, errors, m, decisions, llm_server)

# Names that a written test may use, besides those that `_names` returns.
_OWN = re.findall(
    r"\w+",
    "SYSTEM USER REPLIES HISTORY APPROVED CHANGED ANSWERS REFUSED RECORDED MADE recorded recorded_answer"
    " servers scripted_llm llm request runner outcome cut tool Any ANY Path pytest",
)


def _names_of(places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    used = {*_OWN, *(name for package in _PACKAGES for name in _names(package))}
    names: dict[tuple[str, str], str] = {}
    for place in places:
        names[place] = _unused(place[1], used)
        used.add(names[place])
    return names


def _names(module: Any) -> list[str]:
    # The test imports each of these names that occurs in its text. So leave out `tool`, a frequent word.
    listed: list[str] = dir(module) if module is m else getattr(module, "__all__", None) or dir(module)
    own = [each for each in listed if isinstance(getattr(module, each), type | FunctionType)]
    return [each for each in own if getattr(module, each).__module__.startswith("grue.") and each != "tool"]


def _ended(end: m.TurnEnd | None) -> str:
    match end:
        case m.TurnCompleted(kind="fallback"):
            return "had no usable answer, and got the fallback"
        case m.TurnCompleted(kind=kind, reason=reason):
            return "was answered" if kind == "answered" else f"was {kind} ({_word(reason)})"
        case _:
            return "failed"


def _body(run: RecordedRun, named: dict[str, str], spec: str, path: Path) -> Iterator[str]:
    history = _history(run)
    answer = spec or _recorded_spec(run)
    yield f"SYSTEM = {_text(run.begun.system)}"
    yield f"USER = {_text(run.begun.user)}"
    yield from _replies(run)
    if history:
        yield f"HISTORY = {_literal(history)}"
    decided = [*_decided(run)]
    if decided:
        yield f"APPROVED = {[each.call_id for each in decided if each.verdict == 'approve']!r}"
    changed = {each.call_id: each.arguments for each in decided if each.verdict == "change"}
    if changed:
        yield f"CHANGED: dict[str, Any] = {_literal(changed)}"
    if answer and not spec:
        yield from _readings(run)
    yield from _servers(run, named)
    yield from _test(run, path, answer, history=bool(history), named=named)


def _recorded_spec(run: RecordedRun) -> str:
    """Return Python source of an `AnswerSpec`; empty: it would only accept each text as it is."""
    form, fallback = run.begun.answer, run.begun.fallback
    answers, refused = _read(run)
    as_written = not refused and all(text == found for text, found in answers.items())
    if form is None and fallback is None and as_written:
        return ""
    parts = ["recorded_answer"]
    if form is not None:
        parts += [f"schema={_literal(form.schema)}", f"name={form.name!r}"]
    if fallback is not None:
        parts.append(f"fallback={_literal(fallback)}")
    return f"AnswerSpec({', '.join(parts)})"


def _read(run: RecordedRun) -> tuple[dict[str, object], dict[str, str]]:
    """Return the answer for each accepted text of the model, and the reason for each refused text."""
    answers: dict[str, object] = {}
    refused: dict[str, str] = {}
    text = ""
    for envelope in run.envelopes:
        match envelope.body:
            case m.CheckAnswer(content=text):
                pass
            case m.AnswerAccepted(answer=answer):
                answers[text] = answer
            case m.AnswerRefused(reason=reason):
                refused[text] = reason
    return answers, refused


def _readings(run: RecordedRun) -> Iterator[str]:
    answers, refused = _read(run)
    yield f"ANSWERS: dict[str, Any] = {_literal(answers)}"
    yield f"REFUSED: dict[str, str] = {_literal(refused)}"
    yield from ("", "", "def recorded_answer(text: str) -> Any:")
    yield '    """Read an answer as recorded; `to-test --answer MODULE:NAME` has your own type instead."""'
    yield "    if text not in ANSWERS:"
    yield "        raise ValueError(REFUSED.get(text, 'it is not a recorded answer'))"
    yield "    return ANSWERS[text]"


def _text(text: str) -> str:
    shown = pformat(text, width=100)
    return shown if len(shown) < 90 or not shown.startswith("(") else "(\n " + shown[1:-1] + "\n)"


def _replies(run: RecordedRun) -> Iterator[str]:
    replies: dict[int, m.CompletionReceived] = {}
    for envelope in run.envelopes:
        match envelope.body:
            case m.CompletionReceived() as reply if envelope.receiver == AGENT:
                replies[reply.request] = reply
            case m.ReplyDropped(request=request):
                # The test drops no reply: its servers list their tools before the request.
                replies.pop(request, None)
    yield "REPLIES = ["
    for reply in replies.values():
        if not reply.tool_calls:
            early = reply.finish_reason not in (None, "stop", "tool_calls")
            ended = f", finish_reason={reply.finish_reason!r}" if early else ""
            yield f"    text_reply({reply.content or ''!r}{ended}),"
            continue
        yield "    tool_calls_reply("
        for call in reply.tool_calls:
            yield f"        ({call.name!r}, {_literal(arguments_of(call))}),"
        if reply.content:
            yield f"        content={reply.content!r},"
        yield f"        ids={[str(call.call_id) for call in reply.tool_calls]!r},"
        yield "    ),"
    yield "]"


def _servers(run: RecordedRun, named: dict[str, str]) -> Iterator[str]:
    end, calls = _end(run), _calls(run)
    listed = [each for each in _listed(run) if each.server not in named]
    tools = [each for each in listed if any(call.name == each.name for call in calls)]
    forced = isinstance(end, m.TurnCompleted) and end.kind == "forced"
    if (calls or forced) and not tools and not named:
        # Offer one: a turn without tools makes no calls, and after an empty reply it forces no final answer.
        tools = listed[:1]
    by_function = [each for each in tools if not _takes_more(each, calls)]
    functions = _functions(tools)
    if tools:
        yield "RECORDED: list[tuple[str, Any, Any]] = ["
        for call in calls:
            if call.name in functions and (call.settlement == "returned" or _was_misfit(call)):
                error = f"RuntimeError({call.result.error_message!r})" if call.result.is_error else ""
                result = error or _literal(call.result.content)
                yield f"    ({call.name!r}, {_literal(_sent(call))}, {result}),"
        yield from _RECORDED
    for tool in by_function:
        yield from _stand_in(tool, functions[tool.name], run)
    yield from ("", "", "def servers() -> dict[str, Any]:")
    if tools:
        yield '    """Return the tools. Those called recorded_... stand for your own: put yours there."""'
        yield "    MADE.clear()"
    yield "    return {"
    for server in run.begun.servers:
        if server in named:
            yield f"        {server!r}: {named[server]},"
            continue
        mine = [each for each in tools if each.server == server]
        own = [each for each in mine if each in by_function]
        by_name = ", ".join(f"{each.tool!r}: {functions[each.name]}" for each in own)
        if own == mine:
            yield f"        {server!r}: FunctionTools({{{by_name}}}),"
            continue
        yield f"        {server!r}: FunctionTools("
        yield f"            {{{by_name}}},"
        yield f"            catch_all=lambda name, arguments: recorded({f'{server}.'!r} + name, **arguments),"
        yield "        ),"
    yield "    }"


_RECORDED = (
    "]",
    "MADE: list[Any] = []",
    "",
    "",
    "def recorded(name: str, /, **arguments: Any) -> Any:",
    '    """Return the recorded result of a call. The same call again gets its next result."""',
    "    given = (name, {key: value for key, value in arguments.items() if value is not None})",
    "    results = [each for *asked, each in RECORDED if tuple(asked) == given]",
    "    MADE.append(given)",
    "    result = results[min(MADE.count(given), len(results)) - 1]",
    "    if isinstance(result, Exception):",
    "        raise result",
    "    return result",
)


def _was_misfit(call: m.ToolCallRecord) -> bool:
    """Return whether a call with an object as arguments was rejected. A stand-in may accept such a call."""
    return call.settlement == "rejected" and isinstance(_given(call), dict)


def _given(call: m.ToolCallRecord) -> object:
    return arguments_of(call) if call.changed_arguments is None else call.changed_arguments


def _sent(call: m.ToolCallRecord) -> object:
    sent = _given(call)
    if not isinstance(sent, dict):
        return sent
    # The test's functions get `None` for an absent argument. Leave out `None`, as `recorded` does.
    return {key: value for key, value in sent.items() if value is not None}


def _parameters(tool: m.ToolDefinition) -> list[str]:
    properties: Any = tool.input_schema.get("properties") or {}
    usable = (name for name in properties if name.isidentifier() and not iskeyword(name))
    return [name for name in usable if not name.startswith("__") and name != "recorded"]


def _takes_more(tool: m.ToolDefinition, calls: Sequence[m.ToolCallRecord]) -> bool:
    """Return whether a call that returned has an argument for which `_parameters` has no parameter."""
    names = {*_parameters(tool)}
    return any(not names.issuperset(given) for given in _returned(tool, calls))


def _returned(tool: m.ToolDefinition, calls: Sequence[m.ToolCallRecord]) -> list[dict[str, object]]:
    returned = (_given(each) for each in calls if each.name == tool.name and each.settlement == "returned")
    return [given for given in returned if isinstance(given, dict)]


def _stand_in(tool: m.ToolDefinition, function: str, run: RecordedRun) -> Iterator[str]:
    names = _parameters(tool)
    wanted: Any = tool.input_schema.get("required") or []
    # A server need not check what its schema requires.
    given = _returned(tool, _calls(run))
    required = [name for name in wanted if all(name in each for each in given)]
    ordered = sorted(names, key=lambda name: name not in required)
    parameters = ", ".join(f"{name}: Any" + ("" if name in required else " = None") for name in ordered)
    passed = "".join(f", {name}={name}" for name in ordered)
    yield from ("", "")
    # A policy trusts the annotations of functions. So copy only those that the recorded turn trusted.
    if tool.annotations is not None and (tool.trusted or tool.server in run.begun.tool_policy.trusted):
        yield f"@tool(annotations={_literal(tool.annotations)})"
    yield f"def {function}({parameters}) -> Any:"
    yield f"    return recorded({tool.name!r}{passed})"


def _functions(tools: Sequence[m.ToolDefinition]) -> dict[str, str]:
    # The names differ, even if `_word` returns the same text for two tools.
    functions: dict[str, str] = {}
    for tool in tools:
        functions[tool.name] = _unused(f"recorded_{_word(tool.name).lower()}", functions.values())
    return functions


def _unused(name: str, used: Collection[str]) -> str:
    free = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(each for each in free if each not in used)


def _decided(run: RecordedRun) -> Iterator[ApprovalDecision]:
    for envelope in run.envelopes:
        match envelope.body:
            case m.CallsDecided(decisions=answers):
                yield from answers
            case m.RunTurn(resumed=m.Resumption(decisions=answers)):
                yield from answers


def _test(
    run: RecordedRun, path: Path, answer: str, *, history: bool, named: Collection[str]
) -> Iterator[str]:
    begun, end = run.begun, _end(run)
    stood_in = any(server not in named for server in begun.servers)
    stand_ins = {each.name for each in _listed(run) if each.server not in named}
    yield from ("", "", f"def test_turn_{begun.turn}(scripted_llm: Any) -> None:")
    yield "    llm = scripted_llm(REPLIES).settings"
    yield "    request: Any = TurnRequest(\n        user=USER,\n        system=SYSTEM,"
    if answer:
        yield f"        answer={answer},"
    if begun.images:
        names = [_image(path, number + 1).name for number in range(len(begun.images))]
        yield f"        images=[Path(__file__).with_name(name) for name in {names!r}],"
    if history:
        yield "        history=HISTORY,"
    if not begun.plain_results:
        yield "        json_results=True,"
    if begun.tools is not None:
        yield f"        tools={begun.tools!r},"
    yield "    )\n    runner = Runner(\n        llm=llm,\n        servers=servers(),"
    yield from _settings(run, stood_in=stood_in)
    yield "    )"
    if isinstance(end, m.TurnCompleted):
        yield "    with runner:\n        outcome = runner.run_turn(request)"
        yield "    assert_calls(\n        outcome,"
        for call in end.tool_calls:
            shown = _called(
                call, asserted=not stood_in or call.name != _FIND_TOOLS, by_stand_in=call.name in stand_ins
            )
            yield f"        {shown},"
        yield "    )"
        fallback = ", fallback=True" if end.kind == "fallback" else ""
        yield f"    assert_answer(outcome, {_literal(end.answer)}{fallback})"
        # `degraded` is not asserted: in the test all servers start.
        if end.kind in {"answered", "forced"}:
            yield f"    assert outcome.kind == {end.kind!r}, outcome.reason"
        yield from _cuts(run, end)
        return
    yield "    with runner, pytest.raises(AnswerError):\n        runner.run_turn(request)"


def _cuts(run: RecordedRun, end: m.TurnCompleted) -> Iterator[str]:
    # If the limits on the length of results are not the default limits, assert which results were cut.
    usual, limits = TurnLimits(), run.begun.limits
    if (limits.max_result_chars, limits.long_results) == (usual.max_result_chars, usual.long_results):
        return
    asked = [each.body for each in run.envelopes if isinstance(each.body, m.RequestCompletion)]
    told = [item for each in asked for item in each.new if isinstance(item, m.ToolMessage)]
    if told and len(told) == len(end.tool_calls):
        yield "    cut = [each.whole_chars > 0 for each in outcome.said if isinstance(each, ToolMessage)]"
        cut = [each.whole_chars > 0 for each in told]
        yield f"    assert cut == {cut!r}, 'which results the model read cut'"


def _settings(run: RecordedRun, *, stood_in: bool) -> Iterator[str]:
    begun = run.begun
    search = begun.tool_search
    if search is not None and stood_in and _has_searched(run):
        # The test has only the tools that were called, maybe too few to switch the search on: always search.
        search = structs.replace(search, above=0)
    usual_limits = {name: getattr(TurnLimits(), name) for name in _SET_BY_THE_RUNNER}
    limits = structs.replace(begun.limits, **usual_limits)
    rules: Any = structs.replace(begun.tool_policy, parking=False, trusted=())
    for name, value, usual in (
        ("limits", limits, TurnLimits()),
        ("policy", begun.policy, FailurePolicy()),
        ("tool_policy", rules, ToolPolicy()),
        ("context", begun.context, None),
        ("tool_search", search, None),
    ):
        if value != usual:
            yield f"        {name}={_literal(value)},"
    if [*_decided(run)]:
        yield "        approve=lambda questions: ["
        if any(each.verdict == "change" for each in _decided(run)):
            yield "            each.change(CHANGED[each.call_id]) if each.call_id in CHANGED else"
        yield "            each.approve() if each.call_id in APPROVED else each.deny() for each in questions"
        yield "        ],"


def _has_searched(run: RecordedRun) -> bool:
    replies = (each.body for each in run.envelopes if isinstance(each.body, m.CompletionReceived))
    return any(call.name in (_FIND_TOOLS, CALL_TOOL.name) for reply in replies for call in reply.tool_calls)


def _called(call: m.ToolCallRecord, *, asserted: bool, by_stand_in: bool) -> str:
    parts = [repr(call.name), _literal(arguments_of(call))]
    if by_stand_in and _was_misfit(call):
        parts.append("settlement=ANY")
    elif call.settlement != "returned":
        parts.append(f"settlement={call.settlement!r}")
    elif asserted and not call.result.is_error and len(_literal(call.result.content)) <= _SHORT:
        parts.append(f"result={_literal(call.result.content)}")
    return f"Called({', '.join(parts)})"


def _end(run: RecordedRun) -> m.TurnEnd | None:
    ends = [each.body for each in run.envelopes if isinstance(each.body, m.TurnEnd)]
    return ends[-1] if ends else None


def _calls(run: RecordedRun) -> tuple[m.ToolCallRecord, ...]:
    end = _end(run)
    return end.tool_calls if end is not None else ()


def _listed(run: RecordedRun) -> list[m.ToolDefinition]:
    listed: dict[str, m.ToolDefinition] = {}
    for envelope in run.envelopes:
        if isinstance(envelope.body, m.SessionOpened | m.ToolsChanged):
            listed |= {tool.name: tool for tool in envelope.body.tools}
    for call in _calls(run):  # the server may take calls of tools that it does not list
        found = split_known(call.name, run.begun.servers) if call.settlement == "returned" else None
        if found is not None:
            listed.setdefault(call.name, unlisted_tool(m.ServerName(found[0]), found[1]))
    return [tool for server in run.begun.servers for tool in listed.values() if tool.server == server]


def _history(run: RecordedRun) -> list[Any]:
    past = run.begun.history
    if past is None or not past.length:
        return []
    history = said_before(run.path, (*run.earlier, run.envelopes[0]), past.conversation).history
    kinds = m.UserText | m.AssistantReply | m.ToolMessage
    return [
        structs.replace(each, echo=None) if isinstance(each, m.AssistantReply) else each
        for each in items_of(history.entries)
        if isinstance(each, kinds)
    ]


def _literal(value: Any) -> str:
    if isinstance(value, Struct):
        shown = [
            f"{field.name}={_literal(getattr(value, field.name))}"
            for field in structs.fields(value)
            if field.default is NODEFAULT or getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, list | tuple) and any(isinstance(each, Struct) for each in value):
        parts = "".join(f"{_literal(each)}, " for each in value)
        return f"[{parts}]" if isinstance(value, list) else f"({parts})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(each)}" for key, each in value.items()) + "}"
    return repr(value)
