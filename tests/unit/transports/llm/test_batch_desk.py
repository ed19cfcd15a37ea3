"""The lines of a batch's results: a line that is too long is skipped as a whole, however it arrives."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from grue.transports.llm import batch_desk
from grue.transports.llm.batch_desk import BatchDesk

pytestmark = pytest.mark.anyio

LONG = b"x" * 30

CASES: dict[str, tuple[list[bytes], list[bytes]]] = {
    "whole": ([b"one\ntwo\n"], [b"one", b"two"]),
    "without a newline at the end": ([b"one\ntw", b"o"], [b"one", b"two"]),
    "a long line in the middle": ([b"one\n" + LONG, b"rest\ntwo\n"], [b"one", b"", b"two"]),
    "a long last line": ([b"one\n" + LONG, b'{"custom_id": "a"}'], [b"one", b""]),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_line_that_is_too_long_is_empty(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, lines = CASES[case]

    async def download(path: str) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    monkeypatch.setattr(batch_desk, "_MOST_LINE", 20)
    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._endpoint = SimpleNamespace(download=download)
    assert [line async for line in desk._lines("/results")] == lines
