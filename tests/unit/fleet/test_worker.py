"""A worker process from its start to its end."""

import errno
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grue.fleet.broker import Limits
from grue.fleet.worker import Place, _marks, work

GUARD_S = 60


@pytest.mark.slow
def test_a_worker_whose_driver_was_killed_while_it_started_ends_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(str(tmp_path / "broker"), Limits(), list(sys.path), str(Path.cwd()), dict(os.environ))
    theirs, ours = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(theirs, place))
    worker.start()
    worker.join(GUARD_S)
    ours.close()
    theirs.close()
    assert worker.exitcode == 1
    assert capfd.readouterr().err == ""


def test_without_proc_the_first_descriptors_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_mounted(path: Path) -> Iterator[Path]:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    reading, writing = os.pipe()
    monkeypatch.setattr(Path, "iterdir", not_mounted)
    _, before = _marks()
    os.close(reading)
    left = {number for number, _, _ in before - _marks()[1]}
    os.close(writing)
    assert reading in left, "beside those that threads of other tests may close meanwhile"
    assert writing not in left
