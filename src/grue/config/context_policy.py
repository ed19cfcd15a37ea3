"""Read a `ContextPolicy` from a table of a TOML file.

```toml
[tool.grue.context]
window_tokens = 32_000
reply_tokens = 4_000
```
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from grue.config.tool_policy import problem_of, refuse_unknown
from grue.errors import MCPConfigError
from grue.messages import ContextPolicy


def context_policy_of(table: Mapping[str, Any], path: Path, place: str) -> ContextPolicy | None:
    """Return the policy that a table describes; `None` if it is empty.

    Args:
        table: The table, as it was read from the file. `read_only` may be one pattern or a list.
        path: The file, for errors.
        place: The name of the table, for errors: `tool.grue.context`.

    Raises:
        MCPConfigError: A key is unknown or a value cannot be used; the error names the file and the key.
    """
    if not table:
        return None
    refuse_unknown(table, ContextPolicy.__struct_fields__, f"{path}: [{place}]", path)
    patterns = table.get("read_only", ())
    try:
        return msgspec.convert(
            {**table, "read_only": [patterns] if isinstance(patterns, str) else patterns}, ContextPolicy
        )
    except msgspec.ValidationError as error:
        raise MCPConfigError(f"{path}: [{place}] {problem_of(str(error))}", path=str(path)) from error
    except MCPConfigError as error:
        text = str(error).removeprefix("ContextPolicy: ")
        raise MCPConfigError(f"{path}: [{place}] {text}", path=str(path)) from error
