"""Who may wait: everybody but a signal handler that has interrupted grue or an import."""

import contextlib
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grue.errors import MCPError
from grue.runtime.loops.interrupts import refuse_reentry
from grue.runtime.trace.recorder import Recorder


class Handlers:
    """Handlers of each form that Python takes; `said` is what came of them."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def try_it(self) -> None:
        try:
            refuse_reentry()
            self.said.append("allowed")
        except MCPError:
            self.said.append("refused")

    def method(self, _signum: int, _frame: object) -> None:
        self.try_it()

    def __call__(self, *_: object) -> None:
        self.try_it()

    def one_that_resets_itself(self, signum: int, _frame: object) -> None:
        signal.signal(signum, signal.SIG_DFL)
        self.try_it()

    def with_more(self, _more: str, _signum: int, _frame: object) -> None:
        self.try_it()


FORMS: dict[str, Callable[[Handlers], Callable[..., Any]]] = {
    "method": lambda handlers: handlers.method,
    "object": lambda handlers: handlers,
    "lambda": lambda handlers: lambda *_: handlers.try_it(),
    "partial": lambda handlers: functools.partial(handlers.with_more, "more"),
    "one that resets itself": lambda handlers: handlers.one_that_resets_itself,
}


@contextlib.contextmanager
def handled(handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def strike(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def recorded(observer: Callable[..., None]) -> None:
    recorder = Recorder()
    recorder.add(observer)
    recorder.record("x", sender="a")


@pytest.mark.parametrize("form", FORMS)
def test_a_handler_that_has_interrupted_grue_is_refused(form: str) -> None:
    handlers = Handlers()
    with handled(FORMS[form](handlers)):
        recorded(strike)
    assert handlers.said == ["refused"]


@pytest.mark.parametrize("form", FORMS)
def test_a_handler_that_has_interrupted_the_host_is_allowed(form: str) -> None:
    handlers = Handlers()
    with handled(FORMS[form](handlers)):
        strike()
    assert handlers.said == ["allowed"]


def test_a_handler_that_has_interrupted_an_import_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_strikes.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    handlers = Handlers()
    with handled(handlers):
        importlib.import_module("module_that_strikes")
    del sys.modules["module_that_strikes"]
    assert handlers.said == ["refused"]


def test_what_grue_calls_may_call_grue() -> None:
    """A callback, for instance, which has been given a frame of another kind."""
    handlers = Handlers()
    recorded(lambda *_: handlers.method(0, None))
    assert handlers.said == ["allowed"]


def test_other_threads_never_run_handlers() -> None:
    handlers = Handlers()
    thread = threading.Thread(target=lambda: handlers.method(0, sys._getframe(1)))
    thread.start()
    thread.join()
    assert handlers.said == ["allowed"]
