"""From plain code into the event loop and back, wherever the caller stands."""

import asyncio
import socket
import sys
import threading
import types
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest

from grue.errors import MCPError
from grue.runtime.loops import sync_edge
from grue.runtime.loops.interrupts import Interruptible, WorkInterrupted
from grue.runtime.loops.sync_edge import BlockingInsideEventLoopWarning, run_blocking

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _nobody_was_warned() -> Iterator[None]:
    before = set(sync_edge._warned)
    sync_edge._warned.clear()
    yield
    sync_edge._warned.clear()
    sync_edge._warned.update(before)


@pytest.mark.parametrize("runs", [True, False, None])
def test_trios_loop_is_noticed_in_any_version_of_trio(
    monkeypatch: pytest.MonkeyPatch, runs: bool | None
) -> None:
    def current_trio_token() -> None:
        if not runs:
            raise RuntimeError("must be called from async context")

    lowlevel: Any = types.ModuleType("trio.lowlevel")  # without `in_trio_run`, which is not in older versions
    if runs is not None:  # `None`: another thread is importing trio
        lowlevel.current_trio_token = current_trio_token
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    monkeypatch.setitem(sys.modules, "trio.lowlevel", lowlevel)
    assert sync_edge.loop_is_running() is (runs is True)
    if runs:
        with pytest.warns(BlockingInsideEventLoopWarning, match=r"Use trio\.to_thread\.run_sync instead"):
            sync_edge.warn_if_blocking("Edge.twin")


@pytest.fixture
def threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before, "a thread is left"


def call(function: Callable[[], Awaitable[T]], on_exit: Callable[[], None] = lambda: None) -> T:
    return run_blocking(function, on_exit=on_exit, twin="Edge.twin")


async def answer() -> int:
    await anyio.lowlevel.checkpoint()
    return 42


async def fail() -> None:
    raise LookupError("no such thing")


def plainly(function: Callable[[], T]) -> T:
    return function()


def in_a_thread(function: Callable[[], T]) -> T:
    results: list[Any] = []

    def target() -> None:
        try:
            results.append(function())
        except Exception as error:  # noqa: BLE001 - handed over
            results.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]  # type: ignore[no-any-return]


def inside_a_loop(function: Callable[[], T]) -> T:
    async def main() -> T:
        return function()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockingInsideEventLoopWarning)
        return asyncio.run(main())


everywhere = pytest.mark.parametrize("stand", [plainly, in_a_thread, inside_a_loop])
Stand = Callable[[Callable[[], Any]], Any]


@everywhere
@pytest.mark.usefixtures("threads")
def test_the_result_comes_back_and_then_the_last_word(stand: Stand) -> None:
    said: list[str] = []
    assert stand(lambda: call(answer, lambda: said.append("last"))) == 42
    assert said == ["last"]


@everywhere
@pytest.mark.usefixtures("threads")
def test_an_exception_comes_back_as_it_is_and_then_the_last_word(stand: Stand) -> None:
    said: list[str] = []
    with pytest.raises(LookupError, match="no such thing"):
        stand(lambda: call(fail, lambda: said.append("last")))
    assert said == ["last"]


@everywhere
@pytest.mark.usefixtures("threads")
def test_p39_there_is_exactly_one_anyio_run(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    run = anyio.run

    def counted(*args: Any, **options: Any) -> Any:
        runs.append(threading.current_thread().name)
        return run(*args, **options)

    monkeypatch.setattr(anyio, "run", counted)
    stand(lambda: call(answer))
    assert len(runs) == 1


@everywhere
def test_p40_the_loop_is_a_new_one_and_the_caller_has_none_afterwards(stand: Stand) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note_loop() -> None:
        loops.append(asyncio.get_running_loop())

    def twice() -> None:
        before = _running_loop()
        call(note_loop)
        call(note_loop)
        assert _running_loop() is before

    stand(twice)
    assert loops[0] is not loops[1]
    assert all(loop.is_closed() for loop in loops)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def test_p40_inside_a_loop_it_runs_in_a_thread_of_its_own() -> None:
    async def where() -> threading.Thread:
        return threading.current_thread()

    assert plainly(lambda: call(where)) is threading.current_thread()
    assert inside_a_loop(lambda: call(where)) is not threading.current_thread()


def test_p40_a_warning_names_the_twin_once() -> None:
    async def main() -> None:
        with pytest.warns(BlockingInsideEventLoopWarning, match=r"Use Edge\.twin instead") as caught:
            call(answer)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(answer)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("shell", "warned"), [("ZMQInteractiveShell", False), ("TerminalInteractiveShell", True)]
)
def test_a_notebook_is_not_warned_of_what_its_guide_recommends(
    monkeypatch: pytest.MonkeyPatch, shell: str, warned: bool
) -> None:
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = type(shell, (), {})
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    async def cell() -> int:
        return call(answer)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert asyncio.run(cell()) == 42
    assert [each.category for each in caught] == [BlockingInsideEventLoopWarning] * warned


def test_an_interruption_is_raised_when_the_loop_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # `nest_asyncio`, which notebooks use, logs a `KeyboardInterrupt` that ends the main task.
    logged: list[BaseException] = []
    run = anyio.run

    def run_and_log(function: Callable[[], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            try:
                return await function()
            except BaseException as error:
                logged.append(error)
                raise

        return run(main)

    work = Interruptible()
    work.interrupt()
    monkeypatch.setattr(anyio, "run", run_and_log)
    with pytest.raises(WorkInterrupted):
        sync_edge.run_loop(lambda: work.run(answer))
    assert logged == []


def test_several_threads_may_call_at_once() -> None:
    barrier = threading.Barrier(4)

    def together() -> int:
        barrier.wait(60)
        return call(answer)

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(together())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [42] * 4


def test_no_thread_is_awaited_while_the_interpreter_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = threading.Thread(target=print)
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    with pytest.raises(MCPError, match="Python is shutting down"):
        sync_edge.start_thread(thread)
    assert thread.ident is None


def test_it_works_without_a_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert inside_a_loop(lambda: call(answer)) == 42


def test_the_end_of_the_loop_does_not_wait_for_a_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release, ended = threading.Event(), threading.Event()

    def look_up(*_: object) -> list[Any]:
        release.wait(60)
        ended.set()
        return []

    async def give_up() -> bool:
        with anyio.move_on_after(0.01):
            await asyncio.get_running_loop().getaddrinfo("a.example", 80)
        return ended.is_set()

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert not call(give_up)
    assert not ended.is_set()
    release.set()
    assert ended.wait(60)
