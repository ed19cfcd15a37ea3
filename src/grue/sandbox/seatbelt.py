"""Translate a box to a profile for macOS's `sandbox-exec` (Seatbelt), on the Mac that will use it."""

import itertools
import os
from collections.abc import Iterator

from grue.errors import SandboxError
from grue.sandbox.box import UNITS, Sandbox
from grue.sandbox.kernel import EXECUTE, READ_FILE, WRITE_FILE, Rule
from grue.sandbox.places import Places

SCRATCH = "/nonexistent-scratch"
"""A path that stands for the scratch folder. In the profile, the parameter `SCRATCH` takes its place."""

_HEAD = """\
; {words}
; Make a scratch folder, and set TMPDIR and HOME to it. Its path has to be without links:
;   sandbox-exec -D SCRATCH=/private/tmp/scratch -f box.sb PROGRAM
"""
_ALWAYS = """\
(version 1)
(deny default)
(import "system.sb")
(allow process-fork)
(allow signal process-info* (target same-sandbox))
(allow sysctl-read)
(allow file-read-metadata)
"""
_ANY_NETWORK = """\
(allow system-socket)
(allow network-outbound (remote ip "*:*") (literal "/private/var/run/mDNSResponder"))
(allow network-bind network-inbound (local ip "*:*"))
"""
_UNIX_SOCKETS = """\
(allow network-outbound (remote unix-socket))
(allow network-bind network-inbound (local unix-socket))
"""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def profile(box: Sandbox, places: Places, *, words: str, hidden: tuple[str, ...] = ()) -> str:
    """Return a box as a Seatbelt profile, which begins with a comment that has `words`.

    `places` was made with `scratch=SCRATCH`. `hidden`: absolute paths that stay closed inside opened folders.
    Raise `SandboxError` if the box lists a host other than this machine, or a path has an unprintable
    character: a profile cannot express these.
    """
    limits = ", ".join(key for key in UNITS if getattr(box, key) is not None)
    not_said = f"; Not in this profile: {limits}. Use ulimit.\n" if limits else ""
    lines = [_HEAD.format(words=" ".join(words.split())), not_said, _ALWAYS]
    rules = [*_distinct(places.rules)]
    for operations, access in (
        ("file-read* file-map-executable", READ_FILE),
        ("file-write*", WRITE_FILE),
        ("process-exec*", EXECUTE),
    ):
        named = [_filter(rule.path) for rule in rules if rule.access & access]
        if named:
            lines.append(f"(allow {operations}\n  " + "\n  ".join(named) + ")\n")
    lines += _network(box)
    # Seatbelt follows the last rule that matches, so the rules for hidden paths come last.
    closed = [f"(subpath {_quoted(os.path.realpath(path))})" for path in hidden]
    if closed:
        lines.append("(deny file-read* file-write* process-exec*\n  " + "\n  ".join(closed) + ")\n")
    return "".join(lines)


def _distinct(rules: tuple[Rule, ...]) -> Iterator[Rule]:
    """Yield one rule for each existing path, with links resolved, as Seatbelt needs it, and for `SCRATCH`."""
    found: dict[str, int] = {}
    for rule in rules:
        path = rule.path if rule.path == SCRATCH else os.path.realpath(rule.path)
        if path == SCRATCH or os.path.exists(path):  # noqa: PTH110 - what is made there later stays closed
            found[path] = found.get(path, 0) | rule.access
    return itertools.starmap(Rule, found.items())


def _filter(path: str) -> str:
    if path == SCRATCH:
        return '(subpath (param "SCRATCH"))'
    return f"({'subpath' if os.path.isdir(path) else 'literal'} {_quoted(path)})"  # noqa: PTH112


def _network(box: Sandbox) -> Iterator[str]:
    if box.any_network:
        yield _ANY_NETWORK
    elsewhere = [str(host) for host in box.hosts if host.host not in _LOOPBACK]
    if elsewhere:
        why = f"A Seatbelt profile cannot name hosts of other machines, as {', '.join(elsewhere)}."
        raise SandboxError(why, remedy='Leave them out, or write "network": true.')
    ports = dict.fromkeys(port for host in box.hosts for port in host.ports)
    if ports:
        listed = " ".join(f'(remote ip "localhost:{port}")' for port in ports)
        yield f"(allow system-socket)\n(allow network-outbound {listed})\n"
    if box.unix_sockets:
        yield _UNIX_SOCKETS


def _quoted(path: str) -> str:
    if not path.isprintable():
        why = "it has a character that cannot be printed"
        raise SandboxError(f"A Seatbelt profile cannot name {path!a}: {why}.")
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
