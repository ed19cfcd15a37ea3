"""Say what a box has refused, and which entry of the box would allow it.

The kernel tells a program only "permission denied", so this module searches such lines of the program's
output, which is not trusted, for paths that the box does not open. If the output shows nothing, the kernel's
audit records may help: since Linux 6.15 Landlock writes refusals there. Each record has the box's number;
only a box's first record also names the thread that made the box. So grue gives that thread a unique name.
"""

import contextlib
import functools
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence

from grue.sandbox.gate import Refusal
from grue.sandbox.kernel import EXECUTE, READ_FILE, WRITE_FILE, Rule
from grue.sandbox.places import is_too_wide, real_path, within

_DENIED = re.compile(r"(?i)permission denied|\bEACCES\b|\bEPERM\b|operation not permitted|PermissionError")
_QUOTED = re.compile(r"""['"`]((?:/|~/)[^'"`\n]{1,1000})['"`]""")
_PLAIN = re.compile(r"(?:^|[\s:=(])((?:/|~/)[^\s:'\"`,;)]{1,1000})")
_RELATIVE = re.compile(
    r"""['"`]([^'"`/~\n][^'"`\n]{0,1000})['"`]|(?:^|: )([^\s:'"`/~][^\s:'"`]{0,1000})(?=: )"""
)
_SPEAKER = re.compile(r"(/[^\s:]+): ")
"""The path of the program itself, with which many programs begin their error texts."""

_WRITES = re.compile(r"(?i)\b(mkdir|unlink|rmdir|rename|creat\w*|write|touch|remove|truncate|symlink|link)\b")
_OF_FOLDERS = ("mkdir", "unlink", "rmdir", "rename", "remove", "symlink", "link")
"""The words of `_WRITES` that need write access to the folder that contains the path."""

_CONNECT = "connect"
_CONNECTS = re.compile(r"(?i)\bconnect|\bdial\b|\bsocket\b")
_TO_SOCKET = re.compile(r"(?:\bconnect (?:EACCES|EPERM) |\bdial unix |\bunix:)(/[^\s:'\"`,;)]{1,1000})")
"""The path of a Unix socket as Node.js and Go name it; elsewhere, a path after `connect` may be a file's."""

_NO_NAMES = re.compile(r"(?i)EAI_AGAIN|EAI_FAIL|name resolution|getaddrinfo|could not resolve|ENETUNREACH")
_RECORD = re.compile(
    r"(?:type=(?:LANDLOCK_ACCESS|LANDLOCK_DOMAIN|UNKNOWN\[142[34]\]) msg=|[^;]*;audit: type=142[34] )"
    r"audit\([\d.:]+\): domain=([0-9a-f]+) (.*)"
)
_MADE_BY = re.compile(r'status=allocated .*\bcomm="([^"]*)"')
_BLOCKERS = re.compile(r"blockers=(\S+)(.*)")
_PATH = re.compile(r' path=(?:"([^"]*)"|((?:[0-9A-F]{2})+))')
_LOGS = ("/var/log/audit/audit.log", "/dev/kmsg")
_MOST_LOG_BYTES, _MOST_RECORDS, _LONGEST_RECORD = 1 << 20, 20_000, 8192
_MOST = 5
_MOST_PATHS = 100
_MOST_AUDITED = 3
_MOST_CHARS = 65_536


def refusals(
    text: str,
    rules: Iterable[Rule],
    refused: Iterable[Refusal],
    *,
    network: str,
    folder: str = "",
    unix_sockets: bool = False,
    broken: Sequence[str] = (),
    died: bool = False,
    mark: str = "",
    logs: Sequence[str] = _LOGS,
) -> tuple[str, ...]:
    """Return a sentence for each thing that a box seems to have refused, at most five.

    `network`: `none`, `hosts` (listed ones) or `any`. `broken`: folders that contain something hidden.
    `mark`: the box's name in the audit log; empty: do not read the log. Most refusals in it are harmless, so
    it is read only if nothing else is found, and the program has `died` or `text` has "permission denied".
    """
    found: dict[str, None] = {}
    paths: dict[str, str] = {}
    without = network != "any" and _NO_NAMES.search(text[-_MOST_CHARS:]) is not None
    opened = [(real_path(rule.path), rule.access) for rule in rules] if _DENIED.search(text) else []
    for line in text[-_MOST_CHARS:].splitlines():
        if len(paths) < _MOST_PATHS and _DENIED.search(line):
            speaker = _SPEAKER.match(line)
            plain = speaker is not None and speaker[1].isprintable()
            if speaker and plain and _may_start(real_path(speaker[1]), opened):
                line = line[speaker.end() :]
            rest = _QUOTED.sub(" ", line)
            named = [*_QUOTED.findall(line), *_PLAIN.findall(rest), *_in_folder(folder, line)]
            rest = _PLAIN.sub(" ", rest)
            verb, sockets = _WRITES.search(rest), _TO_SOCKET.findall(line)
            word = "" if verb is None else verb[0].lower()
            without |= network == "none" and not named and _CONNECTS.search(rest) is not None
            for path in named:
                # Skip unprintable paths: with a NUL or a lone surrogate, `os.stat` raises `ValueError`.
                if path.isprintable():
                    paths.setdefault(path.rstrip("."), _CONNECT if path in sockets else word)
    for path, word in itertools.islice(paths.items(), _MOST_PATHS):
        said = _about_path(path, opened, broken, word=word, unix_sockets=unix_sockets)
        if said is not None:
            found[said] = None
    for each in refused:
        said = f"Its sandbox refused a connection to {each.where}: {each.why}."
        found[f'{said} To allow it: "network": ["{each.allow}"]'] = None
    if not found and without:
        found[_no_network(network)] = None
    if not found and mark and (died or _DENIED.search(text[-_MOST_CHARS:])):
        audited = [said for log in logs for said in _audited(_lines(log), mark)]
        found = dict.fromkeys(list(dict.fromkeys(reversed(audited)))[:_MOST_AUDITED])
    return tuple(found)[:_MOST]


def _in_folder(folder: str, line: str) -> Iterator[str]:
    for found in itertools.islice(_RELATIVE.finditer(line), _MOST_PATHS if folder else 0):
        path = os.path.normpath(os.path.join(folder, found[1] or found[2]))  # noqa: PTH118
        if path.isprintable() and os.path.lexists(path):
            yield path


@functools.cache
def reads_audit() -> bool:
    """Return whether this user may read a file with the kernel's audit records."""
    for log in _LOGS:
        with contextlib.suppress(OSError):
            os.close(os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            return True
    return False


def _lines(log: str) -> Iterator[str]:
    """Yield the last lines of a log file, or the records of `/dev/kmsg`: each `read` of it returns one."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if log.startswith("/dev/"):
            for _ in range(_MOST_RECORDS):
                # EPIPE means that the kernel has overwritten the next record. The next `read` skips it.
                with contextlib.suppress(BrokenPipeError):
                    record = os.read(descriptor, _LONGEST_RECORD).decode("utf-8", "replace")
                    yield record.replace("\\x5c", "\\")
            return
        os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - _MOST_LOG_BYTES), os.SEEK_SET)
        yield from os.read(descriptor, _MOST_LOG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return  # for example at the end of `/dev/kmsg`
    finally:
        os.close(descriptor)


def _audited(lines: Iterable[str], mark: str) -> list[str]:
    records = [found.groups() for line in lines if (found := _RECORD.match(line))]
    mine = {domain for domain, rest in records if (made := _MADE_BY.match(rest)) and made[1] == mark}
    return [
        _about_record(frozenset(found[1].split(",")), found[2])
        for domain, rest in records
        if domain in mine and (found := _BLOCKERS.match(rest))
    ]


def _about_record(blockers: frozenset[str], rest: str) -> str:
    named = _PATH.search(rest)
    if named is None or not all(each.startswith("fs.") for each in blockers):
        more = f" ({rest.strip()})" if rest.strip() else ""
        return f"Its sandbox refused {', '.join(sorted(blockers))}{more}."
    path = named[1] or os.fsdecode(bytes.fromhex(named[2]))
    if blockers == {"fs.execute"}:
        return _said("start", path, "execute")
    reads = blockers <= {"fs.read_file", "fs.read_dir", "fs.execute"}
    return _said("read", path, "read") if reads else _said("write", path, "write")


def _said(verb: str, path: str, key: str, entry: str = "") -> str:
    return f'Its sandbox does not let it {verb} {path}. To allow it: "{key}": ["{entry or path}"]'


def _about_path(
    path: str, opened: list[tuple[str, int]], broken: Sequence[str], *, word: str, unix_sockets: bool
) -> str | None:
    real = real_path(os.path.expanduser(path))  # noqa: PTH111
    if _is_socket(real) or (word == _CONNECT and _is_absent(real)):
        if unix_sockets:
            return None
        return f'Its sandbox does not let it use the Unix socket {path}. To allow it: "unix_sockets": true'
    word = "" if word == _CONNECT else word
    folder = real if real in broken else os.path.dirname(real)  # noqa: PTH120
    access = [access for place, access in opened if within(real, place)]
    readable = any(each & READ_FILE for each in access)
    if readable and not word and _is_program(real) and not _may_start(real, opened):
        return _said("start", path, "execute")
    if any(each & WRITE_FILE for each in access):
        return None  # the box allows writing here, so the refusal came from the file's own permissions
    if folder in broken and not access:
        return (
            f"Its sandbox does not open {path}: it hides something in {folder}, so it opens only what was"
            f" there at the start, and nothing can be made there. Move what is hidden out of {folder}, or"
            " work in a subfolder that holds nothing hidden."
        )
    # Reading a missing file does not end with "permission denied", so the program wanted to make the file.
    parent = os.path.dirname(real)  # noqa: PTH120
    in_folder = word in _OF_FOLDERS or _is_absent(real)
    if in_folder and os.path.isdir(parent) and not is_too_wide(parent):  # noqa: PTH112
        return _said("write", path, "write", parent)
    verb = "write" if word or readable else "read"
    return _said(verb, path, verb)


def _may_start(real: str, opened: list[tuple[str, int]]) -> bool:
    return _is_program(real) and any(access & EXECUTE and within(real, place) for place, access in opened)


def _is_socket(real: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(real).st_mode)  # noqa: PTH116
    except OSError:
        return False


def _is_program(real: str) -> bool:
    return os.path.isfile(real) and os.access(real, os.X_OK)  # noqa: PTH113


def _is_absent(real: str) -> bool:
    try:
        os.lstat(real)
    except FileNotFoundError:
        return True
    except OSError:  # this user may not look into the folder of `real`
        return False
    return False


def _no_network(network: str) -> str:
    if network == "none":
        return 'Its sandbox gives it no network. To allow hosts: "network": ["host:443"]'
    return (
        "It looked up a host itself, which its sandbox refuses: it does not use the proxy of HTTPS_PROXY."
        ' To allow all of the network: "network": true'
    )
