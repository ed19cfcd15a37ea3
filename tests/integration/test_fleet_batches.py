"""Fleets whose requests wait for the provider's batches."""

import itertools
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import waiting_batch
from waiting_batch import batching, counting, noting, settings

from grue import Runner, ServerOptions, StdioServer, TurnRequest
from grue.engine.turn import TurnPostponed
from grue.errors import FleetError
from grue.fleet import Fleet
from grue.fleet.batches import FleetBatches, waiting_in
from grue.fleet.broker import FleetBudget, RequestCount
from grue.fleet.driver import Finished
from grue.fleet.fleet import FleetOptions
from grue.fleet.folder import REPLIES, REQUESTS, EpisodeFolder
from grue.fleet.work import Episode
from grue.protocol.turn.prices import Price
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, error_reply, text_reply

TURNS = 2


def ask(case: dict[str, Any], episode: Episode) -> float:
    """Take two turns with a tool call each."""
    if (damaged := episode.folder.parent / REPLIES) and case.get("damage") == case["n"]:
        damaged.unlink(missing_ok=True)
        os.mkfifo(damaged) if case.get("pipe") else damaged.write_text('{"key": 1}\n')
    tools = noting(Path(case["effects"]))
    llm = settings(case["url"], api_key=None, max_tokens=case.get("max_tokens"))
    with Runner(llm=llm, servers={"f": tools}, trace=episode.trace) as runner:
        right = 0
        if case.get("map"):
            rows = [f"case {case['n']} row {row}" for row in range(case["map"])]
            right -= sum(item.outcome is None for item in runner.map(rows, concurrency=1))
        for turn in range(TURNS):
            text = f"case {case['n']} turn {turn}{random.random() if case.get('chance') else ''}"
            right += runner.run_turn(TurnRequest(text)).response == f"heard {text}"
    return right / TURNS


def fleet(tmp_path: Path, **more: Any) -> Fleet:
    options = FleetOptions(batching=batching(tmp_path))
    return Fleet(tmp_path / "fleet", workers=2, options=options, **more)


def cases(llm: ScriptedLlmServer, tmp_path: Path, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"n": n, "url": llm.base_url, "effects": str(tmp_path / "effects"), **more} for n in range(count)]


def work(tmp_path: Path) -> str:
    places = (waiting_batch.__file__, __file__)
    (tmp_path / "batch_work.py").write_text(
        f"import sys; sys.path[:0] = {[str(Path(each).parent) for each in places]}\n"
        "from test_fleet_batches import ask\n"
    )
    return f"{tmp_path / 'batch_work.py'}:ask"


def run(llm: ScriptedLlmServer, tmp_path: Path, count: int = 3, **more: Any) -> Finished:
    given = more.pop("case", {})
    retry = more.pop("retry", False)
    return fleet(tmp_path, **more).map(work(tmp_path), cases(llm, tmp_path, count, **given), retry=retry)


@pytest.mark.slow
def test_episodes_are_played_in_rounds_and_each_request_is_asked_once(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        finished = run(llm, tmp_path)
    assert finished.reason == "finished"
    assert finished.tally.done == 3
    assert finished.tally.scores["score"] == (3, 3.0)
    assert [len(batch) for batch in llm.batches.made.values()] == [3] * (2 * TURNS)
    assert max(llm.batches.asked.values()) == 1
    assert len(llm.requests) == 12
    # What the replies have cost is counted in the episode once, however often it was played.
    assert finished.tally.spent.tokens == 12 * 15
    results = fleet(tmp_path).results()
    assert [each.end.spent.requests for each in results if each.end] == [4, 4, 4]


@pytest.mark.slow
def test_a_work_may_go_on_after_a_map_whose_requests_all_go_into_one_batch(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        finished = run(llm, tmp_path, 1, case={"map": 5})
    assert finished.tally.scores["score"] == (1, 1.0)
    assert [len(batch) for batch in llm.batches.made.values()] == [5, 5, *[1] * (2 * TURNS)]
    assert max(llm.batches.asked.values()) == 1


@pytest.mark.slow
def test_with_keep_results_no_request_and_no_reply_stays_of_episodes_with_a_result(tmp_path: Path) -> None:
    options = FleetOptions(batching=batching(tmp_path), keep="results")

    def left() -> set[str]:
        paths = (tmp_path / "fleet").rglob("*.jsonl")
        return {each.name for each in paths if each.name in (REQUESTS, REPLIES) or "batches" in each.parts}

    with ScriptedLlmServer(counting) as llm:
        for limit in (1, None):
            budget = FleetBudget(requests=limit)
            played = Fleet(tmp_path / "fleet", workers=1, options=options, budget=budget)
            finished = played.map(work(tmp_path), cases(llm, tmp_path, 1))
            assert bool(left()) is (limit is not None)
    assert finished.tally.done == 1
    assert max(llm.batches.asked.values()) == 1


@pytest.mark.slow
def test_an_item_that_fails_is_asked_again_as_an_endpoint_is_that_does_not_answer(tmp_path: Path) -> None:
    failed: Counter[str] = Counter()

    def unanswered(item: str) -> Any:
        episode = item.split("-")[1]
        failed[episode] += 1
        return "expired" if failed[episode] == 1 else None

    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.unanswered = unanswered
        finished = run(llm, tmp_path, 2)
        assert finished.tally.scores["score"] == (2, 2.0)
        assert finished.tally.kinds == {"LLMError: timed_out": 2}
    assert max(llm.batches.asked.values()) == 1


@pytest.mark.slow
def test_a_work_that_asks_otherwise_each_time_fails_and_is_not_paid_for_ever(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        finished = run(llm, tmp_path, 1, case={"chance": True})
    assert finished.tally.failed == 1
    assert "NotRepeatable" in finished.tally.kinds
    assert len(llm.requests) == 1


@pytest.mark.parametrize("pipe", [False, True])
@pytest.mark.slow
def test_a_work_that_damages_its_replies_costs_its_own_episode_only(tmp_path: Path, *, pipe: bool) -> None:
    with ScriptedLlmServer(counting) as llm:
        finished = run(llm, tmp_path, 2, case={"damage": 1, "pipe": pipe})
    assert (finished.reason, finished.tally.done, finished.tally.given_up) == ("finished", 1, 1)
    assert finished.tally.scores["score"] == (1, 1.0)
    assert "replies.jsonl" in finished.tally.troubles[0]


@pytest.mark.parametrize("name", [REQUESTS, REPLIES])
@pytest.mark.slow
def test_a_damaged_list_of_requests_or_replies_can_be_removed_and_nothing_is_asked_again(
    tmp_path: Path, name: str
) -> None:
    with ScriptedLlmServer(counting) as llm:
        run(llm, tmp_path)
        damaged = next((tmp_path / "fleet").glob(f"??/*/{name}"))
        EpisodeFolder(damaged.parent).set_aside_commit()
        damaged.write_bytes(b"{\n")
        finished = run(llm, tmp_path)
        assert (finished.tally.done, finished.tally.given_up) == (2, 1)
        assert "Remove it; `grue fleet retry` then takes" in finished.tally.troubles[0]
        damaged.unlink()
        assert run(llm, tmp_path, retry=True).tally.done == 3
    assert max(llm.batches.asked.values()) == 1


@pytest.mark.slow
def test_a_fleet_that_was_stopped_goes_on_with_what_waits(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:

        def stumble(method: str, path: str, times: int) -> Any:
            if method == "GET" and path.count("/") == 3 and times == 1 and len(llm.batches.made) == 2:
                (tmp_path / "fleet" / "stop").touch()

        llm.batches.faults.in_place = stumble
        llm.batches.faults.looks = 1  # or the replies come with the stop, and some episodes go on before it
        stopped = run(llm, tmp_path)
        assert (stopped.reason, stopped.tally.waiting) == ("stopped", 3)
        llm.batches.faults.in_place = lambda method, path, times: None
        finished = run(llm, tmp_path)
    assert finished.tally.scores["score"] == (3, 3.0)
    assert max(llm.batches.asked.values()) == 1
    assert len(llm.requests) == 12


@pytest.mark.slow
def test_a_fleet_can_be_stopped_while_its_provider_is_down(tmp_path: Path) -> None:
    def down(method: str, path: str, times: int) -> LlmReply:
        (tmp_path / "fleet" / "stop").touch()
        return error_reply(503, "down")

    options = FleetOptions(batching=batching(tmp_path, patience_s=30))
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.in_place = down
        made = Fleet(tmp_path / "fleet", workers=2, options=options)
        assert made.map(work(tmp_path), cases(llm, tmp_path, 1)).reason == "stopped"


@pytest.mark.slow
def test_a_provider_that_is_down_holds_up_no_episode_of_another(tmp_path: Path) -> None:
    def down(method: str, path: str, times: int) -> LlmReply | None:
        return None if list(tmp_path.glob("fleet/*/*/commit.json")) else error_reply(503, "down")

    options = FleetOptions(batching=batching(tmp_path, patience_s=30))
    with ScriptedLlmServer(counting) as llm, ScriptedLlmServer(counting) as other:
        llm.batches.faults.in_place = down
        both = [*cases(llm, tmp_path, 1), *cases(other, tmp_path, 1)]
        finished = Fleet(tmp_path / "fleet", workers=1, options=options).map(work(tmp_path), both)
    assert finished.tally.scores["score"] == (2, 2.0)
    assert max((llm.batches.asked + other.batches.asked).values()) == 1


def test_a_model_that_is_asked_often_leaves_the_others_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.fleet.batches._LOOK_S", 60.0)
    body = {"model": "m", "messages": [{"role": "user", "content": "Look."}]}

    def waiting(name: str, llm: ScriptedLlmServer) -> Path:
        (tmp_path / name).mkdir()
        asked = {"key": "1-a", "base_url": llm.base_url, "wire": "chat_completions", "model": "m"}
        (tmp_path / name / REQUESTS).write_bytes(msgspec.json.encode({**asked, "body": body}) + b"\n")
        return tmp_path / name

    with ScriptedLlmServer([text_reply("often")]) as often, ScriptedLlmServer([text_reply("once")]) as once:
        batches = FleetBatches(tmp_path, batching(tmp_path, look_every_s=1e-6))
        batches.add(waiting("first", often))
        assert batches.step(send=True) == ["first"]
        batches.add(waiting("second", once))
        assert batches.step(send=True) == ["second"]
        batches.close()


def test_a_batch_that_the_provider_no_longer_has_is_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.fleet.batches._LOOK_S", 60.0)
    asked = {"key": "1-a", "wire": "chat_completions", "model": "m", "body": {"model": "m", "messages": []}}
    (tmp_path / "first").mkdir()
    with ScriptedLlmServer([text_reply("well")]) as llm:
        line = msgspec.json.encode({**asked, "base_url": llm.base_url})
        (tmp_path / "first" / REQUESTS).write_bytes(line + b"\n")
        llm.batches.faults.in_place = lambda method, path, times: (
            error_reply(404, "It is gone.") if method == "GET" and path.count("/") == 3 else None
        )
        batches = FleetBatches(tmp_path, batching(tmp_path))
        batches.add(tmp_path / "first")
        said = r"/v1: It is gone\. If the provider .*, remove .*/submissions/0001\.json: .*again\. What waits"
        with pytest.raises(FleetError, match=said):
            batches.step(send=True)
        batches.close()


def test_a_request_that_only_an_earlier_sweep_has_stored_is_not_sent(tmp_path: Path) -> None:
    """A run was stopped before it sent its requests, and the next one plays other episodes."""
    asked = {"key": "1-a", "wire": "chat_completions", "model": "m", "body": {"model": "m", "messages": []}}
    with ScriptedLlmServer([text_reply("well")]) as llm:
        for name in ("earlier", "both", "later"):
            (tmp_path / name).mkdir()
            line = msgspec.json.encode({**asked, "base_url": llm.base_url})
            (tmp_path / name / REQUESTS).write_bytes(line + b"\n")
        stopped = FleetBatches(tmp_path, batching(tmp_path))
        for name in ("earlier", "both"):
            stopped.add(tmp_path / name)
        stopped.close()
        batches = FleetBatches(tmp_path, batching(tmp_path))
        for name in ("both", "later"):
            batches.add(tmp_path / name)
        ready: list[str] = []
        while len(ready) < 2:
            ready += batches.step(send=True)
        batches.close()
    assert ready == ["both", "later"]
    assert len(llm.batches.asked) == 2


@pytest.mark.anyio
async def test_a_fleet_in_a_notebook_sends_batches_although_a_loop_runs_there(tmp_path: Path) -> None:
    asked = {"key": "1-a", "wire": "chat_completions", "model": "m", "body": {"model": "m", "messages": []}}
    (tmp_path / "first").mkdir()
    with ScriptedLlmServer([text_reply("well")]) as llm:
        line = msgspec.json.encode({**asked, "base_url": llm.base_url})
        (tmp_path / "first" / REQUESTS).write_bytes(line + b"\n")
        batches = FleetBatches(tmp_path, batching(tmp_path))
        batches.add(tmp_path / "first")
        while not batches.step(send=True):
            pass
        batches.close()


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 503])
def test_a_refusal_that_is_not_of_the_model_is_asked_again_until_it_passes(
    tmp_path: Path, status: int
) -> None:
    down = True

    def reply(request: LlmRequest) -> LlmReply:
        return error_reply(status, "Not now") if down else counting(request)

    with ScriptedLlmServer(reply) as llm:
        assert run(llm, tmp_path, 1).tally.given_up == 1
        assert len(llm.requests) == 3
        down = False
        played = fleet(tmp_path).map(work(tmp_path), cases(llm, tmp_path, 1), retry=True)
    assert played.tally.scores["score"] == (1, 1.0)


@pytest.mark.slow
def test_a_request_that_waits_for_a_batch_offers_no_presumed_tools(tmp_path: Path) -> None:
    """If the server then listed others, the reply would be dropped, and another one paid for."""
    options = ServerOptions(start="beside")
    server = StdioServer(command=sys.executable, args=("-m", "grue.testing.faulty_server"), options=options)
    with (
        ScriptedLlmServer([text_reply("listed")]) as llm,
        Runner(llm=settings(llm.base_url), servers={"f": server}, trace=tmp_path / "trace.jsonl") as runner,
    ):
        runner.run_turn(TurnRequest("The tools are listed."))
        with waiting_in(tmp_path, RequestCount(None, {})) as room, pytest.raises(TurnPostponed):
            runner.run_turn(TurnRequest("They could be presumed."))
    assert room.waits
    assert "ToolsPresumed" not in (tmp_path / "trace.jsonl").read_text()


def test_a_map_yields_no_item_from_the_first_turn_that_waits_on(tmp_path: Path) -> None:
    with (
        Runner(llm=settings("http://127.0.0.1:9/v1")) as runner,
        waiting_in(tmp_path, RequestCount(None, {})),
        pytest.raises(TurnPostponed),
    ):
        next(runner.map((f"row {row}" for row in range(9)), concurrency=2))
    assert len((tmp_path / REQUESTS).read_text().splitlines()) == 9


def test_a_map_of_endless_requests_waits_for_the_first_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.engine.batch._MOST_POSTPONED", 20)
    with (
        Runner(llm=settings("http://127.0.0.1:9/v1")) as runner,
        waiting_in(tmp_path, RequestCount(None, {})),
        pytest.raises(TurnPostponed),
    ):
        next(runner.map((f"row {row}" for row in itertools.count()), concurrency=2))
    assert len((tmp_path / REQUESTS).read_text().splitlines()) in range(20, 25)


@pytest.mark.slow
def test_a_budget_holds_and_what_it_has_paid_for_is_sent(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        for requests in (2, 5):
            finished = run(llm, tmp_path, budget=FleetBudget(requests=requests))
            assert (finished.reason, finished.tally.waiting, len(llm.requests)) == ("budget", 0, requests)
        assert run(llm, tmp_path).tally.scores["score"] == (3, 3.0)
        assert max(llm.batches.asked.values()) == 1


@pytest.mark.slow
def test_a_budget_is_of_the_price_of_batches(tmp_path: Path) -> None:
    """Each of 12 requests may cost 1000 tokens at half the price, 0.001 dollars."""
    budget = FleetBudget(money_usd=0.0125, prices={"m": Price(input=0, output=2)})
    with ScriptedLlmServer(counting) as llm:
        assert run(llm, tmp_path, budget=budget, case={"max_tokens": 1000}).reason == "finished"


@pytest.mark.slow
def test_a_provider_that_takes_no_batch_ends_the_run(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.in_place = lambda method, path, times: error_reply(
            401, "Incorrect API key provided"
        )
        with pytest.raises(FleetError, match="mend it, and run the same command again"):
            run(llm, tmp_path)
