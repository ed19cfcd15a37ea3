"""`Runner.map`: many turns at once, their results in order."""

import contextlib
import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import environment, grue
from msgspec.structs import replace
from patient_turns import wait_until
from promises import within

from grue import (
    AnswerSpec,
    Budget,
    FunctionTools,
    LlmSettings,
    ProcessLimits,
    Recorder,
    RetryPolicy,
    Runner,
    StdioServer,
    TraceWriter,
    TurnRequest,
)
from grue.errors import (
    ActorCrashed,
    AnswerError,
    BudgetSpent,
    LLMError,
    MCPError,
    TurnCancelled,
    TurnTimedOut,
)
from grue.messages import Interrupted, SessionClosed, SessionOpened, TurnFailed
from grue.testing import faulty_server
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)
from grue.tracing import replay as replays
from grue.tracing.reading import open_episode
from grue.tracing.turn_slices import split_turns

Say = Callable[[str], LlmReply]


class Model:
    """Answers each question; `say` is asked for the final reply to its words."""

    def __init__(self, say: Say | None = None, tool: str = "") -> None:
        self._say = say or (lambda words: text_reply(f"re {words}"))
        self._tool = tool
        self.server = ScriptedLlmServer(self._reply)

    def _reply(self, request: LlmRequest) -> LlmReply:
        if self._tool and not any(message["role"] == "tool" for message in request.messages):
            return tool_calls_reply((self._tool, {"text": "hello"}))
        return self._say(request.messages[1]["content"])

    def runner(self, recorder: Recorder | None = None, **more: Any) -> Runner:
        retry = RetryPolicy(max_retries=0)
        llm = LlmSettings(base_url=self.server.base_url, model="m", retry=retry)
        return Runner(llm=llm, recorder=recorder, **more)

    @property
    def asked(self) -> list[str]:
        return [request.messages[1]["content"] for request in self.server.requests]


@contextlib.contextmanager
def model(say: Say | None = None, tool: str = "") -> Iterator[Model]:
    made = Model(say, tool)
    with made.server, assert_nothing_left():
        yield made


def asks(*words: str, **more: Any) -> list[TurnRequest[Any]]:
    return [TurnRequest[Any](system="s", user=word, **more) for word in words]


def numbered(count: int, **more: Any) -> list[TurnRequest[Any]]:
    return asks(*(f"u{number}" for number in range(count)), **more)


def faulty(*flags: str) -> dict[str, Any]:
    command, *args = faulty_server.argv(*flags)
    server = StdioServer(name="faulty", command=command, args=tuple(args))
    return {
        "servers": {"faulty": server},
        "process_limits": ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2),
    }


def test_results_keep_the_order_of_the_requests_whichever_ends_first() -> None:
    ended: list[str] = []
    last = threading.Event()

    def say(words: str) -> LlmReply:
        if words == "u0":
            last.wait(60)
        ended.append(words)
        if words == "u3":
            last.set()
        return text_reply(f"re {words}")

    with model(say) as asked, asked.runner() as runner:
        items = list(runner.map(numbered(6), concurrency=4))
    assert ended.index("u0") > ended.index("u3")
    assert [item.index for item in items] == list(range(6))
    assert [item.outcome.response for item in items if item.outcome] == [f"re u{n}" for n in range(6)]
    assert [item.outcome.turn for item in items if item.outcome] == [1, 2, 3, 4, 5, 6]


def test_the_functions_of_more_than_forty_turns_run_at_once() -> None:
    many = 41  # anyio has 40 threads
    meeting = threading.Barrier(many)

    def meet() -> str:
        meeting.wait(60)  # raises if the others have not come
        return "met"

    def answer(request: LlmRequest) -> LlmReply:
        said = request.messages[-1]
        return text_reply(said["content"]) if said["role"] == "tool" else tool_calls_reply(("fn.meet", {}))

    with ScriptedLlmServer(answer) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers={"fn": FunctionTools([meet])}) as runner:
            items = list(runner.map([TurnRequest("Meet.")] * many, concurrency=many))
    assert [item.outcome and item.outcome.response for item in items] == ["met"] * many


def test_what_fails_is_an_item_with_its_error() -> None:
    waiting = threading.Event()

    def say(words: str) -> LlmReply:
        if words == "slow":
            waiting.wait(60)
        return error_reply(401, "no such key") if words == "refused" else text_reply(words)

    def check(text: str) -> str:
        if text == "crash":
            raise LookupError("a bug of the host's")
        if text == "unfit":
            raise ValueError("not a word")
        return text.upper()

    def parse_int(text: str) -> int:
        return int(text)

    requests = [
        *asks("a", "refused", "crash", "unfit", "b", answer=AnswerSpec(check)),
        *asks("slow", turn_timeout_s=0.3),
        *asks("7", answer=AnswerSpec(parse_int)),
    ]
    with model(say) as asked, asked.runner() as runner:
        items = list(runner.map(requests, concurrency=3))
        waiting.set()
    errors = [type(item.error) for item in items]
    none = type(None)
    assert errors == [none, LLMError, ActorCrashed, AnswerError, none, TurnTimedOut, none]
    assert [item.outcome.response for item in items if item.outcome] == ["A", "B", 7]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.slow
def test_concurrency_bounds_servers_and_what_is_taken_ahead(concurrency: int) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    alive = most = taken = 0
    ahead: list[int] = []

    def count(envelope: Any, _: bytes) -> None:
        nonlocal alive, most
        alive += isinstance(envelope.body, SessionOpened)
        most = max(most, alive)
        alive -= isinstance(envelope.body, SessionClosed)

    def requests() -> Iterator[TurnRequest[Any]]:
        nonlocal taken
        for request in numbered(10):
            taken += 1
            yield request

    recorder = Recorder()
    recorder.add(count)
    with model(tool="faulty.echo") as asked, asked.runner(recorder, **faulty()) as runner:
        for item in runner.map(requests(), concurrency=concurrency):
            ahead.append(taken - item.index)
            assert item.outcome is not None
            assert len(item.outcome.tool_calls) == 1
    # How many are alive at once is the scheduler's; never more than allowed is ours.
    assert 1 <= most <= concurrency
    assert max(ahead) == 2 * concurrency


def test_nothing_begins_before_the_first_item_is_asked_for() -> None:
    with model() as asked, asked.runner() as runner:
        items = runner.map(numbered(2))
        assert asked.asked == []
        with pytest.raises(ValueError, match="at least 1"):
            runner.map([], concurrency=0)
        for total in ("2", -1):
            with pytest.raises(ValueError, match="total is a whole number, at least 0, not"):
                runner.map([], progress=True, total=total)  # type: ignore[arg-type]  # the mistake
        assert list(runner.map([])) == []
        del items


@pytest.mark.parametrize("how", ["iterator", "runner"])
@pytest.mark.slow
def test_closing_it_early_cancels_what_runs(how: str) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    ended: list[Any] = []
    recorder = Recorder()
    recorder.add(lambda sent, _: ended.append(sent.body) if isinstance(sent.body, TurnFailed) else None)
    with model(tool="faulty.echo") as asked:
        # The first item's own turn has no tools, the others' tool never answers.
        requests = [*asks("first", tools=False), *numbered(5)]
        asked.server._script = lambda request: (
            tool_calls_reply(("faulty.echo", {"text": "x"})) if request.tool_names else text_reply("hi")
        )
        runner = asked.runner(recorder, **faulty("--silent-at", "call"))
        items = runner.map(requests, concurrency=3)
        assert next(items).index == 0
        wait_until(lambda: len(asked.asked) > 2)
        with within(3):
            if how == "iterator":
                items.close()  # type: ignore[attr-defined]
            else:
                runner.close()
    assert ended
    assert all(isinstance(failed.failure, Interrupted) for failed in ended)


def test_the_items_of_turns_that_closing_the_runner_cancelled_come_before_the_error() -> None:
    waiting = threading.Event()

    def say(words: str) -> LlmReply:
        if words != "u0":
            waiting.wait(60)
        return text_reply(f"re {words}")

    with model(say) as asked:
        runner = asked.runner()
        items = runner.map(numbered(9), concurrency=2)
        seen = [next(items)]
        runner.close()
        waiting.set()
        with pytest.raises(MCPError, match="takes no further turn"):
            seen.extend(items)
    assert [item.index for item in seen] == [0, 1, 2, 3]
    assert [type(item.error) for item in seen[1:]] == [TurnCancelled] * 3


def test_what_the_requests_raise_ends_the_batch() -> None:
    def requests() -> Iterator[TurnRequest[Any]]:
        yield from numbered(3)
        raise LookupError("the file ends here")

    seen: list[int] = []
    with model() as asked, asked.runner() as runner, pytest.raises(LookupError, match="ends here"):
        seen.extend(item.index for item in runner.map(requests(), concurrency=1))
    assert seen == [0, 1], "as soon as it is met"


def test_a_budget_holds_for_the_batch_but_for_what_is_under_way() -> None:
    with model() as asked, asked.runner(budget=Budget(requests=4)) as runner:
        items = list(runner.map(numbered(12), concurrency=2))
        answered = [item for item in items if item.outcome]
        assert 4 <= len(answered) <= 5
        assert {type(item.error) for item in items[len(answered) :]} == {BudgetSpent}
        assert len(asked.asked) == len(answered)
        assert runner.budget_spent
        with pytest.raises(BudgetSpent):
            runner.run_turn(numbered(1)[0])


def test_a_batch_does_not_touch_the_runners_own_turns() -> None:
    with model() as asked, asked.runner(servers={"f": FunctionTools({"noop": lambda: None})}) as runner:
        first = runner.run_turn(numbered(1)[0])
        list(runner.map(numbered(3)))
        assert (first.turn, runner.run_turn(numbered(1)[0]).turn) == (1, 2)


def test_turns_of_two_batches_and_beside_them_have_numbers_of_their_own(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    one, other = asks("a", "b", "c", "d"), asks("e", "f", "g")
    with model(tool="f.echo") as asked:
        tools = {"servers": {"f": FunctionTools({"echo": lambda text: text})}}
        with asked.runner(trace=trace, **tools) as runner:
            runner.run_turn(*asks("before"))
            first, second = runner.map(one, concurrency=1), runner.map(other, concurrency=2)
            found = [next(first), next(second)]
            with ThreadPoolExecutor(3) as pool:
                beside = pool.submit(runner.run_turn, *asks("beside"))
                rests = [pool.submit(list, first), pool.submit(list, second)]
                found += [item for rest in rests for item in rest.result()]
            after = list(runner.map(asks("h", "i")))
            turns = [item.outcome.turn for item in found if item.outcome] + [beside.result().turn]
            assert len(set(turns)) == 8
            assert [item.outcome.turn for item in after if item.outcome] == [1, 2]
        assert "identical: 11 turns" in "".join(replays.render(replays.replay(open_episode(trace))))
        slices = list(split_turns(open_episode(trace)))
        assert sum(turn_slice.begun and turn_slice.over for turn_slice in slices) == 11
        before = len(asked.asked)
        with asked.runner(**tools) as runner:
            for requests in (one, other):
                items = list(runner.map(requests, resume_from=trace))
                assert all(item.recalled for item in items)
        assert len(asked.asked) == before


BATCH = """
    import sys
    from pathlib import Path
    from grue import AnswerSpec, FunctionTools, LlmSettings, Recorder, RetryPolicy, Runner, TraceWriter
    from grue import TurnLimits, TurnRequest
    def strict(text):
        if text == "unfit":
            raise ValueError("not a word")
        return text.upper()
    def request(n):
        user = sys.argv[3].replace("N", str(n)) if n == 1 else f"u{n}"
        answer = [AnswerSpec(strict, fallback="fallen"), AnswerSpec(len), None][n % 3]
        return TurnRequest(system="s", user=user, answer=answer)
    recorder = Recorder()
    writer = TraceWriter(Path(sys.argv[2]), episode="batch", resume=Path(sys.argv[2]).exists())
    if writer.last_seq:
        recorder.resume(after_seq=writer.last_seq, after_t=writer.last_t)
    recorder.add(writer)
    tools = FunctionTools({"echo": lambda text: text})
    llm = LlmSettings(base_url=sys.argv[1], model="m", retry=RetryPolicy(max_retries=0))
    limits = TurnLimits(max_tool_iterations=1)
    recall = sys.argv[2] if writer.last_seq else None
    with Runner(llm=llm, servers={"f": tools}, recorder=recorder, limits=limits) as runner:
        items = runner.map((request(n) for n in range(9)), concurrency=3, resume_from=recall)
        for item in items:
            kind = item.outcome and item.outcome.kind
            print(item.index, item.recalled, kind, item.outcome and item.outcome.response, flush=True)
"""


def batch(url: str, trace: Path, words: str = "uN") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BATCH), url, str(trace), words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def replies(gate: threading.Event) -> Say:
    def say(words: str) -> LlmReply:
        if words in ("u4", "u5", "u6", "u7", "u8"):
            gate.wait(60)
        return text_reply("unfit" if words == "u3" else f"re {words}")

    return say


@pytest.mark.slow
def test_a_batch_that_was_killed_goes_on_from_its_trace(tmp_path: Path) -> None:
    gate = threading.Event()
    trace = tmp_path / "trace.jsonl"
    with model(replies(gate), tool="f.echo") as asked:
        first = batch(asked.server.base_url, trace)
        assert first.stdout is not None
        told = [first.stdout.readline().split() for _ in range(4)]
        assert told[3] == ["3", "False", "fallback", "fallen"]
        assert told[2][2] == "forced"
        wait_until(lambda: {"u4", "u5", "u6"} <= set(asked.asked))
        first.kill()
        first.communicate()
        gate.set()
        before = len(asked.server.requests)
        second = batch(asked.server.base_url, trace, words="other")
        out, err = second.communicate(timeout=150)
        again = set(asked.asked[before:])
    assert err == ""
    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    assert [line[1] for line in lines] == ["True", "False", "True", "True", *["False"] * 5]
    assert [line[2:] for line in lines[2:4]] == [["forced", "re u2"], ["fallback", "fallen"]]
    assert lines[1][3] == str(len("re other"))
    assert again == {"other", "u4", "u5", "u6", "u7", "u8"}
    replayed = grue("trace", "replay", str(trace), cwd=tmp_path)
    assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_ctrl_c_in_the_middle_ends_it_within_seconds(tmp_path: Path) -> None:
    gate = threading.Event()
    with model(replies(gate), tool="f.echo") as asked:
        program = batch(asked.server.base_url, tmp_path / "trace.jsonl")
        wait_until(lambda: {"u4", "u5", "u6"} <= set(asked.asked))
        with within(3):
            program.send_signal(signal.SIGINT)
            _, err = program.communicate(timeout=150)
        gate.set()
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
def test_overlapping_turns_are_replayed_counted_and_shown(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    trace = tmp_path / "trace.jsonl"
    recorder = Recorder()
    writer = TraceWriter(trace, episode="batch")
    recorder.add(writer)
    requests = [replace(request, tools=n != 2) for n, request in enumerate(numbered(8))]
    with model(tool="") as asked:
        asked.server._script = lambda request: (
            tool_calls_reply(("faulty.echo", {"text": "x"}), ("faulty.fail", {}))
            if request.tool_names and request.messages[-1]["role"] != "tool"
            else text_reply("hi")
        )
        runner = asked.runner(recorder, **faulty())
        assert all(item.outcome for item in runner.map(requests, concurrency=4))
        # In a batch each turn's server is a first one: where it cannot start, that turn fails.
        broken = asked.runner(recorder, **faulty("--exit-at", "initialize"))
        assert not any(item.outcome for item in broken.map(requests[:2], concurrency=2))
    writer.close()
    replayed = grue("trace", "replay", str(trace), cwd=tmp_path)
    assert replayed.stdout.startswith("identical: 10 turns"), replayed.stdout + replayed.stderr
    stats = json.loads(grue("trace", "stats", "--json", str(trace), cwd=tmp_path).stdout)
    assert stats["turns"]["started"] == 10
    assert stats["turns"]["outcomes"] == {"answered": 8, "failed": 2}
    assert stats["turns"]["duration"]["count"] == 10
    assert stats["model"]["duration"]["count"] == stats["model"]["requests"] == 15
    assert {tool["tool"]: tool["returned"] + tool["errors"] for tool in stats["tools"]} == {
        "faulty.echo": 7,
        "faulty.fail": 7,
    }
    assert stats["servers"][0]["endings"] == {"polite": 7}
    shown = grue("trace", "show", str(trace), cwd=tmp_path)
    assert (shown.returncode, shown.stdout.count("TurnCompleted")) == (0, 8)


def test_each_worker_of_a_batch_keeps_its_sessions() -> None:
    opened: list[int | None] = []
    with model(tool="faulty.echo") as llm:
        command, *args = faulty_server.argv()
        servers = {"faulty": StdioServer(name="faulty", command=command, args=tuple(args))}
        with llm.runner(servers=servers, keep="sessions") as runner:
            runner.recorder.add(
                lambda envelope, _line: (
                    opened.append(envelope.body.pid) if isinstance(envelope.body, SessionOpened) else None
                )
            )
            items = list(runner.map([TurnRequest(system="s", user=f"q{n}") for n in range(6)], concurrency=2))
            assert [item.error for item in items] == [None] * 6
    assert len(opened) == 6
    assert 1 <= len(set(opened)) <= 2
