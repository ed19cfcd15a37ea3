"""The trace that a runner writes by itself: `Runner(trace=...)`."""

import os
from collections.abc import Callable
from pathlib import Path

import grue
from grue.errors import TraceError
from grue.protocol.secret_names import secrets_in
from grue.runtime.trace import Recorder
from grue.runtime.trace_file import TraceOptions, TraceWriter


class OwnTrace:
    """A trace file, or a run folder, that is written until `close`.

    Args:
        path: A name that ends in `.jsonl`: that file. Any other: a folder in which a run folder is created,
            named by the time and the process, as `grue play` does in `runs`.
        recorder: Everything that it records from now on is written.

    Raises:
        TraceError: The file exists already, or cannot be written.

    Attributes:
        path: The file, or the run folder.
    """

    def __init__(self, path: str | os.PathLike[str], recorder: Recorder) -> None:
        target = Path(path)
        self._recorder = recorder
        self._close: Callable[[], None]
        if target.suffix == ".jsonl":
            self.path = target
            self._close = _write_file(target, recorder)
        else:
            from grue.observers.run_folder import RunFolder, new_run_path  # its imports take time

            self.path = new_run_path(target)

            self._close = RunFolder(self.path, recorder, episode_id=self.path.name).close

    def close(self) -> None:
        """Write what is queued, and close the files. A second call does nothing.

        Raises:
            TraceError: The trace could not be written completely.
        """
        self._recorder.settle()
        self._close()


def _write_file(path: Path, recorder: Recorder) -> Callable[[], None]:
    if path.exists() and path.stat().st_size:
        raise TraceError(
            f"The trace file {path} exists already: choose another name, or remove it. With a folder,"
            f' trace="{path.with_suffix("")}", each run of the program has files of its own.'
        )
    writer = TraceWriter(path, episode=path.stem, options=TraceOptions(version=grue.__version__))
    for name, value in secrets_in(os.environ).items():
        recorder.hide(name, value)
    recorder.add(writer)
    return writer.close
