"""Whatever the host's code raises reaches the caller as one exception: typed, or itself, never a group."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fault_turns import Mode
from rows import first_of
from worded_turns import WordedModel, ask

from grue import AnswerSpec, FunctionTools, Recorder, Runner, StdioServer, TurnOutcome, TurnRequest
from grue.errors import ActorCrashed, AnswerError
from grue.hosting import LoggerObserver
from grue.messages import CompletionReceived, RunTurn, SessionOpened
from grue.runtime.actor import ActorFailed
from grue.testing import faulty_server
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import ScriptedLlmServer, tool_calls_reply

# --- What is raised, and what comes of it ---


class Own(BaseException):
    """What a host may use to leave its program; pytest's own outcomes are of this kind."""


LEAVING: dict[str, tuple[BaseException, type[BaseException]]] = {
    "KeyboardInterrupt": (KeyboardInterrupt("own"), KeyboardInterrupt),
    "SystemExit": (SystemExit(3), SystemExit),
    "another BaseException": (Own("own"), Own),
    "a group with one in it": (
        BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()]),
        KeyboardInterrupt,
    ),
}
CRASHES: dict[str, BaseException] = {
    "ExceptionGroup": ExceptionGroup("g", [ValueError(), KeyError()]),
    "CancelledError": asyncio.CancelledError(),
    "GeneratorExit": GeneratorExit(),
    "TimeoutError": TimeoutError("not the model's"),
    "httpx.ReadError": httpx.ReadError("not the model's"),
    "OSError": OSError(24, "Too many open files"),
    "MemoryError": MemoryError(),
    "RecursionError": RecursionError(),
}
# The host's own error, and not the one that Python raises in place of a StopIteration.
CRASHES["RuntimeError"] = RuntimeError("no row")
CRASHES["RuntimeError"].__cause__ = StopIteration()
# Python raises a RuntimeError in place of this one if it leaves a coroutine.
STOPPED = StopIteration("next() of an empty iterator")
# Text that a model made up can lead to these in a check that is sound: they refuse the answer.
UNREADABLE = ("MemoryError", "RecursionError")

# --- Where ---


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def watched(error: BaseException, at: type[Any] = CompletionReceived) -> Recorder:
    recorder = Recorder()

    def fail(envelope: Any, _line: bytes) -> None:
        if isinstance(envelope.body, at):
            raise error

    recorder.add(fail)
    return recorder


CALLBACKS: dict[str, Callable[[BaseException], tuple[dict[str, Any], dict[str, Any]]]] = {
    "check": lambda error: ({}, {"answer": AnswerSpec(raising(error))}),
    "on_delta": lambda error: ({}, {"on_delta": raising(error)}),
    "observer": lambda error: ({"recorder": watched(error)}, {}),
    "server": lambda error: ({"servers": {"f": raising(error)}}, {}),
}


def functions(error: BaseException) -> dict[str, Callable[[], Any]]:
    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    return {"at_once": lambda: raising(error)(), "later": later}


def run(runner: Runner, request: TurnRequest[Any]) -> TurnOutcome[Any]:
    return runner.run_turn(request)


def start(runner: Runner, request: TurnRequest[Any]) -> TurnOutcome[Any]:
    return runner.start_turn(request).result(60)


def map_one(runner: Runner, request: TurnRequest[Any]) -> TurnOutcome[Any]:
    (item,) = runner.map([request])
    if item.error is not None:
        raise item.error
    return item.outcome  # type: ignore[return-value]


def run_async(runner: Runner, request: TurnRequest[Any]) -> TurnOutcome[Any]:
    return asyncio.run(runner.run_turn_async(request))


WAYS = [run, start, map_one, run_async]


@pytest.mark.parametrize("way", first_of(WAYS, keep=2))
@pytest.mark.parametrize("kind", LEAVING)
def test_what_is_to_end_the_program_is_raised_itself(
    model: WordedModel, mode: Mode, kind: str, way: Callable[..., Any]
) -> None:
    error, expected = LEAVING[kind]
    for make in CALLBACKS.values():
        options, request = make(error)
        with model.runner(mode, **options) as runner, pytest.raises(expected):
            way(runner, ask(**request))
    if expected is not SystemExit:
        for name in functions(error):
            with model.runner(mode, servers={"f": FunctionTools(functions(error))}) as runner:
                with pytest.raises(expected):
                    way(runner, ask(f"call f.{name}"))
                assert way(runner, ask()).response == "done", "what it interrupted is cleaned up"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("own")])
def test_what_is_to_end_the_program_is_raised_itself_while_a_server_process_is_open(
    model: WordedModel, error: BaseException
) -> None:
    command, *args = faulty_server.argv()
    recorder = watched(error, SessionOpened)
    servers = {"faulty": StdioServer(command=command, args=tuple(args))}
    with (
        model.runner("turn", servers=servers, recorder=recorder) as runner,
        pytest.raises(type(error)) as left,
    ):
        runner.run_turn(ask())
    assert left.value is error


@pytest.mark.parametrize("error", [SystemExit(3), LookupError("boom"), asyncio.CancelledError()])
def test_an_observer_that_fails_at_the_first_message_is_one_as_at_any_other(
    model: WordedModel, error: BaseException
) -> None:
    expected = SystemExit if isinstance(error, SystemExit) else ActorCrashed
    with model.runner("turn", recorder=watched(error, RunTurn)) as runner, pytest.raises(expected) as left:
        runner.run_turn(ask())
    assert error in (left.value, left.value.__cause__)


@pytest.mark.parametrize("way", first_of(WAYS))
@pytest.mark.parametrize("kind", [*CRASHES, "StopIteration"])
def test_everything_else_is_a_crash_with_its_cause(
    model: WordedModel, mode: Mode, kind: str, way: Callable[..., Any]
) -> None:
    error = CRASHES.get(kind, STOPPED)
    for name, make in CALLBACKS.items():
        if name == "check" and kind in UNREADABLE:
            continue
        options, request = make(error)
        notes: list[Any] = []
        with model.runner(mode, **options) as runner:
            runner.recorder.add(lambda envelope, _, notes=notes: notes.append(envelope.body))
            with pytest.raises(ActorCrashed) as crash:
                way(runner, ask(**request))
        assert crash.value.__cause__ is error, name
        assert "Your own code raised it, in " in str(crash.value)
        assert any(isinstance(note, ActorFailed) for note in notes)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_check_that_a_text_is_too_much_for_refuses_the_answer(
    model: WordedModel, mode: Mode, kind: str
) -> None:
    with model.runner(mode) as runner, pytest.raises(AnswerError, match=kind):
        runner.run_turn(ask(answer=AnswerSpec(raising(CRASHES[kind]))))


@pytest.mark.parametrize("kind", CRASHES)
def test_what_a_function_raises_otherwise_is_its_result(model: WordedModel, mode: Mode, kind: str) -> None:
    error = CRASHES[kind]
    with model.runner(mode, servers={"f": FunctionTools(functions(error))}) as runner:
        for name in functions(error):
            outcome = runner.run_turn(ask(f"call f.{name}"))
            assert outcome.response == "done"
            message = outcome.tool_calls[0].result.error_message or ""
            assert message.startswith(f"Tool call failed: {type(error).__name__}: ")


def test_the_rest_of_a_batch_ends_with_what_is_to_end_the_program(model: WordedModel) -> None:
    requests = [ask(), ask(on_delta=raising(KeyboardInterrupt())), *[ask("wait")] * 4]
    with model.runner("turn") as runner:
        items = runner.map(requests, concurrency=6)
        assert next(items).error is None
        with pytest.raises(KeyboardInterrupt):
            next(items)
        assert list(items) == []


def boom(*_: Any) -> Any:
    raise LookupError("boom")


@pytest.mark.parametrize(
    ("whose", "request_"),
    [
        ("on_delta", {"on_delta": boom}),
        ("the check of the answer", {"answer": AnswerSpec(boom)}),
        ("the observer seen", {}),
        ("the server boom", {"servers": {"f": boom}}),
    ],
    ids=["on_delta", "check", "observer", "server"],
)
def test_a_crash_says_which_code_of_the_host_raised(
    model: WordedModel, whose: str, request_: dict[str, Any]
) -> None:
    servers = {name: request_[name] for name in ("servers",) if name in request_}
    asked = {name: value for name, value in request_.items() if name not in servers}
    notes: list[ActorFailed] = []

    def observe(envelope: Any, line: bytes) -> None:
        if isinstance(envelope.body, ActorFailed):
            notes.append(envelope.body)
        if not request_ and isinstance(envelope.body, CompletionReceived):
            boom()

    observe.__qualname__ = "seen"
    with model.runner("turn", **servers) as runner:
        runner.recorder.add(observe)
        with pytest.raises(ActorCrashed, match=f"Your own code raised it, in {whose}") as crash:
            runner.run_turn(ask(**asked))
    assert isinstance(crash.value.__cause__, LookupError)
    assert "else report it" not in str(crash.value)
    assert notes[0].error == f"LookupError: boom (in {whose})"


class Cave(FakeToolServer):
    """A connection of the host's; the class itself makes the connections."""

    def __init__(self, note: object) -> None:
        super().__init__("cave")
        self.answers("look", "dust")


def test_a_class_of_connections_is_a_server(model: WordedModel, mode: Mode) -> None:
    with model.runner(mode, servers={"cave": Cave}) as runner:
        assert runner.run_turn(ask("call cave.look")).tool_calls[0].result.content == "dust"


@pytest.mark.parametrize("method", ["__aenter__", "open", "refusal", "call", "refresh_tools", "__aexit__"])
def test_a_crash_says_that_a_connection_of_the_host_raised(
    model: WordedModel, method: str, mode: Mode
) -> None:
    class Broken(Cave):
        pass

    async def failing(*_: object) -> Any:
        boom()

    setattr(Broken, method, failing)
    with (
        model.runner(mode, servers={"cave": Broken}) as runner,
        pytest.raises(ActorCrashed, match=r"Your own code raised it, in the server .*Broken\."),
    ):
        runner.run_turn(ask("call cave.look"))


@pytest.mark.parametrize(("method", "kind"), [("open", "Listing"), ("call", "ToolCallResult")])
def test_a_connection_that_returns_something_else_is_named(
    model: WordedModel, method: str, kind: str, mode: Mode
) -> None:
    class Broken(Cave):
        pass

    async def nothing(*_: object) -> None:
        pass

    setattr(Broken, method, nothing)
    with (
        model.runner(mode, servers={"cave": Broken}) as runner,
        pytest.raises(ActorCrashed, match=f"returned NoneType, not {kind}\nYour own code raised it"),
    ):
        runner.run_turn(ask("call cave.look"))


def test_the_only_member_of_a_group_is_as_much_the_hosts_as_the_group(model: WordedModel) -> None:
    error = ExceptionGroup("g", [LookupError("boom")])
    with model.runner("turn") as runner, pytest.raises(ActorCrashed) as crash:
        runner.run_turn(ask(answer=AnswerSpec(raising(error))))
    assert "Your own code raised it, in the check of the answer." in str(crash.value)


@pytest.mark.parametrize("keep", ["nothing", "loop", "sessions"])
@pytest.mark.parametrize(
    "waits",
    [
        lambda runner: runner.run_turn("Again?"),
        lambda runner: runner.recorder.record(RunTurn(turn=9, system="", user=""), sender="host"),
    ],
    ids=["run_turn", "record"],
)
def test_an_observer_that_would_wait_for_itself_is_refused(waits: Callable[[Runner], Any], keep: Any) -> None:
    with (
        ScriptedLlmServer(["one", "two"]) as llm,
        Runner(llm=llm.settings, recorder=Recorder(), keep=keep) as runner,
    ):
        runner.recorder.add(
            lambda envelope, _: waits(runner) if isinstance(envelope.body, CompletionReceived) else None
        )
        with pytest.raises(ActorCrashed, match="An observer must not record a message or run a turn"):
            runner.run_turn("Once?")


def test_a_crash_names_the_logger_whose_handler_raised(model: WordedModel) -> None:
    logger = logging.Logger("mine")
    handler = logging.Handler()
    handler.emit = boom  # type: ignore[method-assign]
    logger.addHandler(handler)
    with model.runner("turn", servers={"f": FunctionTools({"look": lambda: "dust"})}) as runner:
        runner.recorder.add(LoggerObserver(logger))
        whose = "a handler or filter of the logger mine"
        with pytest.raises(ActorCrashed, match=f"Your own code raised it, in {whose}"):
            runner.run_turn(ask("call f.look"))


CLOSES = """
import os, sys
from grue import FunctionTools, LlmSettings, MCPError, Runner, TurnRequest

def close() -> str:
    "Close what is open."
    os.closerange(3, 4096)
    return "closed"

runner = Runner(llm=LlmSettings(base_url=sys.argv[1], model="m"), servers={"f": FunctionTools([close])},
                keep=sys.argv[2])
runner.warm_up()
try:
    runner.run_turn(TurnRequest(user="u", turn_timeout_s=10))
except MCPError as error:
    assert "closes all descriptors" in str(error), repr(error)
    os.write(1, b"typed")
os._exit(0)
"""


@pytest.mark.parametrize("lifetime", ["nothing", "loop"])
@pytest.mark.slow
def test_a_function_that_closes_all_descriptors_ends_its_turn_with_a_typed_error(lifetime: str) -> None:
    with ScriptedLlmServer(lambda _: tool_calls_reply(("f.close", {}))) as llm:
        command = [sys.executable, "-c", CLOSES, llm.base_url, lifetime]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "typed", done.stderr[-3000:]
