"""An episode's id depends on what decides the episode, and on nothing else."""

from pathlib import Path

import pytest

from grue.errors import FleetError
from grue.fleet.identity import Case, FileDigests, episode_id


def test_an_id_is_the_same_for_the_same_case_in_any_order() -> None:
    one = episode_id("m:f", "1", Case(settings={"a": 1, "b": [1, {"c": None}]}), {})
    other = episode_id("m:f", "1", Case(settings={"b": [1, {"c": None}], "a": 1}), {})
    assert one == other
    assert len(one) == 24


def test_an_id_is_the_same_on_every_machine() -> None:
    assert episode_id("m:f", "1", Case(settings={"a": 1}), {}) == "4b152ad06322df53f7573bdd"


@pytest.mark.parametrize(
    ("work", "version", "case", "files"),
    [
        ("m:g", "1", Case(settings={"a": 1}), {}),
        ("m:f", "2", Case(settings={"a": 1}), {}),
        ("m:f", "1", Case(settings={"a": 2}), {}),
        ("m:f", "1", Case(settings={"a": "1"}), {}),
        ("m:f", "1", Case(settings={"a": 1}, repetition=1), {}),
        ("m:f", "1", Case(settings={"a": 1}), {"game": "0" * 64}),
    ],
)
def test_another_work_version_case_repetition_or_file_is_another_episode(
    work: str, version: str, case: Case, files: dict[str, str]
) -> None:
    assert episode_id(work, version, case, files) != episode_id("m:f", "1", Case(settings={"a": 1}), {})


def test_a_key_does_not_belong_in_a_case() -> None:
    with pytest.raises(FleetError, match=r"setting 'api_key'.*GRUE_API_KEY"):
        episode_id("m:f", "1", Case(settings={"api_key": "x"}), {})
    with pytest.raises(FleetError, match=r"setting 'Authorization'.*GRUE_API_KEY"):
        episode_id("m:f", "1", Case(settings={"llm": {"extra_headers": [{"Authorization": "x"}]}}), {})
    with pytest.raises(FleetError, match=r"setting 'key'"):
        episode_id("m:f", "1", Case(settings={"key": "x"}), {})
    for plain in ({"max_tokens": 20}, {"pairs": [{"key": "a", "value": 1}]}, {"schema": {"password": {}}}):
        episode_id("m:f", "1", Case(settings=plain), {})


def test_settings_have_to_be_json() -> None:
    with pytest.raises(FleetError, match="have to be JSON"):
        episode_id("m:f", "1", Case(settings={"a": object()}), {})


def test_settings_have_a_largest_size() -> None:
    assert episode_id("m:f", "1", Case(settings={"a": "x" * 2**20}), {})
    with pytest.raises(FleetError, match="have 10 MB as JSON; the most are 8"):
        episode_id("m:f", "1", Case(settings={"a": "x" * 9 * 2**20}), {})


def test_the_content_of_a_file_counts_and_not_its_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("story")
    (tmp_path / "b").write_text("story")
    (tmp_path / "c").write_text("another")
    digests = FileDigests()
    found = [digests.of(Case(settings={"game": str(tmp_path / name)}), ("game",)) for name in "abc"]
    assert found[0] == found[1] != found[2]
    assert digests.of(Case(settings={"game": "house"}), ("game",)) == {}


def test_the_content_of_each_file_in_a_list_counts(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    case, seen = Case(settings={"texts": paths, "words": ["no", "file"]}), set()
    for content in ("", "one", "two"):
        (tmp_path / "a").write_text("story")
        (tmp_path / "b").write_text(content)
        seen.add(FileDigests().of(case, ("texts", "words"))["texts"])
    assert len(seen) == 3
    assert FileDigests().of(case, ("words",)) == {}
