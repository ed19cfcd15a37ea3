"""Has a program that runs in a fork start its own programs in forks, too, in place of new interpreters.

`commands.with_forked_children` gives the Python that installs this, to run first in the program. It concerns
what is started by `subprocess` as `python FILE`, `python -m grue` or the command `grue`. All else stays as it
is: programs of other interpreters, interpreters with options, and what is started without `subprocess`, such
as MCP servers.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def install(client: Sequence[str]) -> None:
    """Start such programs by the command line `client`, which ends where that of the program begins."""
    plain = subprocess.Popen

    class Popen(plain):  # type: ignore[type-arg, valid-type, misc]  # what it was before
        def __init__(self, args: Any, *others: Any, **options: Any) -> None:
            super().__init__(_forked(args, client), *others, **options)

    subprocess.Popen = Popen  # type: ignore[misc]  # that is the purpose


def _forked(args: Any, client: Sequence[str]) -> Any:
    if isinstance(args, str | bytes | os.PathLike):
        return args
    match [os.fspath(each) for each in args]:
        case [sys.executable, "-m", "grue", *rest]:
            return [*client, "grue", *rest]
        case [sys.executable, str(file), *rest] if file.endswith(".py"):
            return [*client, file, *rest]
        case [str(program), *rest] if program == os.path.join(os.path.dirname(sys.executable), "grue"):  # noqa: PTH118, PTH120
            return [*client, "grue", *rest]
    return args
