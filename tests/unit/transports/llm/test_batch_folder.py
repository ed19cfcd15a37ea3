"""What a folder of waiting requests keeps, and what a kill at any place leaves in it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from grue.errors import MCPError
from grue.protocol.chat_wire.batch_forms import OpenAIBatches, Result
from grue.transports.llm.batch_folder import BatchFolder, BatchFolderError, BatchManifest

MANIFEST = BatchManifest(address="http://127.0.0.1/v1", model="m", wire="responses")


@contextmanager
def folder(path: Path, manifest: BatchManifest = MANIFEST, **more: Any) -> Iterator[BatchFolder]:
    with BatchFolder(path, manifest, OpenAIBatches(), **more) as files:
        yield files


def ask(files: BatchFolder, turn: int, request: int, body: bytes = b"{}") -> str:
    item = files.item_of(turn, request, body)
    if not files.is_wanted(item):
        files.want(item, "/responses", body)
    return item


def test_a_request_has_the_same_id_in_the_next_process(tmp_path: Path) -> None:
    with folder(tmp_path) as files:
        asked = [ask(files, 1, 1), ask(files, 2, 1), ask(files, 1, 2, b'{"more":1}')]
    with folder(tmp_path) as files:
        assert [ask(files, 1, 1), ask(files, 2, 1), ask(files, 1, 2, b'{"more":1}')] == asked
        assert [files.turn_of(item) for item in asked] == ["1", "2", "1"]
        assert all(len(item) <= 64 for item in asked)
    assert len((tmp_path / "requests" / "0001.jsonl").read_bytes().splitlines()) == 3


def test_files_grow_to_the_limit_and_are_closed_when_they_are_sent(tmp_path: Path) -> None:
    with folder(tmp_path, most_items=2) as files:
        for turn in range(1, 6):
            ask(files, turn, 1)
        unsent = [*files.unsent()]
        assert [(each.number, each.items) for each in unsent] == [(1, 2), (2, 2), (3, 1)]
        for each in unsent:
            files.keep(each)
        ask(files, 6, 1)
        assert [each.number for each in files.unsent()] == [4]


def test_half_a_line_that_a_kill_has_left_is_asked_again(tmp_path: Path) -> None:
    with folder(tmp_path) as files:
        first, second = ask(files, 1, 1), ask(files, 2, 1)
    path = tmp_path / "requests" / "0001.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with folder(tmp_path) as files:
        assert files.is_wanted(first)
        assert not files.is_wanted(second)
        assert ask(files, 2, 1) == second
        assert sum(each.items for each in files.unsent()) == 2


def settled(files: BatchFolder, *results: Result) -> None:
    (submission,) = files.unsent()
    files.settle(files.keep(submission), results)


def test_replies_are_read_by_the_next_process_and_not_asked_for_again(tmp_path: Path) -> None:
    with folder(tmp_path) as files:
        item = ask(files, 1, 1)
        assert files.result(item) is None
        settled(files, Result(item=item, status=200, body=msgspec.Raw(b'{"id":"x"}')))
    with folder(tmp_path) as files:
        result = files.result(item)
        assert result is not None
        assert bytes(result.body) == b'{"id":"x"}'
        assert not [*files.unsent()]
        # The same request in another form, which an earlier process has learned: its reply counts.
        assert files.item_of(1, 1, b'{"other":"form"}') == item
        assert files.item_of(1, 2, b'{"other":"form"}') != item
        # Not if the turn has read it already: then the turn asks once more, for instance for a longer reply.
        assert files.item_of(1, 1, b'{"other":"form"}', {item}) != item


def test_a_failed_request_is_asked_anew_only_in_a_turn_that_begins_anew(tmp_path: Path) -> None:
    with folder(tmp_path) as files:
        item = ask(files, 1, 1)
        files.file("turns", 1).write_text("a trace")
        settled(files, Result(item=item, kind="timed_out", reason="timeout"))
        assert files.item_of(1, 1, b"{}") == item
        files.set_aside(1)
        again = ask(files, 1, 1)
        assert again != item
        assert files.item_of(1, 1, b"{}") == again
        assert not files.file("turns", 1).exists()


def test_a_folder_is_for_one_process_and_one_model(tmp_path: Path) -> None:
    with folder(tmp_path), pytest.raises(BatchFolderError, match="Another process works"), folder(tmp_path):
        pass
    with pytest.raises(BatchFolderError, match="not to n"), folder(tmp_path, replace(MANIFEST, model="n")):
        pass
    (tmp_path / "batch.json").write_text("{")
    with pytest.raises(BatchFolderError, match="damaged"), folder(tmp_path):
        pass


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BatchFolderError, match="Cannot use the batch folder"),
        folder(tmp_path / "file" / "x"),
    ):
        pass


DAMAGE = [b"{\n", b"{}\n", b'{"custom_id":"x"}\n', b'{"item":"\xff"}\n']


@pytest.fixture
def answered(tmp_path: Path) -> list[str]:
    """The ids of two requests whose replies are in the folder."""
    with folder(tmp_path) as files:
        items = [ask(files, turn, 1) for turn in (1, 2)]
        (submission,) = files.unsent()
        submission = files.keep(replace(submission, state="sent", batch_id="b1"))
        files.settle(submission, [Result(item=item, status=200) for item in items])
    return items


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_request_is_named_and_the_others_count_without_it(
    tmp_path: Path, content: bytes, answered: list[str]
) -> None:
    path = tmp_path / "requests" / "0001.jsonl"
    written = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(written[0] + content)
    fault = r"requests/0001\.jsonl is damaged: .*\. Remove its line 2: only its request is asked"
    with pytest.raises(BatchFolderError, match=fault), folder(tmp_path):
        pass
    path.write_bytes(written[0])
    with folder(tmp_path) as files:
        assert [files.is_wanted(item) for item in answered] == [True, False]
        assert files.result(answered[0]) is not None


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_submission_whose_replies_are_here_costs_nothing(
    tmp_path: Path, content: bytes, answered: list[str]
) -> None:
    (tmp_path / "submissions" / "0001.json").write_bytes(content)
    with folder(tmp_path) as files:
        assert [files.submissions[1].state, *files.unsent()] == ["settled"]
        assert all(files.result(item) is not None for item in answered)


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_submission_without_replies_says_how_to_get_them(
    tmp_path: Path, content: bytes, answered: list[str]
) -> None:
    (tmp_path / "replies" / "0001.jsonl").unlink()
    path = tmp_path / "submissions" / "0001.json"
    path.write_bytes(content)
    with (
        pytest.raises(BatchFolderError, match=r"0001\.json is damaged: .*\. Write {") as caught,
        folder(tmp_path),
    ):
        pass
    path.write_text(str(caught.value).partition(". Write ")[2].partition(" into it")[0])
    with folder(tmp_path) as files:
        assert (files.submissions[1].state, files.submissions[1].batch_id) == ("sent", "ID")


@pytest.mark.parametrize("content", [*DAMAGE, b"", None])
def test_damaged_replies_are_fetched_again_and_the_others_count(
    tmp_path: Path, content: bytes | None, answered: list[str]
) -> None:
    path = tmp_path / "replies" / "0001.jsonl"
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.unlink()
    if content is not None:
        path.write_bytes(content + first)
    with folder(tmp_path) as files:
        assert (files.submissions[1].state, files.submissions[1].batch_id) == ("sent", "b1")
        assert [files.result(item) is not None for item in answered] == [content is not None, False]


def test_a_damaged_manifest_can_be_removed_and_the_requests_keep_their_ids(
    tmp_path: Path, answered: list[str]
) -> None:
    (tmp_path / "batch.json").write_text("{")
    with pytest.raises(BatchFolderError, match=r"are for m at .*, remove this file"), folder(tmp_path):
        pass
    (tmp_path / "batch.json").unlink()
    with folder(tmp_path) as files:
        assert [ask(files, 1, 1), ask(files, 2, 1)] == answered
        assert files.manifest.run == answered[0].partition("-")[0]


def test_a_request_is_stored_whole_however_little_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with folder(tmp_path) as files, monkeypatch.context() as slow:
        slow.setattr(os, "write", lambda file, data: write(file, data[:7]))
        ask(files, 1, 1)
    line = msgspec.json.decode((tmp_path / "requests" / "0001.jsonl").read_bytes())
    assert (line["method"], line["body"]) == ("POST", {})


def test_a_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with folder(tmp_path) as files, monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(MCPError, match=r"requests/0001.jsonl: No space left"):
            ask(files, 1, 1)


def test_what_a_signal_handler_raises_is_no_error_of_the_folder(tmp_path: Path) -> None:
    with folder(tmp_path) as files, pytest.raises(TimeoutError, match="the host's own alarm"), files.using():
        raise TimeoutError("the host's own alarm")


def test_a_submission_that_cannot_be_recorded_names_the_folder(tmp_path: Path) -> None:
    with folder(tmp_path) as files:
        ask(files, 1, 1)
        (submission,) = files.unsent()
        (tmp_path / "submissions").rmdir()
        with pytest.raises(BatchFolderError, match=r"Cannot use the batch folder .*No such file"):
            files.keep(submission)
