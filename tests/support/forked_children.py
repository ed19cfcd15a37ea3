"""Let a program start its own Python programs by the fork server, instead of in new interpreters.

`commands.with_forked_children` returns the code that installs this in a program. It changes how `subprocess`
starts `python FILE`, `python -m grue` and the command `grue`. It does not change programs of other
interpreters, interpreters with options, and programs that are started without `subprocess`, such as MCP
servers.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def install(client: Sequence[str]) -> None:
    """Replace `subprocess.Popen`, so that it puts `client` in front of the commands of these programs."""
    plain = subprocess.Popen

    class Popen(plain):  # type: ignore[type-arg, valid-type, misc]  # a subclass of the original
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
