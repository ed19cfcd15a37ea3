"""A trace as a table for people."""

import json
import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded_turns import Called, Play, Tape, opened, refused_connection
from trace_files import TraceFile

from grue import messages
from grue.errors import MCPConfigError, TraceError
from grue.hosts.zork import facts
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted
from grue.messages import RunTurn, ToolCallResult, TurnFailed
from grue.runtime.actor import ActorFailed
from grue.tracing.columns import cells
from grue.tracing.facts import EpisodeResumed
from grue.tracing.filters import Filter
from grue.tracing.message_words import summarize
from grue.tracing.reading import EpisodeReader, known_kinds, open_episode
from grue.tracing.show import json_line, render, render_live

THINK = "thoughtbox.think"
SGR = re.compile(r"\x1b\[[0-9;]*m")


def played(*observers: Any) -> Tape:
    """Record two turns between an episode's start and end; the second has every kind of bad call."""
    tape = Tape(*observers)
    start = EpisodeStarted(episode_id="ep-1", game="house", game_hash="1", seed=7, model="m", scripted=True)
    tape.say(start, sender="host")
    for turn, replies in enumerate(
        [
            [[Called(THINK, '{"thought": "漢字 \\u001b[2J"}', content={"next": False})], "take lamp"],
            [
                [Called(THINK, outcome="error"), Called("nowhere.go")],
                [Called(THINK, outcome="timeout"), Called(THINK)],
                [Called(THINK, outcome="died")],
                "look\x1b[31m\nnow",
            ],
        ],
        start=1,
    ):
        run = RunTurn(turn=turn, system="s", user="It is dark.\n>", servers=("thoughtbox",))
        action = Play(tape, run, replies).end.answer["action"]
        decided = Decided(turn=turn, action=action, reasoning="", new_objective=None, kind="answered")
        tape.say(decided, sender="host")
    tape.say(EpisodeEnded(reason="won", detail="lamp on", turns=2, score=90, max_score=100), sender="host")
    return tape


@pytest.fixture
def file(tmp_path: Path) -> TraceFile:
    return TraceFile(tmp_path / "trace.jsonl")


@pytest.fixture
def episode(file: TraceFile) -> EpisodeReader:
    """Two turns, in a file."""
    played(file)
    return file.read()


def plain(text: str) -> str:
    return SGR.sub("", text)


def test_each_message_is_one_line_with_its_columns(episode: EpisodeReader) -> None:
    lines = list(render(episode))
    assert lines[0] == "Episode ep-1, started 2026-09-21 14:13:20 UTC, 52 messages"
    assert lines[1].split() == ["seq", "time", "turn", "cause", "from", "→", "to", "message"]
    (called,) = [line for line in lines if re.search(r" 1 +thoughtbox → trace +ToolCalled ", line)]
    assert called.endswith('call_1 thoughtbox.think {"thought":"漢字 \\u001b[2J"}')


def test_columns_are_aligned(episode: EpisodeReader) -> None:
    heading, *lines = [line for line in render(episode) if " → " in line]
    envelopes = list(episode)
    assert len(lines) == len(envelopes)
    place = heading.index("message")
    for line, envelope in zip(lines, envelopes, strict=True):
        assert line[place - 2 :].startswith(f"  {type(envelope.body).__name__} ")


def test_turns_stand_under_headings_host_facts_with_their_turn(episode: EpisodeReader) -> None:
    lines = list(render(episode))
    assert [line for line in lines if line.startswith("──")] == [
        "── Turn 1 ──",
        "── Turn 2 ──",
        "── Outside turns ──",
    ]
    (start,) = [number for number, line in enumerate(lines) if line == "── Turn 2 ──"]
    assert "Decided" in lines[start - 2]


def test_turns_that_run_at_once_have_one_heading_each_if_a_column_says_which_is_which(
    file: TraceFile,
) -> None:
    tape = Tape(file)
    for turn in (1, 2):
        tape.say(RunTurn(turn=turn, system="s", user="u"), turn=turn)
    for turn in (1, 0, 2, 1, 2):
        tape.say(opened(), turn=turn)
    for turn in (2, 1):
        tape.say(messages.TurnCompleted(turn=turn, kind="answered"), turn=turn)
    tape.say(opened(), opened())
    headings = [line.strip("─ ") for line in render(file.read()) if line.startswith("──")]
    assert headings == ["Turn 1", "Turn 2", "Outside turns"]
    narrow = [line.strip("─ ") for line in render(file.read(), width=60) if line.startswith("──")]
    assert narrow[:5] == ["Turn 1", "Turn 2", "Turn 1", "Outside turns", "Turn 2"]


def test_a_cause_is_shown_by_its_number(file: TraceFile) -> None:
    tape = Tape(file)
    tape.recorder.record(opened(), sender="thoughtbox", receiver="agent", turn=1)
    tape.recorder.record(messages.CloseSession(server="thoughtbox"), sender="agent", cause=1, turn=1)
    last = list(render(file.read()))[-1]
    assert last.split()[:4] == ["2", "0.000", "1", "1"]


@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_lines_are_cut_to_the_terminal(file: TraceFile, width: int, colour: bool) -> None:
    played(file)
    file.cut(20)
    episode = file.read()
    live = render_live(episode.header, episode, width=width, colour=colour)
    for line in [*render(episode, width=width, colour=colour), *live]:
        assert cells(plain(line)) <= width


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (150, ["seq", "time", "turn", "cause", "from", "→", "to", "message"]),
        (110, ["seq", "time", "cause", "from", "→", "to", "message"]),
        (100, ["seq", "time", "from", "→", "to", "message"]),
        (80, ["seq", "from", "→", "to", "message"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_as_many_lines(
    episode: EpisodeReader, width: int, columns: list[str]
) -> None:
    lines = list(render(episode, width=width))
    assert lines[1].split() == columns
    assert len(lines) == len(list(render(episode)))


def test_without_colour_there_is_no_escape_and_with_it_nothing_but_colours(episode: EpisodeReader) -> None:
    bare = list(render(episode))
    assert all(line.isprintable() for line in bare)
    coloured = list(render(episode, colour=True))
    assert coloured != bare
    assert [plain(line) for line in coloured] == bare


@pytest.mark.parametrize(
    ("kind", "colour"),
    [("ToolTimedOut", "31"), ("ServerDied", "31"), ("Decided", "32"), ("ToolSkipped", "33")],
)
def test_what_went_wrong_stands_out(episode: EpisodeReader, kind: str, colour: str) -> None:
    lines = [line for line in render(episode, colour=True) if f" {kind} " in line]
    assert lines
    assert all(line.startswith(f"\x1b[{colour}m") for line in lines)


def test_a_returned_error_stands_out_and_a_result_does_not(episode: EpisodeReader) -> None:
    lines = [line for line in render(episode, colour=True) if " ToolReturned " in line]
    assert [line.startswith("\x1b[33m") for line in lines] == [False, True]


def test_a_removed_secret_is_said(file: TraceFile) -> None:
    tape = Tape(file)
    tape.recorder.hide("API_KEY", "s3cr3t-value")
    tape.say(facts.McpInitFailed(error="refused s3cr3t-value"))
    assert list(render(file.read()))[-1].endswith("[redacted:API_KEY] (a secret was removed)")
    assert '"redacted":true' in json_line(next(iter(file.read())))


def test_an_empty_trace_is_a_table_without_rows(file: TraceFile) -> None:
    assert [line.split(", ")[-1] for line in render(file.read())] == [
        "0 messages",
        "seq  time  turn  cause  from → to  message",
    ]


def test_a_start_that_no_clock_shows_is_no_crash(file: TraceFile) -> None:
    header = msgspec.structs.replace(file.read().header, started_at=1e300, episode="e\x1b[2J")
    assert next(iter(render_live(header, ()))) == "Episode e\\u001b[2J, started at an unknown time"


def test_a_file_cut_short_is_shown_and_says_so(file: TraceFile) -> None:
    tape = played(file)
    assert [envelope.body for envelope in file.read()] == [envelope.body for envelope in tape.envelopes]
    assert "cut short" not in "".join(render(file.read()))
    file.cut(20)
    lines = list(render(file.read()))
    assert "The last line of the file was cut short" in lines[-1]
    assert f", {len(tape.envelopes) - 1} messages" in lines[0]


def test_what_is_no_episode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("{}\n")
    with pytest.raises(TraceError, match="not a grue trace"):
        open_episode(path)


def test_a_filter_leaves_lines_out_and_says_of_how_many(episode: EpisodeReader) -> None:
    lines = list(render(episode, Filter.of(turns=["2"], kinds=["ToolCalled"])))
    assert lines[0].endswith(", 3 of 52 messages")
    assert [line.split()[-2] for line in lines[4:]] == ["thoughtbox.think"] * 3
    assert lines[2:4] == ["", "── Turn 2 ──"]


def test_a_live_trace_is_shown_as_it_comes(file: TraceFile) -> None:
    """Each line is there before the next message is."""
    tape = Tape(file)
    live = render_live(file.read().header, file.read().follow(lambda: True, poll_s=0))
    assert [next(live), next(live)][0].startswith("Episode ep-1, started ")
    tape.say(opened(), turn=1)
    shown = [next(live), next(live), next(live)]
    assert shown[:2] == ["", "── Turn 1 ──"]
    assert shown[2].split()[0] == "1"
    tape.say(messages.CloseSession(server="thoughtbox"), turn=1)
    line = next(live)
    assert line.index("CloseSession") == shown[2].index("SessionOpened"), "fixed columns are aligned too"
    assert list(live) == []


def test_json_lines_are_the_traces_own(file: TraceFile) -> None:
    played(file)
    assert [json_line(envelope) for envelope in file.read()] == file.lines


def test_json_lines_show_a_terminal_no_character_that_it_acts_upon(file: TraceFile) -> None:
    evil = "\x9b2J \u202e \x7f \u2066 \U000e0041 <script>漢字\u00a0"
    Tape(file).say(facts.McpInitFailed(error=evil))
    (envelope,) = file.read()
    line = json_line(envelope)
    assert line.isprintable()
    assert "<script>漢字" in line
    assert json.loads(line)["body"]["error"] == evil


def kinds_of_body() -> list[type]:
    return list(known_kinds().values())


def sample(annotation: Any) -> Any:
    """Return a value of an annotated type, with text that would move a cursor."""
    if isinstance(annotation, typing.NewType):
        return sample(annotation.__supertype__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return (sample(arguments[0]),)
    if origin is dict:
        return {"key": sample(arguments[1])}
    if arguments:
        return sample(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        hints = typing.get_type_hints(annotation)
        try:
            return annotation(**{name: sample(hints[name]) for name in annotation.__struct_fields__})
        except MCPConfigError:
            return annotation()  # its fields have to fit together
    return {str: "x\x1b[2J\ny", int: 2, float: 1.5, bool: True, object: {"a": [1]}}[annotation]


@pytest.mark.parametrize("kind", kinds_of_body(), ids=lambda kind: kind.__name__)
def test_every_kind_of_message_has_something_to_tell(kind: type, tmp_path: Path) -> None:
    body = sample(kind)
    assert summarize(body)
    file = TraceFile(tmp_path / "trace.jsonl")
    Tape(file).say(body)
    assert all(line.isprintable() for line in render(file.read()))
    assert all(json_line(envelope).isprintable() for envelope in file.read())


def test_a_message_that_says_little_is_told_all_the_same() -> None:
    told = [
        summarize(opened(attempt=2)),
        summarize(messages.SessionOpened(server="a", tools=())),
        summarize(messages.CompletionReceived(request=1)),
        summarize(messages.McpDisabled(server="a", reason="r")),
        summarize(messages.ToolReturned(batch=1, call_id="c", result=ToolCallResult(None))),
        summarize(TurnFailed(turn=1, failure=messages.Interrupted(reason="Ctrl-C"))),
        summarize(TurnFailed(turn=1, failure=messages.DeadlineMissed(limit_s=3, doing="waiting"))),
        summarize(TurnFailed(turn=1, failure=messages.NoAnswer(reason="empty"))),
        summarize(TurnFailed(turn=1, failure=refused_connection())),
        summarize(ActorFailed(actor="llm", error="KeyError: 1", where=())),
        summarize(messages.ToolSupportChecked(model="m", endpoint="e", supported=True, by="forced")),
        summarize(
            messages.ToolSupportChecked(model="m", endpoint="e", supported=False, by="name", reason="old")
        ),
        summarize(
            TurnFailed(turn=1, failure=messages.ToolsUnsupported(model="m", endpoint="e", reason="old"))
        ),
        summarize(messages.McpDisabled(server="a", reason="r", newly=True)),
        summarize(messages.McpDisabled(server="a", reason="r", newly=True, retry_s=0.5)),
        summarize(messages.McpDisabled(server="a", reason="r", last_words="why", retry_s=60)),
        summarize(messages.ReplyCut(request=2, limit_tokens=100, retried_with=400)),
        summarize(messages.ReplyCut(request=2, limit_tokens=None)),
        summarize(messages.TextDelta(request=1, text=" and")),
        summarize(messages.TextDelta(request=1, text="hm", part="reasoning")),
        summarize(EpisodeResumed(episode_id="ep-1", turns=1)),
    ]
    assert told == [
        "thoughtbox, attempt 2, pid 4711, 30.0 ms: 1 tool (think)",
        "a, 0.0 ms: no tools",
        "nothing (0+0 tokens, 0.0 ms)",
        "a is disabled since an earlier turn: r",
        "c 0.0 ms: null",
        "interrupted: Ctrl-C",
        "out of time after 3 s, waiting",
        "no answer: empty",
        "thoughtbox, spawn: Connection refused",
        "KeyError: 1",
        "m can call tools, says the configuration",
        "m cannot call tools, going by its name: old",
        "m cannot call tools: old",
        "a is disabled for the rest of the episode: r",
        "a is disabled until it is tried again after 0.5 s: r",
        "a is disabled until it is tried again after 60 s: r. Its last line on stderr: why",
        "request 2: the model's reply was cut short at 100 tokens (max_tokens);"
        " asked again with a limit of 400 tokens",
        "request 2: the model's reply was cut short at its limit",
        '" and"',
        'reasoning "hm"',
        "ep-1 goes on after 1 finished turn",
    ]


def test_at_80_columns_the_message_has_room(episode: EpisodeReader) -> None:
    """It had 19 characters."""
    heading = list(render(episode, width=80))[1]
    assert 80 - heading.index("message") - 2 > 40
