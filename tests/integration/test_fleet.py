"""A fleet as a user runs it: real worker processes, killed ones, a killed driver, limits that hold."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_works import never_ready
from typer.testing import CliRunner

import grue as grue_package
from grue.cli.app import app
from grue.errors import FleetError
from grue.fleet import Fleet, FleetBudget, FleetOptions, Price, ServerCap, local
from grue.fleet.accounts import read_ledger
from grue.fleet.attempt import Job
from grue.fleet.broker import Limits
from grue.fleet.driver import stop
from grue.fleet.folder import AttemptEnd, CaseFile, EpisodeFolder, FleetFolder
from grue.fleet.local import LocalEngine
from grue.fleet.worker import Place
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer, text_reply

HANG_S = 240
pytestmark = [pytest.mark.timeout(HANG_S + 60), pytest.mark.xdist_group("fleet")]

GRUE = Path(sys.executable).with_name("grue")

WORK = """
import os, signal, sys, time
from pathlib import Path
from grue import LlmSettings, Runner, StdioServer, ToolClient, TurnRequest
from grue.errors import MCPServerStartupError

def number(case, episode):
    print("noise")
    return {"n": case["n"], "pid": os.getpid()}

def waits(case, episode):
    while not Path(case["go"]).exists():
        time.sleep(0.01)
    return 1

def knows(case, episode):
    return float(os.environ["KNOWN"])

def moves(case, episode):
    os.chdir(episode.folder)
    return number(case, episode)

def plays(case, episode):
    from grue.fleet.zork_work import play
    return {"pid": os.getpid(), "turns": play(case, episode)["turns"]}

def once_killed(case, episode):
    if episode.folder.name == "attempt-1":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1

def hangs(case, episode):
    time.sleep(600)

def fails(case, episode):
    raise ValueError(f"no luck with {case['n']}")

def asks(case, episode):
    settings = LlmSettings(base_url=case["url"], model=case.get("model", "m"), max_tokens=10)
    with Runner(llm=settings, trace=episode.trace) as runner:
        runner.run_turn(TurnRequest(system="s", user=str(case["n"])))
    return 1

def alone(case, episode):
    server = StdioServer(name="s", command=sys.executable, args=(case["server"], case["lock"]))
    with ToolClient({"s": server}) as client:
        return len(client.tools())
"""

ALONE = """
import fcntl, runpy, sys
lock = open(sys.argv.pop(), "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture
def work(tmp_path: Path) -> str:
    """The file with the works."""
    path = tmp_path / "works.py"
    path.write_text(WORK)
    return str(path)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    # The guard, and multiprocessing's own helpers, live as long as the program, and do nothing.
    helpers = ("forkserver", "resource_tracker", "grue-guard")
    assert [child for child in left if not any(name in " ".join(child.cmdline()) for name in helpers)] == []


def fleet(tmp_path: Path, **options: Any) -> Fleet:
    return Fleet(tmp_path / "fleet", workers=2, **options)


def commits(folder: Path) -> dict[str, dict[str, Any]]:
    """The commits of a fleet's folder, by the case's settings."""
    found = {}
    for path in sorted(folder.glob("*/*/commit.json")):
        case = json.loads((path.parent / "case.json").read_text())["settings"]
        found[json.dumps(case, sort_keys=True)] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_cases_are_played_in_workers_and_a_second_call_does_what_is_missing(
    tmp_path: Path, work: str
) -> None:
    finished = fleet(tmp_path).map(f"{work}:number", [{"n": n} for n in range(6)])
    assert (finished.reason, finished.tally.done) == ("finished", 6)
    assert finished.tally.scores["n"] == (6, 15.0)
    pids = {found["end"]["scores"]["pid"] for found in commits(tmp_path / "fleet").values()}
    assert os.getpid() not in pids
    assert next((tmp_path / "fleet").glob("*/*/attempt-1/output.txt")).read_text() == "noise\n"
    finished = fleet(tmp_path).map(f"{work}:number", [{"n": n} for n in range(8)])
    assert (finished.tally.before, finished.tally.done) == (6, 8)


@pytest.mark.slow
def test_workers_have_the_environment_that_the_program_has_now(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in (1, 2):
        monkeypatch.setenv("KNOWN", str(known))
        finished = Fleet(tmp_path / str(known), workers=1).map(f"{work}:knows", [{}])
        assert finished.tally.scores == {"score": (1, float(known))}


def test_after_a_stop_no_other_episode_begins(tmp_path: Path, work: str) -> None:
    go, place = tmp_path / "go", tmp_path / "fleet"

    def watch(*_: object) -> None:
        if (place / "stop").exists():  # the driver has seen it, and the next episode is with the engine
            go.touch()
        elif list(place.glob("*/*/attempt-1")):
            (place / "stop").touch()

    finished = Fleet(place, workers=1).map(
        f"{work}:waits", [{"n": n, "go": str(go)} for n in range(4)], watch=watch
    )
    assert (finished.reason, finished.tally.done, len(list(place.glob("*/*/attempt-1")))) == ("stopped", 1, 1)


def test_a_stop_while_a_fleet_starts_counts_and_one_before_that_does_not(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine(folder: FleetFolder, *rest: Any, **more: Any) -> LocalEngine:
        stop(folder.path)
        return LocalEngine(folder, *rest, **more)

    fleet = Fleet(tmp_path / "fleet", workers=1)
    with monkeypatch.context() as patch:
        patch.setattr("grue.fleet.fleet.LocalEngine", engine)
        assert fleet.map(f"{work}:number", [{"n": 1}]).reason == "stopped"
    assert fleet.map(f"{work}:number", [{"n": 1}]).reason == "finished"


@pytest.mark.slow
def test_a_killed_worker_costs_an_attempt_and_a_hang_holds_no_slot(tmp_path: Path, work: str) -> None:
    finished = fleet(tmp_path).map(f"{work}:once_killed", [{"n": n} for n in range(4)])
    assert (finished.tally.done, finished.tally.kinds) == (4, {"died": 4})
    options = FleetOptions(episode_timeout_s=1)
    another = Fleet(tmp_path / "another", workers=2, options=options)
    finished = another.map(f"{work}:hangs", [{"n": n} for n in range(3)])
    assert (finished.tally.failed, finished.tally.kinds) == (3, {"timed_out": 3})


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_waits_is_replaced(tmp_path: Path, work: str) -> None:
    folder = FleetFolder(tmp_path / "fleet")
    folder.path.mkdir()
    engine = LocalEngine(folder, Limits(), 1)
    try:
        pids = []
        for number in range(2):
            place = folder.episode(f"{number:024x}").path
            case = CaseFile(work=f"{work}:number", version="1", settings={"n": number})
            engine.submit(Job(folder=place, case=case))
            job, ended = engine.ended.get(timeout=HANG_S)
            assert isinstance(ended, AttemptEnd), ended
            commit = EpisodeFolder(place).commit
            assert (job.folder, None if commit is None else commit.end) == (place, ended)
            pids.append(int(ended.scores["pid"]))
            worker = psutil.Process(pids[-1])
            worker.kill()
            psutil.wait_procs([worker], timeout=HANG_S)
        assert len(set(pids)) == 2
    finally:
        engine.close()


@pytest.mark.slow
def test_a_worker_serves_many_episodes_and_is_replaced_by_one_that_changes_it(
    tmp_path: Path, work: str
) -> None:
    settings = {"offline": True, "turns": 2}
    cases = {
        "number": [{"n": n} for n in range(3)],
        "moves": [{"n": n} for n in range(3)],
        "plays": [{**settings, "seed": seed} for seed in range(3)],
    }
    for name, its in cases.items():
        Fleet(tmp_path / "fleets" / name, workers=1).map(f"{work}:{name}", its)
    pids: dict[str, set[float]] = {}
    for path in (tmp_path / "fleets").glob("*/*/*/commit.json"):
        name = json.loads((path.parent / "case.json").read_text())["work"].rpartition(":")[2]
        pids.setdefault(name, set()).add(json.loads(path.read_text())["end"]["scores"]["pid"])
    assert {name: len(each) for name, each in pids.items()} == {"number": 1, "moves": 3, "plays": 1}


@pytest.mark.slow
def test_where_no_worker_can_start_the_run_ends_and_says_so(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.fleet.local.work", os._exit)  # it gets a channel, which is no status
    with pytest.raises(FleetError, match="No worker process starts: its worker process ended with status"):
        fleet(tmp_path).map(f"{work}:number", [{"n": 1}, {"n": 2}])


@pytest.mark.slow
def test_workers_that_are_not_ready_in_time_are_said_to_be_late(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_START_S", -1.0)
    monkeypatch.setattr("grue.fleet.local.work", never_ready)
    with pytest.raises(FleetError, match=r"its worker process was not ready within -1 s"):
        fleet(tmp_path).map(f"{work}:number", [{"n": 1}, {"n": 2}])


def test_an_engine_that_fails_says_so_of_each_job(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no process can be started")

    monkeypatch.setattr(local, "_START_S", 0.3)
    monkeypatch.setattr(local, "_Worker", refuse)
    with pytest.raises(FleetError, match="No worker process can be started: no process can be started"):
        fleet(tmp_path).map(f"{work}:number", [{"n": n} for n in range(40)])


def test_without_a_worker_and_without_descriptors_the_engine_fails_at_once(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        monkeypatch.setattr(local, "_Worker", None)  # so that a second try is another error
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(local, "_Worker", refuse)
    with pytest.raises(FleetError, match=r"No worker process can be started: .* Too many open files\."):
        fleet(tmp_path).map(f"{work}:number", [{"n": 1}])


@pytest.mark.slow
def test_one_worker_plays_all_episodes_if_no_other_can_be_started(
    tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def first(*given: Any) -> Any:
        worker = make(*given)
        monkeypatch.setattr(local, "_Worker", refuse)
        monkeypatch.setattr(local, "_START_S", -1.0)  # the time is over at the first failure
        return worker

    make = local._Worker
    monkeypatch.setattr(local, "_Worker", first)
    assert fleet(tmp_path).map(f"{work}:number", [{"n": n} for n in range(4)]).tally.done == 4


def test_a_worker_for_which_descriptors_are_too_few_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([os.pipe, os.pipe, os.pipe])

    def pipe() -> tuple[int, int]:
        make = next(left, None)
        if make is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make()

    place = Place("", Limits(), [], "", {})
    with assert_nothing_left(), monkeypatch.context() as patch:
        patch.setattr(os, "pipe", pipe)
        with pytest.raises(OSError, match="Too many open files"):
            local._Worker(None, place)


def test_a_failure_of_the_work_is_kept_with_its_text(tmp_path: Path, work: str) -> None:
    finished = fleet(tmp_path).map(f"{work}:fails", [{"n": 7}])
    (found,) = commits(tmp_path / "fleet").values()
    assert (finished.tally.failed, found["end"]["error"]) == (1, "ValueError: no luck with 7")


def test_a_work_that_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="Cannot import the work 'nowhere:play'"):
        fleet(tmp_path).map("nowhere:play", [{}])


@pytest.mark.slow
def test_the_budget_holds_over_all_workers_and_a_larger_one_plays_the_rest(tmp_path: Path, work: str) -> None:
    with ScriptedLlmServer(lambda request: text_reply("done")) as llm:
        cases = [{"n": n, "url": llm.base_url} for n in range(12)]
        limits = {"money_usd": 1.0, "prices": {"m": Price(input=1.0, output=1.0)}}
        budget = FleetBudget(requests=7, **limits)
        for _ in range(2):  # the second run has nothing left to spend
            finished = fleet(tmp_path, budget=budget).map(f"{work}:asks", cases)
            tally = finished.tally
            assert (finished.reason, tally.done, tally.failed, tally.given_up) == ("budget", 7, 0, 0)
            assert finished.why == "the fleet's limit of 7 requests is used up: 7 are spent"
            assert len(llm.requests) == 7
        spent = read_ledger(FleetFolder(tmp_path / "fleet"))
        assert (spent.requests, 0 < spent.money_usd < 1) == (7, True)
        finished = fleet(tmp_path, budget=FleetBudget(requests=20, **limits)).map(f"{work}:asks", cases)
        assert (finished.reason, finished.tally.before, finished.tally.done) == ("finished", 7, 12)
        assert len(llm.requests) == 12


@pytest.mark.slow
def test_a_model_without_a_price_is_not_played_and_the_others_are(tmp_path: Path, work: str) -> None:
    with ScriptedLlmServer(lambda request: text_reply("done")) as llm:
        cases = [
            {"n": n, "url": llm.base_url, "model": model} for n in range(3) for model in ("m", "unpriced")
        ]
        budget = FleetBudget(money_usd=1.0, prices={"m": Price(input=1.0, output=1.0)})
        finished = fleet(tmp_path, budget=budget).map(f"{work}:asks", cases)
        tally = finished.tally
        assert (finished.reason, tally.done, tally.unpaid, tally.failed) == ("finished", 3, 3, 0)


@pytest.mark.slow
def test_the_server_processes_of_all_workers_keep_within_the_cap(tmp_path: Path, work: str) -> None:
    script = tmp_path / "server.py"
    think = str(Path(grue_package.__file__).parent / "hosts" / "servers" / "think.py")
    script.write_text(ALONE.replace("sys.argv[1]", repr(think)))
    options = FleetOptions(servers=ServerCap(at_once=1))
    cases = [{"n": n, "server": str(script), "lock": str(tmp_path / "lock")} for n in range(6)]
    finished = fleet(tmp_path, options=options).map(f"{work}:alone", cases)
    assert (finished.tally.done, finished.tally.failed, finished.tally.kinds) == (6, 0, {})
    assert finished.tally.scores["score"][1] >= 6


@pytest.mark.slow
def test_an_unreachable_endpoint_is_tried_again_and_named(tmp_path: Path, work: str) -> None:
    finished = fleet(tmp_path).map(f"{work}:asks", [{"n": 0, "url": "http://127.0.0.1:9/v1"}])
    assert (finished.tally.given_up, finished.tally.kinds) == (1, {"LLMError: unreachable": 3})


SWEEP = """
work = "zork"
workers = 2
settings = { offline = true, mcp = false, turns = 3 }
grid.seed = { first = 1, last = COUNT }
"""


def sweep(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.replace("COUNT", str(count)))
    return path


def grue(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(GRUE), *map(str, words)]
    found = {**os.environ, "PATH": f"{GRUE.parent}{os.pathsep}{os.environ['PATH']}"}  # it names itself `grue`
    return subprocess.run(
        command, cwd=cwd, env=found, capture_output=True, text=True, timeout=HANG_S, check=False
    )


@pytest.mark.slow
def test_the_commands_from_plan_to_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sweep(tmp_path, 3)
    planned = said("fleet", "run", str(path), "--plan")
    assert "3 episodes of grue.fleet.zork_work:play, 3 of them missing" in planned
    ran = grue("fleet", "run", path, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    *lines, told, hint = ran.stdout.splitlines()
    assert told == "finished: 3 of 3 episodes done; 0 failed."
    assert hint == "To see the scores: grue fleet table runs/sweep"
    assert json.loads(lines[-1])["done"] == 3
    monkeypatch.chdir(tmp_path)
    status = json.loads(said("fleet", "status", "runs/sweep", "--json"))
    assert (status["scored"], status["total"], status["models"]) == (3, 3, {"grue-offline-script": 3})
    assert said("fleet", "table", "runs/sweep").split()[:5] == ["score", "turns", "tool_calls", "deaths", "n"]
    episode = next((tmp_path / "runs" / "sweep").glob("*/*")).name
    attempt = f"runs/sweep/{episode[:2]}/{episode}/attempt-1"
    shown = said("fleet", "show", "runs/sweep", episode[:10])
    assert f"grue trace show {attempt}" in shown
    assert "attempt 1: score " in shown
    assert "3 answered" in said("trace", "stats", attempt)
    assert said("fleet", "status", "nowhere").startswith("grue: There is no fleet in nowhere")


@pytest.mark.slow
def test_workers_have_the_mcp_sdk_from_the_start_only_where_servers_are_capped(tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text(
        "import sys\ndef at_first(case, episode):\n    return float('mcp' in sys.modules)\n"
    )
    path = tmp_path / "sweep.toml"
    path.write_text('work = "loaded.py:at_first"\nservers = 1\nworkers = 1\n[[cases]]\nn = 1\n')
    ran = grue("fleet", "run", path, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    commit = json.loads(next((tmp_path / "runs").glob("*/*/*/commit.json")).read_bytes())
    assert commit["end"]["scores"] == {"score": 1.0}
    assert "grue.transports.mcp.sdk" not in local._preloaded(Limits())


def said(*words: str) -> str:
    """What a command prints."""
    return CliRunner().invoke(app, words).output


def imports_for_workers(process: psutil.Process) -> bool:
    """Whether a process is the one that workers are forked from, and has begun to import."""
    try:
        return "forkserver" in " ".join(process.cmdline()) and process.memory_info().rss > 20_000_000
    except psutil.Error:
        return False


@pytest.mark.slow
def test_ctrl_c_while_the_workers_start_prints_no_traceback(tmp_path: Path) -> None:
    command = [str(GRUE), "fleet", "run", str(sweep(tmp_path, 500)), "--dir", "interrupted"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as driver:
        while not any(map(imports_for_workers, psutil.Process(driver.pid).children())):
            time.sleep(0.001)
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        _, err = driver.communicate(timeout=HANG_S)
    assert driver.returncode == 1
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err


@pytest.mark.slow
def test_ctrl_c_lets_the_running_episodes_end(tmp_path: Path) -> None:
    path = sweep(tmp_path, 500)
    command = [str(GRUE), "fleet", "run", str(path), "--dir", "interrupted"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as driver:
        while not list((tmp_path / "interrupted").glob("*/*/commit.json")):
            time.sleep(0.02)
        driver.send_signal(signal.SIGINT)
        out, _ = driver.communicate(timeout=HANG_S)
    assert driver.returncode == 1
    assert "interrupted: " in out
    there = list((tmp_path / "interrupted").glob("*/*/case.json"))
    assert len(there) == len(commits(tmp_path / "interrupted")) < 500
