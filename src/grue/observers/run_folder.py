"""The folder of an episode: the trace and its two logs as they are written, the result at the end."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from grue.errors import TraceError
from grue.observers.episode_log import EpisodeLog
from grue.observers.json_log import JsonLog
from grue.runtime.trace import Recorder, TraceWriter


class RunFolder:
    """`trace.jsonl`, `events.jsonl`, `episode.log` and `result.json` of one episode, for its owner only.

    Args:
        path: The folder; made with its parents if it is absent.
        recorder: Everything that it records from now on is written.
        episode_id: Named in the files.

    Raises:
        TraceError: The folder or a file in it cannot be written; the text names it and the cause.
    """

    def __init__(self, path: Path, recorder: Recorder, *, episode_id: str) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"Cannot make the run folder {path}: {error.strerror}.") from error
        self._trace = TraceWriter(path / "trace.jsonl", episode=episode_id)
        self._events = JsonLog(path / "events.jsonl", episode_id=episode_id)
        self._log = EpisodeLog(path / "episode.log", episode_id=episode_id)
        for observer in (self._trace, self._events, self._log):
            recorder.add(observer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def write_result(self, result: object) -> None:
        """Write `result.json`, whole or not at all."""
        target = self.path / "result.json"
        draft = target.with_suffix(".json.part")
        text = msgspec.json.format(msgspec.json.encode(result), indent=2)
        try:
            draft.write_bytes(text + b"\n")
            draft.chmod(0o600)
            os.replace(draft, target)  # noqa: PTH105 - atomic, and named so
        except OSError as error:
            raise TraceError(f"Cannot write {target}: {error.strerror}.") from error

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        for observer in (self._trace, self._events, self._log):
            observer.close()
