"""What a turn's own code may ask of its runner: to begin a turn, never to wait for one."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fault_turns import Mode
from patient_turns import wait_until
from worded_turns import WordedModel, ask

from grue import AnswerSpec, FunctionTools, MCPError, Runner, TurnHandle, TurnLimits, TurnOutcome

REFUSED = "A turn cannot wait for another turn of its own episode: use another runner"
WITHIN_S = 60.0


class Inside:
    """Code that is run once in a turn: in the loop's thread by a check or an async tool, or in a worker's.

    What it is to do is set before the turn begins; what it raised is kept.
    """

    def __init__(self, where: str) -> None:
        self.act: Callable[[], object]
        self.raised: list[Exception] = []
        self.done = threading.Event()
        self._where = where
        functions: dict[str, dict[str, Any]] = {
            "check": {},
            "async tool": {"act": self._act_later},
            "plain tool": {"act": self._act},
        }
        self.servers = {"f": FunctionTools(functions[where])} if functions[where] else {}

    @property
    def request(self) -> Any:
        if self._where == "check":
            return ask("with a check", answer=AnswerSpec(self._check))
        return ask("call f.act")

    def _check(self, text: str) -> str:
        self._act()
        return text

    async def _act_later(self) -> None:
        self._act()

    def _act(self) -> None:
        try:
            self.act()
        except Exception as error:  # noqa: BLE001 - it is for the test to judge
            self.raised.append(error)
        self.done.set()


@pytest.fixture(params=["check", "async tool", "plain tool"])
def inside(request: pytest.FixtureRequest) -> Inside:
    return Inside(request.param)


def runner_with(model: WordedModel, mode: Mode, inside: Inside) -> Runner:
    # What waits after all is cut off, and fails the test.
    return model.runner(mode, servers=inside.servers, limits=TurnLimits(tool_call_timeout_s=WITHIN_S))


@pytest.mark.parametrize("what", ["run_turn", "warm_up", "another's result", "its own result", "map"])
def test_who_would_wait_in_vain_is_refused_at_once(
    model: WordedModel, mode: Mode, inside: Inside, what: str
) -> None:
    handles: list[TurnHandle[TurnOutcome[Any]]] = []
    named = threading.Event()
    with runner_with(model, mode, inside) as runner:
        items = iter(runner.map([ask("item"), inside.request], concurrency=1))
        acts: dict[str, Callable[[], object]] = {
            "run_turn": lambda: runner.run_turn(ask()),
            "warm_up": runner.warm_up,
            "another's result": lambda: runner.start_turn(ask()).result(WITHIN_S),
            "its own result": lambda: named.wait(WITHIN_S) and handles[0].result(WITHIN_S),
            "map": lambda: named.wait(WITHIN_S) and next(items),
        }
        inside.act = acts[what]
        if what == "map":
            assert next(items).index == 0
            named.set()
            assert inside.done.wait(WITHIN_S)
        else:
            handles.append(runner.start_turn(inside.request))
            named.set()
            assert handles[0].result(WITHIN_S).response == "done"
        (error,) = inside.raised
        assert isinstance(error, MCPError)
        assert REFUSED in str(error)
        assert runner.run_turn(ask()).response == "done"


def test_what_does_not_wait_is_allowed(model: WordedModel, mode: Mode, inside: Inside) -> None:
    begun: list[TurnHandle[TurnOutcome[Any]]] = []

    def look_about() -> None:
        assert over.result().response == "done", "what is over is not waited for"
        begun.append(runner.start_turn(ask()))
        with pytest.raises(TimeoutError, match="it goes on"):
            begun[0].result(timeout_s=0)

    with runner_with(model, mode, inside) as runner:
        over = runner.start_turn(ask())
        over.result()
        inside.act = look_about
        assert runner.run_turn(inside.request).response == "done"
        assert inside.raised == []
        assert begun[0].result(WITHIN_S).response == "done"


def test_the_turns_of_another_runner_can_be_waited_for(model: WordedModel, inside: Inside) -> None:
    answers: list[str] = []
    with runner_with(model, "episode", inside) as runner, model.runner("episode") as other:
        inside.act = lambda: answers.append(other.start_turn(ask()).result(WITHIN_S).response)
        assert runner.run_turn(inside.request).response == "done"
        assert inside.raised == []
        assert answers == ["done"]


def test_warming_up_waits_for_no_turn(model: WordedModel, mode: Mode) -> None:
    with model.runner(mode) as runner:
        handle = runner.start_turn(ask("wait"))
        wait_until(lambda: model.server.requests)
        runner.warm_up()
        assert not handle.done()
        model.gate.set()
        assert handle.result().response == "done"
