"""`grue trace` in this process: its options and what they exit with."""

import json
import re
import shlex
from pathlib import Path

import pytest
from recorded_turns import Called, Play, Tape
from trace_files import TraceFile
from typer.testing import CliRunner

from grue import Runner
from grue.cli.app import app
from grue.messages import RunTurn
from grue.testing.offline import offline_endpoint, reply_in_chat

RUN = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder whose trace has three turns."""
    file = TraceFile(tmp_path / "trace.jsonl")
    tape = Tape(file)
    for turn in (1, 2, 3):
        run = RunTurn(turn=turn, system="s", user=f"User {turn}", servers=("thoughtbox",))
        Play(tape, run, [[Called("thoughtbox.think", f'{{"thought": "idea {turn}"}}')], "look"])
    return tmp_path


def kinds(*args: str | Path) -> list[tuple[int, str]]:
    shown = RUN.invoke(app, ["trace", "show", *map(str, args), "--json"])
    assert shown.exit_code == 0, shown.output
    envelopes = [json.loads(line) for line in shown.output.splitlines()]
    return [(envelope["turn"], envelope["body"]["type"]) for envelope in envelopes]


@pytest.mark.slow
def test_a_query_shows_times_to_the_millisecond(folder: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'grue[export]'")
    sql = "select 1795917173.6804::double, 0.1234567::double, 1e300::double, 'nan'::double, 99999.97::double"
    shown = RUN.invoke(app, ["trace", "query", sql, str(folder)]).output.splitlines()
    assert shown[1].split() == ["1795917173.680", "0.123457", "1e+300", "nan", "100000"]


def test_a_trace_is_shown_by_its_file_or_its_folder(folder: Path) -> None:
    by_folder, by_file = (
        RUN.invoke(app, ["trace", "show", str(path)]) for path in (folder, folder / "trace.jsonl")
    )
    assert by_folder.exit_code == 0
    assert by_folder.output == by_file.output
    assert "\nturns       3: 3 answered\n" in by_folder.output


def test_json_is_the_files_lines(folder: Path) -> None:
    shown = RUN.invoke(app, ["trace", "show", str(folder), "--json"])
    assert shown.output.splitlines() == (folder / "trace.jsonl").read_text().splitlines()[1:]


def test_filters_narrow_each_other_and_widen_themselves(folder: Path) -> None:
    assert kinds(folder, "--kind", "runt", "--turn", "2-3") == [(2, "RunTurn"), (3, "RunTurn")]
    assert kinds(folder, "--kind", "runt", "--kind", "toolcalled", "--turn", "1") == [
        (1, "RunTurn"),
        (1, "ToolCalled"),
    ]
    assert kinds(folder, "--text", "IDEA 3", "--actor", "thoughtbox") == [(3, "CallTools"), (3, "ToolCalled")]


@pytest.mark.parametrize("form", [(), ("--json",), ("--whole",)])
def test_where_nothing_fits_it_says_what_there_is_and_exits_with_one(
    folder: Path, form: tuple[str, ...]
) -> None:
    for asked in (("--message", "999"), ("--turn", "0"), ("--text", "zebra"), ("--actor", "bob")):
        shown = RUN.invoke(app, ["trace", "show", str(folder), *asked, *form])
        assert (shown.exit_code, shown.stdout) == (1, "")
        assert re.search(r"fits\. It has the messages 1 to \d+, of the turns 1 to 3\.", shown.stderr)
        assert "Actors: agent, host, llm" in shown.stderr
        assert "Kinds of messages: AnswerAccepted, " in shown.stderr


def test_a_message_is_printed_whole(folder: Path) -> None:
    shown = RUN.invoke(app, ["trace", "show", str(folder), "--turn", "2", "--kind", "RunTurn", "--whole"])
    assert shown.exit_code == 0, shown.output
    first, *fields = shown.output.splitlines()
    assert "RunTurn  turn 2, host → agent" in first
    assert any(line.startswith("  system: ") for line in fields)
    assert any(line.startswith("  limits:") for line in fields), "what a line of the table leaves out, too"
    failures = RUN.invoke(app, ["trace", "show", str(folder), "--failures"])
    assert (failures.exit_code, failures.stdout) == (1, "")
    assert "reports a failure or a problem" in failures.stderr


def test_a_filtered_table_has_no_summary_of_the_episode(folder: Path) -> None:
    shown = RUN.invoke(app, ["trace", "show", str(folder), "--kind", "RunTurn", "--width", "70"])
    assert ", 3 of " in shown.output
    assert "3 answered" not in shown.output
    assert all(len(line) <= 70 for line in shown.output.splitlines())


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--kind", "Observd", "the nearest is Observed"),
        ("--kind", "tool", "can be more than one"),
        ("--turn", "three", "is not a turn"),
        ("--width", "5", "20"),
    ],
)
def test_a_filter_that_cannot_be_read_exits_with_two(
    folder: Path, option: str, value: str, said: str
) -> None:
    refused = RUN.invoke(app, ["trace", "show", str(folder), option, value])
    assert refused.exit_code == 2
    assert said in refused.output


def test_numbers_come_as_tables_or_as_json(folder: Path) -> None:
    table = RUN.invoke(app, ["trace", "stats", str(folder)])
    assert table.exit_code == 0
    assert "turns       3: 3 answered" in table.output
    stats = json.loads(RUN.invoke(app, ["trace", "stats", str(folder), "--json"]).output)
    assert stats["turns"]["started"] == 3
    assert stats["tools"][0]["tool"] == "thoughtbox.think"


@pytest.mark.parametrize("command", ["show", "stats"])
def test_what_is_no_trace_exits_with_one(tmp_path: Path, command: str) -> None:
    missing = RUN.invoke(app, ["trace", command, str(tmp_path / "nowhere")])
    assert missing.exit_code == 1
    assert "grue: Cannot read the trace file " in missing.output
    damaged = tmp_path / "trace.jsonl"
    damaged.write_text("{}\n")
    assert RUN.invoke(app, ["trace", command, str(damaged)]).exit_code == 1


@pytest.mark.slow
def test_a_number_that_several_turns_have_is_told_with_the_command_that_shows_one(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    with Runner(llm=offline_endpoint(reply_in_chat), trace=file) as runner:
        for texts in (["One.", "Two."], ["Three.", "Four."]):
            assert all(item.outcome for item in runner.map(texts, concurrency=1))
    shown = RUN.invoke(app, ["trace", "show", str(file), "--turn", "2"])
    told = re.search(
        r"Turn 2 begins 2 times here, .*?To see the last alone: .*?trace show (.*)", shown.output
    )
    assert told is not None, shown.output
    alone = RUN.invoke(app, ["trace", "show", *shlex.split(told[1])])
    assert "Four." in alone.output
    assert "Two." in shown.output
    assert "Two." not in alone.output
    assert "begins" not in RUN.invoke(app, ["trace", "show", str(file), "--turn", "1-2"]).output
