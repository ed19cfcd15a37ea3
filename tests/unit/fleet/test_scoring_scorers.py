from pathlib import Path

import pytest
from made_fleets import make_fleet

from grue import Runner
from grue.errors import FleetError
from grue.fleet.folder import FleetFolder, driver_lock
from grue.fleet.scoring import FinishedEpisode, Scorer, ScoreTask, Scoring, read_scoring, score, score_fleet
from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.marks import read_marks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[budget]\nrequests = -1\n", ": requests is -1: a limit is a number, 0 or more"),
        ("timeout_s = 0\n", ": .*timeout_s is 0.0; it must be a finite number above 0"),
        ("workers = 'x'\n", ": workers: Expected `int`, got `str`"),
        ("a =\n", " is not valid TOML: Invalid value"),
        ("a = 1979-99-99\n", " is not valid TOML: "),
        (f"a = {'9' * 5000}\n", " is not valid TOML: Exceeds the limit"),
    ],
)
def test_an_error_in_a_file_of_scorers_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "scorers.toml").write_text(text)
    with pytest.raises(FleetError, match=r"scorers\.toml" + words):
        read_scoring(str(tmp_path / "scorers.toml"))


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_schema_does_not_check_formats(tmp_path: Path, draft: str) -> None:
    """As for tools' arguments: the drafts do not agree on what `format` means."""
    scorer = Scorer(schema={"$schema": draft, "type": "string", "format": "date"})
    finished = FinishedEpisode(
        id="e", settings={}, scores={}, question="When?", answer='"today"', trace=tmp_path / "trace.jsonl"
    )
    assert score("shape", scorer, finished, tmp_path) == (1, "")


def test_the_requests_of_a_scorers_function_are_counted_in_its_mark(tmp_path: Path) -> None:
    with ScriptedLlmServer(["It is lit.", "0.5"]) as llm:
        with Runner(llm=llm.settings, trace=tmp_path / "attempt-1" / "trace.jsonl") as runner:
            runner.run_turn("Is the lamp lit?")
        (tmp_path / "asks.py").write_text(
            "from grue import LlmSettings, Runner\n"
            "def ask(finished):\n"
            f"    llm = LlmSettings(base_url={llm.base_url!r}, model='scripted', api_key='')\n"
            "    with Runner(llm=llm) as runner:\n"
            "        return float(runner.run_turn(finished.answer).response)\n"
        )
        task = ScoreTask(
            folder=tmp_path,
            attempt=1,
            settings={},
            scores={},
            scorers={"asks": Scorer(function=f"{tmp_path / 'asks.py'}:ask")},
            cache=tmp_path / "judged",
        )
        assert task.make().outcome == "scored"
    (mark,) = read_marks(tmp_path)
    assert (mark.score, mark.requests, mark.tokens) == (0.5, 1, 15)


def test_an_error_of_a_scorer_quotes_what_is_wrong_as_it_was_written() -> None:
    with pytest.raises(FleetError, match=r"'\.\./x': use letters.*most\.$"):
        Scorer(regex="x", version="../x").check("brief")


def test_scorers_that_run_already_are_ended_with_ctrl_c(tmp_path: Path) -> None:
    make_fleet(tmp_path, lambda *_: 0.5, prompts=("short",), questions=1, repetitions=1)
    (episode,) = FleetFolder(tmp_path).episodes()
    (episode.path / "attempt-1" / "trace.jsonl").touch()
    with (
        driver_lock(FleetFolder(tmp_path / "scores")),
        pytest.raises(FleetError, match=r"Another driver works on .*scores .*end it with Ctrl-C"),
    ):
        score_fleet(tmp_path, Scoring(scorer={"brief": Scorer(regex="x")}))
