from pathlib import Path

import pytest

from grue.fleet.request_count import RequestCount
from grue.fleet.scorers import FinishedEpisode, Scorer, score


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
