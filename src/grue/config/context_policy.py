"""Read a `ContextPolicy` from a table of a TOML file.

```toml
[tool.grue.context]
window_tokens = 32_000
reply_tokens = 4_000
```
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from grue.config.tool_policy import (
    LineOf,
    TablePlace,
    keys_of,
    no_line,
    problem_of,
    refuse_unknown,
)
from grue.errors import MCPConfigError
from grue.messages import ContextPolicy


def context_policy_of(
    table: Mapping[str, Any], path: Path, place: str, *, line: LineOf = no_line
) -> ContextPolicy | None:
    """Return the policy that a table describes; `None` if it is empty.

    Args:
        table: The table, as it was read from the file. `read_only` may be one pattern or a list.
        path: The file, for errors.
        place: The name of the table, for errors: `tool.grue.context`.
        line: Returns the line of a key, for errors.

    Raises:
        MCPConfigError: A key is unknown or a value cannot be used; the error names file, line and key.
    """
    if not table:
        return None
    place_of = TablePlace(path, place, line)
    refuse_unknown(table, ContextPolicy.__struct_fields__, place_of)
    patterns = table.get("read_only", ())
    try:
        return msgspec.convert(
            {**table, "read_only": [patterns] if isinstance(patterns, str) else patterns}, ContextPolicy
        )
    except msgspec.ValidationError as error:
        raise place_of.error(keys_of(str(error)), problem_of(str(error))) from error
    except MCPConfigError as error:
        text = str(error).removeprefix("ContextPolicy: ")
        raise place_of.error((_key_in(text, table),), text) from error


def _key_in(text: str, table: Mapping[str, Any]) -> str:
    """Return the first key that an error is about and that the table has."""
    return next((word for word in re.findall(r"\w+", text) if word in table), "")
