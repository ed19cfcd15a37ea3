"""Regular expressions that are compiled when they are first used.

Use `late` in place of `re.compile` for a pattern of a module that most programs import and few use. Compiling
takes 0.1 to 0.5 ms, and there are dozens: what a program imports before its first request delays the request.
"""

import re
from typing import AnyStr, Generic, cast


def late(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what behaves like the compiled pattern, and is compiled with its first use."""
    return cast("re.Pattern[AnyStr]", _Late(source, flags))


class _Late(Generic[AnyStr]):
    def __init__(self, source: AnyStr, flags: int) -> None:
        self._source: AnyStr = source
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        # Only what the pattern has. Kept, so that the next use finds it without this method.
        found = getattr(re.compile(self._source, self._flags), name)
        setattr(self, name, found)
        return found
