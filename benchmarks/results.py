"""The results of one day: an entry for each time that `run.py` has measured a section.

All entries were measured on one machine with one Python within 24 hours; others are dropped when the file is
read. So all entries may be shown together. Nothing in the file names the machine.
"""

import datetime as dt
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from plan import times

Entry: TypeAlias = Mapping[str, Any]

DAY = dt.timedelta(hours=24)
SOURCE = Path(__file__).parents[1] / "src" / "grue"


class Results:
    """The file of results. It is written after each section, so that an interrupted run loses little.

    Attributes:
        entries: The entries, in the order of measurement.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = source()
        self.entries = [] if not path.exists() else [*filter(_is_recent, loaded(path))]

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Return those of the sections `names` that have not been measured with the present code."""
        todo = list(names)
        for entry in self.entries:
            if entry["source"] == self._source and entry["name"] in todo:
                todo.remove(entry["name"])
        return todo

    def add(
        self, section: Mapping[str, object], *, at: dt.datetime, took_s: float, load: Sequence[float]
    ) -> None:
        """Add a section's results, and write the file.

        Only the newest entries of a section are kept, and only those measured with the present code.
        """
        entry = {**section, **_when(at), "took_s": round(took_s), "load": load, "source": self._source}
        name = section["name"]
        same = [other for other in self.entries if (other["name"], other["source"]) == (name, self._source)]
        alike = [*same, entry][-times(str(name)) :]
        self.entries = [other for other in self.entries if other["name"] != name] + alike
        write(self._path, {"sections": self.entries})


def loaded(path: Path) -> list[Entry]:
    """Return the entries of a file, without those in an older format."""
    entries: list[Entry] = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return [entry for entry in entries if "at" in entry]


def write(path: Path, values: object) -> None:
    """Replace a file by values as JSON. At no time is the file incomplete."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def machine() -> dict[str, object]:
    """Return what an entry says about the machine: Python's version, the system, the number of cores."""
    return {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}


def minute(at: dt.datetime) -> str:
    """Return a time in UTC as text."""
    return at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M")


def source() -> str:
    """Return a short digest of grue's code."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _when(at: dt.datetime) -> dict[str, object]:
    return {"at": minute(at), **machine()}


def _is_recent(entry: Entry) -> bool:
    began = dt.datetime.strptime(entry["at"], "%Y-%m-%d %H:%M").replace(tzinfo=dt.UTC)
    return dt.datetime.now(dt.UTC) - began < DAY and entry.items() >= machine().items()
