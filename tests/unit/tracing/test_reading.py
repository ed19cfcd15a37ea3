"""Reading episodes: run folders, files of the first format, episodes that are still being played."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded_turns import Tape
from trace_files import TraceFile

from grue.errors import TraceError
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted
from grue.messages import RunTurn, ServerEnded, ServerName, ToolCallResult, ToolReturned, TurnCompleted
from grue.policies import TurnLimits
from grue.tracing.facts import EpisodeResumed
from grue.tracing.reading import open_episode, read_episode

STARTED = EpisodeStarted(episode_id="ep-1", game="house", game_hash="1", seed=7, model="m")
ENDED = EpisodeEnded(reason="won", detail="lamp on", turns=1)
DEADLINE_S = 150.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


class Stop:
    """Says that a follower has waited too long."""

    def __init__(self) -> None:
        self._at = time.monotonic() + DEADLINE_S

    def __call__(self) -> bool:
        assert time.monotonic() < self._at, "nothing came in time"
        return False


def test_a_run_folder_stands_for_the_trace_in_it(path: Path) -> None:
    Tape(TraceFile(path)).say(STARTED, sender="host")
    for given in (path, path.parent, str(path.parent)):
        reader = open_episode(given)
        assert (reader.path, reader.header.episode) == (path, "ep-1")
        assert [envelope.body for envelope in reader] == [STARTED]
        assert [envelope.body for envelope in read_episode(given).envelopes] == [STARTED]


def test_a_folder_without_a_trace_is_one_sentence_and_may_hold_runs(tmp_path: Path) -> None:
    (folder := tmp_path / "my runs").mkdir()
    with pytest.raises(
        TraceError, match=r"Cannot read the trace file .*trace\.jsonl: No such file"
    ) as refused:
        open_episode(folder)
    assert f"`grue runs '{folder}'` lists the runs." in str(refused.value)
    with pytest.raises(TraceError, match="`grue runs` lists the runs"):
        open_episode(tmp_path / "none")


def test_a_cut_line_is_said_after_the_iteration(path: Path) -> None:
    file = TraceFile(path)
    Tape(file).say(STARTED, ENDED, sender="host")
    file.cut(5)
    reader = open_episode(path)
    assert not reader.cut_short
    assert [envelope.body for envelope in reader] == [STARTED]
    assert reader.cut_short
    assert read_episode(path).cut_short


@pytest.mark.slow
def test_a_long_trace_is_not_held_in_memory(path: Path) -> None:
    tape = Tape(TraceFile(path))
    result = ToolCallResult("x" * 100_000)
    tape.say(*[ToolReturned(batch=1, call_id="c", result=result)] * 200, sender="thoughtbox")
    code = (
        "import sys, tracemalloc\nfrom pathlib import Path\nfrom grue.tracing.reading import open_episode\n"
        "reader = open_episode(Path(sys.argv[1]))\ntracemalloc.start()\n"
        "print(sum(1 for _ in reader), tracemalloc.get_traced_memory()[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    count, peak = map(int, done.stdout.split())
    assert count == 200
    assert path.stat().st_size > 20_000_000
    assert peak < 2_000_000


# --- The first format ---


def test_an_episode_of_the_first_format_is_read_as_it_was_meant() -> None:
    trace = read_episode(Path(__file__).parent / "format_1.jsonl")
    assert (trace.header.format, trace.header.episode, trace.header.version) == (1, "20260101-old", "")
    assert trace.cut_short
    started, run, returned, completed, decided, ended = [envelope.body for envelope in trace.envelopes]
    assert isinstance(started, EpisodeStarted)
    assert run == RunTurn(
        turn=1, system="Play.", user="It is dark.", servers=("thoughtbox",), limits=TurnLimits()
    )
    assert isinstance(returned, ToolReturned)
    assert returned.result.content == {"thoughtNumber": 1}
    assert isinstance(completed, TurnCompleted)
    assert completed.usage.input_tokens == 120
    assert isinstance(decided, Decided)
    assert decided.action == "take lamp"
    assert isinstance(ended, EpisodeEnded)
    assert [envelope.redacted for envelope in trace.envelopes] == [False, False, True, False, False, False]
    assert trace.envelopes[3].cause == 3


# --- Following an episode ---

PLAYING = """
import sys
from pathlib import Path
from grue.hosts.zork.facts import *
from grue.messages import *
from grue.tracing.observers.run_folder import RunFolder
from grue.runtime.trace.recorder import Recorder
recorder = Recorder()
with RunFolder(Path(sys.argv[1]), recorder, episode_id="ep-1") as run:
    print("begun", flush=True)
    for line in sys.stdin:
        turn = int(line)
        observed = Observed(turn=turn, text="It is dark. " * 10000)
        recorder.record(observed, sender="game", turn=turn)
    recorder.record(EpisodeEnded(reason="won", detail="", turns=turn), sender="game")
"""


@pytest.mark.slow
def test_an_episode_is_followed_while_another_process_plays_it(tmp_path: Path) -> None:
    player = subprocess.Popen(
        [sys.executable, "-c", PLAYING, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert player.stdin is not None
    assert player.stdout is not None
    assert player.stdout.readline() == "begun\n"
    following = open_episode(tmp_path / "run").follow(Stop(), 0.005)
    for turn in range(1, 6):
        # Only what was already seen makes the player go on: nothing is waited for but the file.
        player.stdin.write(f"{turn}\n")
        player.stdin.flush()
        assert next(following).turn == turn
    player.communicate(timeout=DEADLINE_S)
    assert isinstance(next(following).body, EpisodeEnded)
    assert list(following) == []


def test_an_end_that_the_episode_went_on_after_is_no_end(path: Path) -> None:
    tape = Tape(TraceFile(path))
    tape.say(STARTED, ENDED, EpisodeResumed(episode_id="ep-1", turns=1), sender="host")
    following = open_episode(path).follow(Stop(), 0.001)
    assert [type(next(following).body) for _ in range(3)] == [EpisodeStarted, EpisodeEnded, EpisodeResumed]
    tape.say(ENDED, sender="host")
    assert [envelope.body for envelope in following] == [ENDED]


def test_a_server_that_ends_after_the_episode_keeps_no_follower_waiting(path: Path) -> None:
    later = ServerEnded(server=ServerName("shop"), ending="polite")
    Tape(TraceFile(path)).say(STARTED, ENDED, later, sender="host")
    followed = open_episode(path).follow(Stop(), 0.001)
    assert [envelope.body for envelope in followed] == [STARTED, ENDED, later]


def test_a_follower_stops_when_told(path: Path) -> None:
    Tape(TraceFile(path)).say(STARTED, sender="host")
    assert [envelope.body for envelope in open_episode(path).follow(lambda: True)] == [STARTED]
