"""The identity of an episode: a hash of everything that decides what the episode is."""
# Each run of a sweep computes the same id for the same episode; on another machine, too, if the work's name
# and the paths in the settings are the same there. The hash covers the work's name and version, the case, the
# repetition, and the content of files that the work declares; not grue's version, workers, limits or keys.

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import FleetError
from grue.runtime.files import os_errors_as
from grue.runtime.secrets.secret_forms import looks_secret

# Hexadecimal digits of an id: 96 bits, so that no two of a million cases get the same id in practice.
ID_LENGTH = 24
_MOST_BYTES = 8 * 2**20

# Keys that do not suggest a secret inside a setting's value, since data often has them: `{"key": "a"}`.
_DATA = frozenset({"key", "keys", "token", "tokens"})


class Case(Struct, frozen=True, kw_only=True):
    """One case of a sweep, for one episode. `repetition` numbers the cases with equal settings, from 0."""

    settings: m.JsonObject
    repetition: int = 0


def episode_id(work: str, version: str, case: Case, files: Mapping[str, str]) -> str:
    """Return the id of a case's episode. `files`: the SHA-256 of the case's files, by setting.

    Raises `FleetError` if a setting seems to be a secret, or the settings are not JSON or too large.
    """
    for name, value in case.settings.items():
        secret = _secret_name(name, value)
        if secret:
            raise FleetError(
                f"The case has a setting {secret!r}. Secrets do not belong in a case, because it is written"
                " to disk: put the key in the environment, for example as GRUE_API_KEY."
            )
    try:
        written = msgspec.json.encode(
            [work, version, case.settings, case.repetition, dict(files)], order="deterministic"
        )
    except (TypeError, UnicodeEncodeError) as error:
        raise FleetError(f"The settings of a case have to be JSON: {error}.") from error
    if len(written) > _MOST_BYTES:
        raise FleetError(
            f"The settings of a case have {-(-len(written) // 2**20)} MB as JSON; the most are"
            f" {_MOST_BYTES // 2**20}. Put long texts into files, and name the files in the case."
        )
    return hashlib.sha256(written).hexdigest()[:ID_LENGTH]


def _secret_name(name: str, value: object, *, inside: bool = False) -> str:
    """Return the first name in a setting that suggests a secret and holds a text or texts; else ""."""
    found: Iterable[str] = ()
    match value:
        case str() if looks_secret(name) and not (inside and name.lower() in _DATA):
            return name
        case dict():
            found = (_secret_name(each, inner, inside=True) for each, inner in value.items())
        case list() | tuple():
            found = (_secret_name(name, each, inside=inside) for each in value)
    return next(filter(None, found), "")


def fault_of(settings: object) -> str:
    """Return a phrase that says what in `settings` is not JSON, and why; empty if all of it is JSON."""
    if not isinstance(settings, Mapping):
        return f"it is of type {type(settings).__name__}, and not a dictionary of settings"
    for name, value in settings.items():
        fault = _value_fault(value) if isinstance(name, str) else "has a name that is not a text"
        if fault:
            return f"its setting {name!r:.60} {fault}"
    return ""


def _value_fault(value: object) -> str:
    match value:
        case str() | bool() | int() | None:
            return ""
        case float() if type(value) is not float:
            return f"is of type {type(value).__name__}: write float(...)"
        case float():
            return "" if math.isfinite(value) else f"is {value}, which JSON does not have"
        case list() | tuple():
            return next(filter(None, map(_value_fault, value)), "")
        case Mapping():
            fault = fault_of(value)
            return f"is a dictionary, and {fault}" if fault else ""
        case set() | frozenset():
            return "is a set, which has no order: write sorted(...), which is a list"
        case os.PathLike():
            return "is a path: write str(...)"
    return f"is of type {type(value).__name__}: give a text, a number, a list or a dictionary"


class FileDigests:
    """Computes the SHA-256 of files, and reads each file only once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def of(self, case: Case, names: tuple[str, ...]) -> dict[str, str]:
        """Return a SHA-256 for each setting in `names` that is a file's path, or a list with such a path."""
        found: dict[str, str] = {}
        for name in names:
            value = case.settings.get(name)
            if isinstance(value, list | tuple):
                each = [self._digest_at(path) for path in value]
                if any(each):
                    found[name] = hashlib.sha256("\n".join(each).encode()).hexdigest()
            elif digest := self._digest_at(value):
                found[name] = digest
        return found

    def _digest_at(self, named: object) -> str:
        if not isinstance(named, str) or not named or not Path(named).is_file():
            return ""
        path = Path(named).resolve()
        if path not in self._known:
            with os_errors_as(FleetError, f"read {path}"), path.open("rb") as file:
                self._known[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[path]
