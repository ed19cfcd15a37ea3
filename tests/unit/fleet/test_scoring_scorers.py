from pathlib import Path

import pytest

from grue.errors import FleetError
from grue.fleet.broker import RequestCount
from grue.fleet.scoring import FinishedEpisode, Scorer, read_scoring, score


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
    assert score("shape", scorer, finished, tmp_path, RequestCount(None, {})).score == 1
