"""What a box has refused, in words, with the entry that would allow it.

The kernel tells a program no more than "permission denied", and tells nobody else. So this looks at the paths
that the program's own texts name beside those words, and at what the gate has refused. The texts are not
trusted: a path is mentioned only if the box does not open it, and nothing is changed.
"""

import os
import re
from collections.abc import Iterable

from grue.sandbox.gate import Refusal
from grue.sandbox.kernel import READ_FILE, WRITE_FILE, Rule

_DENIED = re.compile(r"(?i)permission denied|\bEACCES\b|\bEPERM\b|operation not permitted|PermissionError")
_QUOTED = re.compile(r"""['"`]((?:/|~/)[^'"`\n]{1,1000})['"`]""")
_PLAIN = re.compile(r"(?:^|[\s:=(])((?:/|~/)[^\s:'\"`,;)]{1,1000})")
_WRITES = re.compile(r"(?i)\b(mkdir|unlink|rmdir|rename|creat\w*|write|touch|remove|truncate|symlink|link)\b")
_NO_NAMES = re.compile(r"(?i)EAI_AGAIN|EAI_FAIL|name resolution|getaddrinfo|could not resolve|ENETUNREACH")
_MOST = 5
_MOST_CHARS = 65_536


def refusals(
    text: str, rules: Iterable[Rule], refused: Iterable[Refusal], *, network: str
) -> tuple[str, ...]:
    """Return a sentence for each thing that a box has refused, as far as it can be told.

    Args:
        text: What the program has written: its standard error, or an error result.
        rules: What the box opens.
        refused: What its gate has refused.
        network: `none`, `hosts` or `any`.
    """
    rules = tuple(rules)
    found: dict[str, None] = {}
    for line in text[-_MOST_CHARS:].splitlines():
        if len(found) < _MOST and _DENIED.search(line):
            writes = _WRITES.search(line) is not None
            for path in (*_QUOTED.findall(line), *_PLAIN.findall(_QUOTED.sub(" ", line))):
                said = _about_path(path.rstrip("."), rules, writes=writes)
                if said is not None:
                    found[said] = None
    for each in refused:
        said = f"Its box refused a connection to {each.where}: {each.why}."
        found[f'{said} To allow it: "network": ["{each.allow}"]'] = None
    if not found and network != "any" and _NO_NAMES.search(text[-_MOST_CHARS:]):
        found[_no_network(network)] = None
    return tuple(found)[:_MOST]


def _about_path(path: str, rules: tuple[Rule, ...], *, writes: bool) -> str | None:
    real = os.path.realpath(os.path.expanduser(path))  # noqa: PTH111
    access = [rule.access for rule in rules if _covers(rule.path, real)]
    if any(each & WRITE_FILE for each in access):
        return None  # the box opens it: the file's own permissions refuse it
    readable = any(each & READ_FILE for each in access)
    key, verb = ("write", "write") if writes or readable else ("read", "read")
    return f'Its box does not let it {verb} {path}. To allow it: "{key}": ["{path}"]'


def _no_network(network: str) -> str:
    if network == "none":
        return 'Its box gives it no network. To allow hosts: "network": ["host:443"]'
    return (
        "It looked up a host itself, which its box refuses: it does not use the proxy of HTTPS_PROXY."
        ' To allow all of the network: "network": true'
    )


def _covers(folder: str, path: str) -> bool:
    real = os.path.realpath(folder)
    return path == real or path.startswith(real.rstrip("/") + "/")
