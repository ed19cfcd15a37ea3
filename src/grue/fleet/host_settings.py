"""Functions for the works of bundled hosts: settings, model, endpoint, resuming, digests of files."""

import functools
import hashlib
import os
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.config.tool_lock_file import lock_path
from grue.engine.turn import error_for
from grue.errors import FleetError, MCPConfigError, MCPError
from grue.field_checks import fault_of
from grue.fleet.course import last_failure
from grue.fleet.folder import MANIFEST, TRACE
from grue.fleet.work import Episode, cached_in_a_run
from grue.hosting import GameConfiguration
from grue.testing.offline import MODEL
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, api_key, require_key

# Files of an interrupted attempt that are not copied into the attempt that resumes it.
LEFT_OUT = ("attempt.json", "result.json", "output.txt")
_PROJECT = Path("pyproject.toml")
_TABLES = ("grue", "zorkgpt")


class HostCase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that the cases of all hosts have."""

    seed: int = 0
    offline: bool = False
    model: str | None = None
    base_url: str | None = None
    mcp: bool = True


class ProjectCase(HostCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of hosts with a configuration in `pyproject.toml`."""

    mcp_config: str | None = None
    project: str | None = None  # hash of grue's tables in `pyproject.toml`; set by `with_endpoint`
    tool_lock: str | None = None  # hash of the tool lock's file; set by `with_endpoint`


@contextmanager
def usable_case(done: str) -> Iterator[None]:
    """Turn an error about a case's settings into a `FleetError`: "The case cannot be DONE: ..."."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise FleetError(f"The case cannot be {done}: {fault_of(error)}.") from error
    except MCPConfigError as error:
        raise FleetError(f"The case cannot be {done}: {error}") from error


def with_endpoint(settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` with model, base URL (unless `offline`) and hashes; may raise `MCPConfigError`."""
    # If grue's tables or the tool lock change, the hashes `project` and `tool_lock` make a new episode.
    completed = dict(settings)
    config, digest = _project(Path.cwd(), _PROJECT.stat().st_mtime_ns if _PROJECT.is_file() else 0)
    if settings.get("offline"):
        completed.setdefault("model", MODEL)
        require_usable(settings.get("base_url"))
    else:
        url = completed.setdefault("base_url", config.client_base_url)
        completed.setdefault("model", config.agent_model)
        require_usable(url)
        require_key(url, api_key(url, os.environ))
    if digest:
        completed["project"] = digest
    if settings.get("mcp_config") and settings.get("mcp", True) and config.mcp_tool_lock != "off":
        lock = lock_path(Path(settings["mcp_config"]))
        if lock.is_file():
            completed["tool_lock"] = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    return completed


@functools.lru_cache(maxsize=64)
def require_usable(base_url: str | None) -> None:
    """Raise `MCPConfigError` for an unusable URL, such as one with a password, which must not get on disk."""
    if base_url:
        LlmEndpoint(LlmSettings(base_url=base_url, model=MODEL))


def chosen_endpoint(llm: LlmSettings, base_url: str | None, model: str | None) -> LlmSettings:
    """Return `llm` with another base URL and model, if given. The environment has the key for another URL."""
    # The fallback models are left out: they belong to the URL and the model of `llm`.
    if base_url is not None and base_url != llm.base_url:
        llm = replace(llm, base_url=base_url, api_key=None, then=())
    if model is not None and model != llm.model:
        llm = replace(llm, model=model, then=())
    return LlmEndpoint(llm).settings


def continue_interrupted(episode: Episode) -> bool:
    """Copy the interrupted attempt's files into the new attempt; `False`: `interrupted` is `None`."""
    if episode.interrupted is None:
        return False
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(episode.interrupted, episode.folder, symlinks=True, dirs_exist_ok=True, ignore=ignored)
    return True


def error_of_failed(episode: Episode, said: str) -> MCPError:
    """Return the error of the last ended turn if that turn has failed, else an error with the text `said`."""
    end = last_failure(episode.trace)
    return MCPError(said) if end is None else error_for(end)


def begin_again(episode: Episode) -> None:
    """Empty the attempt's folder, but keep `LEFT_OUT`: the interrupted attempt cannot be resumed."""
    for entry in episode.folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in LEFT_OUT:
            entry.unlink()


def files_digest(folders: Sequence[Path]) -> str:
    """Return a hash of the files below `folders` (names, contents, link targets), without runs and fleets."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in _files(folder):
            what = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            name = path.relative_to(folder).as_posix()
            digest.update(msgspec.json.encode(name) + hashlib.sha256(what).digest())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    entries = sorted(folder.iterdir())
    left_out = not_of_the_workspace(str(folder), [entry.name for entry in entries])
    for entry in entries:
        if entry.name in left_out:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry)
        else:
            yield entry


def not_of_the_workspace(folder: str, names: Sequence[str]) -> set[str]:
    """Return those `names` in `folder` that do not belong to a workspace: runs, fleets, special files."""
    # Runs must not change an episode's identity. And a fleet in the workspace would be copied into itself.
    return {name for name in names if _is_left_out(Path(folder, name))}


def _is_left_out(path: Path) -> bool:
    if path.is_symlink():
        return False
    if path.is_dir():
        return any((path / each).is_file() for each in (TRACE, MANIFEST))
    return not path.is_file()


@cached_in_a_run
def _project(_folder: Path, changed_ns: int) -> tuple[GameConfiguration, str]:
    """Return the settings in `pyproject.toml`, and a hash of grue's tables in it ("" if it has none)."""
    config = GameConfiguration.of_project()
    tool = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("tool", {}) if changed_ns else {}
    tables = {name: tool[name] for name in _TABLES if name in tool}
    written = msgspec.json.encode(tables, order="deterministic")
    return config, hashlib.sha256(written).hexdigest()[:16] if tables else ""
