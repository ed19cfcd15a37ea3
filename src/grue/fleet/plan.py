"""Estimate the size and the cost of a sweep from its cases and its folder. No episode is played for this."""

from pathlib import Path

from msgspec import Struct

from grue.errors import FleetError
from grue.fleet.broker import Amount
from grue.fleet.folder import FleetFolder
from grue.fleet.identity import Case, FileDigests
from grue.fleet.sweep import Sweep
from grue.fleet.work import find_work, forget_cached

SAMPLE = 10
"""How many episodes have to be done before size and cost are estimated from them."""

_TURN_BYTES = 16_000
_EPISODE_BYTES = 100_000
_RESULT_BYTES = 3_000
"""The assumed sizes of a turn, of an episode of unknown length, and of an episode without its trace.

They are used if fewer than `SAMPLE` finished episodes have a trace, or `keep` is not `all`."""


class PlannedWork(Struct, frozen=True, kw_only=True):
    """The number of a sweep's missing episodes, their estimated size on disk, and the cost of the others."""

    work: str
    total: int
    missing: int
    bytes_needed: float
    spent: Amount


def read_plan(sweep: Sweep, place: Path) -> PlannedWork:
    """Return how many episodes of a sweep are missing in `place`, their size, and the cost of the others.

    The folder `place` need not exist. Raises `FleetError` if the work or a case cannot be used.
    """
    work, folder, digests = find_work(sweep.work), FleetFolder(place), FileDigests()
    forget_cached()
    total = missing = sized = 0
    size, assumed, spent = 0, 0.0, Amount()
    for planned in sweep.all_cases():
        total += 1
        case, _, id_ = work.identified(planned, sweep.version or work.version, digests)
        try:
            commit = folder.episode(id_).commit
        except FleetError:  # a damaged commit counts as missing: `grue fleet retry` plays the episode again
            commit = None
        if commit is None:
            missing += 1
            assumed += _assumed_bytes(sweep, case)
            continue
        spent += commit.end.spent
        if commit.trace_bytes is not None:
            sized += 1
            size += commit.trace_bytes
    measured = sweep.keep == "all" and sized >= SAMPLE
    needed = 1.3 * size / sized * missing if measured else assumed
    return PlannedWork(work=work.name, total=total, missing=missing, bytes_needed=needed, spent=spent)


def _assumed_bytes(sweep: Sweep, case: Case) -> float:
    if sweep.keep != "all":
        return _RESULT_BYTES
    turns = case.settings.get("turns")
    return turns * _TURN_BYTES if isinstance(turns, int) else _EPISODE_BYTES
