"""The folder of an episode: what is in it, who may read it, what is never in it, and going on with it."""

import json
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from recorded_turns import Called, Play, Tape

from grue.engine.episode_past import Past
from grue.engine.wiring import OwnTrace
from grue.errors import TraceError
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.messages import RunTurn
from grue.runtime.trace.file import TraceOptions
from grue.runtime.trace.recorder import Recorder
from grue.tracing.facts import EpisodeResumed
from grue.tracing.observers.run_folder import RunFolder, new_run_path
from grue.tracing.reading import read_episode

THINK = "thoughtbox.think"
STARTED = EpisodeStarted(episode_id="ep-1", game="house", game_hash="1", seed=7, model="m")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def play(tape: Tape, turn: int, text: str = "It is dark.", **called: object) -> None:
    """Record a turn with a tool call whose result is what the game shows."""
    tape.say(Observed(turn=turn, text=text), sender="host")
    run = RunTurn(turn=turn, system="s", user=text, servers=("thoughtbox",))
    Play(tape, run, [[Called(THINK, json.dumps({"thought": text}), content=text)], "look"])
    decided = Decided(turn=turn, action="look", reasoning=text, new_objective=None, kind="answered")
    tape.say(decided, sender="host")


def test_everything_in_it_is_for_its_owner_only(path: Path) -> None:
    tape = Tape()
    small = TraceOptions(max_payload_bytes=50)
    with RunFolder(str(path), tape.recorder, episode_id="ep-1", options=small) as run:
        play(tape, 1)
        run.write_result({"turns": 1})
    names = {file.name for file in path.iterdir()}
    assert names == {"trace.jsonl", "events.jsonl", "episode.log", "result.json", "payloads"}
    modes = {stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*") if each.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (path, path / "payloads")} == {0o700}


def test_a_decision_is_in_the_trace_before_the_host_may_act_upon_it(path: Path) -> None:
    tape = Tape()
    with RunFolder(path, tape.recorder, episode_id="ep-1"):
        tape.say(STARTED, sender="host")
        play(tape, 1)
        last = read_episode(path).envelopes[-1].body
        assert isinstance(last, Decided)


class Untagged(Struct):
    number: int


class Nested(Struct, tag="test.Nested"):
    value: list[Any]


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels > 1 else []


@pytest.mark.parametrize("file", ["run", "trace.jsonl"])
@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ("a text", {}),
        ({"number": 2}, {}),
        (Untagged(2), {}),
        (STARTED, {"turn": "1"}),
        (STARTED, {"turn": True}),
        (STARTED, {"sender": 5}),
        (Nested(nested(250)), {}),
    ],
)
def test_a_record_that_no_reader_would_take_is_refused(
    tmp_path: Path, file: str, body: object, sent: dict[str, Any]
) -> None:
    recorder = Recorder()
    path = tmp_path / file
    with RunFolder(path, recorder, episode_id="e") if file == "run" else closing(OwnTrace(path, recorder)):
        recorder.record(STARTED, sender="host")
        with pytest.raises(TraceError, match="could not be read any more"):
            recorder.record(body, **{"sender": "host", **sent})
        recorder.record(STARTED, sender="host")
    assert [(envelope.seq, envelope.body) for envelope in read_episode(path).envelopes] == [
        (1, STARTED),
        (2, STARTED),
    ]


def test_flush_writes_what_no_host_has_said(path: Path) -> None:
    tape = Tape()
    with RunFolder(path, tape.recorder, episode_id="ep-1") as run:
        tape.say(EpisodeEnded(reason="won", detail="", turns=1), sender="somebody")
        assert run.flush()
        assert len(read_episode(path).envelopes) == 1


def test_a_result_is_that_of_the_last_end(path: Path) -> None:
    """A resumed episode was killed before it wrote its result: the one before is not taken for it."""
    end = EpisodeEnded(reason="won", detail="", turns=1)
    tape = Tape()
    with RunFolder(path, tape.recorder, episode_id="ep-1") as run:
        tape.say(STARTED, end, sender="host")
        run.write_result({"reason": "won"})
    with pytest.raises(TraceError, match="it is over"):
        Past.read(path, over=("won",))
    tape = Tape()
    with RunFolder(path, tape.recorder, episode_id="ep-1", resume=True) as run:
        assert (path / "result.json").exists(), "nothing has been recorded yet"
        tape.say(EpisodeResumed(episode_id="ep-1", turns=1), sender="host")
        assert not (path / "result.json").exists()
        tape.say(end, sender="host")
    assert Past.read(path, over=("won",)).ended == end


def test_a_result_may_hold_bytes_that_are_no_text(path: Path) -> None:
    """The task of a command line, or the name of a file, can have a lone surrogate for each such byte."""
    with RunFolder(path, Recorder(), episode_id="ep-1") as run:
        run.write_result({"task": "caf\udce9"})
    assert json.loads((path / "result.json").read_bytes()) == {"task": "caf\ufffd"}


class Counted(Struct):
    turns: int
    found: object


def test_a_secret_that_is_a_number_is_in_no_file_of_the_folder(path: Path) -> None:
    recorder = Recorder(secrets={"pin": "4711"})
    with RunFolder(path, recorder, episode_id="ep-1") as run:
        kept = run.keep("artifacts/found.json", b'{"pin": 4711, "other": 4712}')
        run.write_result(Counted(1, {"pin": 4711, "other": 4712}))
        shown = {"pin": "[redacted:pin]", "other": 4712}
        assert json.loads((path / "result.json").read_bytes()) == {"turns": 1, "found": shown}
        assert json.loads((path / kept).read_bytes()) == shown
        run.write_result(Counted(4711, "the PIN 4711"))
    needed = {"turns": 4711, "found": "the PIN [redacted:pin]"}
    assert json.loads((path / "result.json").read_bytes()) == needed, "the type wants a number"


def test_an_episode_goes_on_in_the_same_files(path: Path) -> None:
    first, second = Tape(), Tape()
    with RunFolder(path, first.recorder, episode_id="ep-1"):
        first.say(STARTED, sender="host")
        play(first, 1)
        first.tick(3.0)
        play(first, 2)
    before = {name: (path / name).read_bytes() for name in ("trace.jsonl", "events.jsonl", "episode.log")}
    for name in before:
        with (path / name).open("ab") as file:
            file.write(b'{"seq":99,"half')
    with RunFolder(path, second.recorder, episode_id="ep-1", resume=True):
        second.say(EpisodeResumed(episode_id="ep-1", turns=2), sender="host")
        play(second, 3)
    trace = read_episode(path)
    assert [envelope.seq for envelope in trace.envelopes] == list(range(1, len(trace.envelopes) + 1))
    times = [envelope.t for envelope in trace.envelopes]
    assert times == sorted(times)
    assert times[-1] > 3.0
    bodies = [envelope.body for envelope in trace.envelopes]
    assert bodies[len(first.envelopes)] == EpisodeResumed(episode_id="ep-1", turns=2)
    for name, content in before.items():
        after = (path / name).read_bytes()
        assert after.startswith(content)
        assert b"half" not in after
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    assert {event["turn"] for event in events} >= {1, 2, 3}
    assert "Turn 3" in (path / "episode.log").read_text()


def test_there_has_to_be_something_to_go_on_with(path: Path) -> None:
    with pytest.raises(TraceError, match="Cannot read the trace file"):
        RunFolder(path, Recorder(), episode_id="ep-1", resume=True)
    assert not path.exists()


def test_an_episode_that_is_being_played_is_not_gone_on_with(path: Path) -> None:
    played = RunFolder(path, Recorder(), episode_id="ep-1")
    with pytest.raises(TraceError, match="is still being played"):
        RunFolder(path, Recorder(), episode_id="ep-1", resume=True)
    played.close()


def test_a_folder_that_cannot_be_used_leaves_nothing_open(path: Path) -> None:
    (path / "episode.log").mkdir(parents=True)
    recorder = Recorder()
    with pytest.raises(TraceError, match=r"episode log .*: Is a directory"):
        RunFolder(path, recorder, episode_id="ep-1")
    recorder.record(STARTED, sender="host")
    assert len((path / "trace.jsonl").read_bytes().splitlines()) == 1
    (path / "episode.log").rmdir()
    RunFolder(path, Recorder(), episode_id="ep-1", resume=True).close()


# --- Secrets ---

PLANTED = "pl4nted/Secret+value"
ESCAPES = {
    "as it is": lambda text: text,
    "JSON": json.dumps,
    "JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "JSON with escaped slashes": lambda text: json.dumps({"a": text}).replace("/", "\\/"),
    "JSON with escaped slashes in JSON": lambda text: json.dumps(json.dumps([text]).replace("/", "\\/")),
}
HEADERS = {
    "named": "{}",
    "bearer": "Authorization: Bearer {}",
    "basic": "authorization: Basic {}\r\nHost: h",
    "api key": "-H 'X-Api-Key: {}'",
    "bare bearer": "sent Bearer {}, refused",
    "dict": "{{'authorization': '{}'}}",
}


def contents(folder: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("escaped", ESCAPES)
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("max_payload_bytes", [0, 65_536])
def test_a_planted_secret_is_in_no_byte_of_the_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch, header: str, escaped: str, max_payload_bytes: int
) -> None:
    if header == "named":
        monkeypatch.setenv("GAME_SERVER_TOKEN", PLANTED)
    text = ESCAPES[escaped](HEADERS[header].format(PLANTED))
    tape, options = Tape(), TraceOptions(max_payload_bytes=max_payload_bytes)
    with RunFolder(path, tape.recorder, episode_id="ep-1", options=options) as run:
        play(tape, 1, text)
        run.write_result({"detail": text})
    written = contents(path)
    assert b"[redacted:" in written
    assert b"pl4nted" not in written
    assert b"Secret+value" not in written


SECRETS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map("pl4nted".__add__)


@given(SECRETS, st.sampled_from(sorted(ESCAPES)), st.booleans(), st.text(max_size=9))
@pytest.mark.slow
def test_a_configured_secret_is_in_no_byte_of_the_folder(
    tmp_path_factory: pytest.TempPathFactory, secret: str, escaped: str, ascii_only: bool, around: str
) -> None:
    path, tape = tmp_path_factory.mktemp("run"), Tape()
    tape.recorder.hide("KEY", secret)
    text = ESCAPES[escaped](f"{around}{secret}{around}")
    if not ascii_only and escaped != "as it is":
        text = json.dumps(json.loads(text), ensure_ascii=False)
    with RunFolder(path, tape.recorder, episode_id="ep-1") as run:
        play(tape, 1, text)
        run.write_result({"detail": text})
    written = contents(path)
    assert b"pl4nted" not in written
    assert b"[redacted:KEY]" in written


def test_a_folder_that_is_moved_is_noticed_when_the_host_speaks_next(tmp_path: Path) -> None:
    path, recorder = tmp_path / "run", Recorder()
    with RunFolder(path, recorder, episode_id="ep-1"):
        path.rename(tmp_path / "elsewhere")
        recorder.record(EpisodeResumed(episode_id="ep-1", turns=1), sender="agent")
        with pytest.raises(TraceError, match="run was moved or deleted while it was being written"):
            recorder.record(EpisodeResumed(episode_id="ep-1", turns=2), sender="host")


def test_a_host_that_changes_its_working_directory_has_its_folder_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    recorder, small = Recorder(), TraceOptions(max_payload_bytes=50)
    with RunFolder("run", recorder, episode_id="ep-1", options=small) as run:
        monkeypatch.chdir(tmp_path / "other")
        recorder.record(EpisodeResumed(episode_id="ep-1", turns=2), sender="host")
        run.write_result({"turns": 2})
        run.keep("notes/one.txt", b"It is dark.")
    assert len(read_episode(tmp_path / "run").envelopes) == 1
    assert [*(tmp_path / "other").iterdir()] == []
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names >= {"payloads", "result.json", "notes"}
    run.discard()
    assert not (tmp_path / "run" / "trace.jsonl").exists()


def test_a_file_of_the_hosts_own_is_kept_without_secrets_and_under_a_plain_name(tmp_path: Path) -> None:
    recorder = Recorder(secrets={"KEY": "sk-very-secret"})
    with RunFolder(tmp_path / "run", recorder, episode_id="e") as folder:
        kept = folder.keep("pages/a b\n.json", b'{"key": "sk-very-secret"}')
        text = folder.keep("notes.txt", b"the key is sk-very-secret \xff")
        with pytest.raises(TraceError, match="Cannot write"):
            folder.keep("notes.txt/x.txt", b"")
        for outside in ("../notes.txt", "pages/../../notes.txt", str(tmp_path / "notes.txt"), ".."):
            with pytest.raises(TraceError, match="not below the run folder"):
                folder.keep(outside, b"")
    assert not (tmp_path / "notes.txt").exists()
    assert (kept, text) == ("pages/a_b_.json", "notes.txt")
    for name in (kept, text):
        file = tmp_path / "run" / name
        assert b"sk-very" not in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600


def test_run_folders_of_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    made = [new_run_path(tmp_path / "runs") for _ in range(3)]
    assert len(set(made)) == 3
    assert all(path.is_dir() for path in made)
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match="Cannot create the run folder"):
        new_run_path(tmp_path / "file")


def test_a_discarded_folder_is_gone_unless_it_holds_something_else(tmp_path: Path) -> None:
    for name in ("empty", "kept"):
        folder = RunFolder(tmp_path / name, Recorder(), episode_id="e")
        if name == "kept":
            (tmp_path / name / "notes.txt").touch()
        folder.discard()
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["kept", "notes.txt"]
