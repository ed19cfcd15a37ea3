"""The figures of one day: an entry for each time that `run.py` has measured a section.

All entries were measured on one machine with one Python within 24 hours; others are dropped when the file is
read. So everything in the file may be shown together. Nothing in it names the machine.
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
    """The file, which is written anew after each section, so that an interrupted run keeps what it has.

    Attributes:
        entries: What it holds, in the order in which it was measured.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = source()
        self.entries = [] if not path.exists() else [*filter(_is_recent, loaded(path))]

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that have not been measured with the code as it is now."""
        todo = list(names)
        for entry in self.entries:
            if entry["source"] == self._source and entry["name"] in todo:
                todo.remove(entry["name"])
        return todo

    def add(
        self, section: Mapping[str, object], *, at: dt.datetime, took_s: float, load: Sequence[float]
    ) -> None:
        """Add a section and write the file.

        The newest entries of a section replace the older ones, and those that were measured with other code.
        """
        entry = {**section, **_when(at), "took_s": round(took_s), "load": load, "source": self._source}
        name = section["name"]
        same = [other for other in self.entries if (other["name"], other["source"]) == (name, self._source)]
        alike = [*same, entry][-times(str(name)) :]
        self.entries = [other for other in self.entries if other["name"] != name] + alike
        write(self._path, {"sections": self.entries})


def loaded(path: Path) -> list[Entry]:
    """Return the entries of a file; none of one that was written in an older format."""
    entries: list[Entry] = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return [entry for entry in entries if "at" in entry]


def write(path: Path, values: object) -> None:
    """Write values as JSON; the file is the old one or the new one at each instant."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def machine() -> dict[str, object]:
    """Return what is said of the machine."""
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
