"""The keys that choose which of a server's tools are offered, ours and those of other hosts."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grue.config.reading import nearest

INCLUDING = ("allow_tools", "allowed_tools", "enabled_tools", "enabledTools", "includeTools")
"""Keys that list the tools to offer. `allow_tools` is ours; other hosts have the others."""

EXCLUDING = ("disabled_tools", "disabledTools", "excludeTools")
"""Keys of other hosts that list the tools to leave out."""


class ToolsConfig(BaseModel):
    """The choice of a server's tools that are offered.

    Attributes:
        include: Bare names, or patterns with `*`, `?` and `[...]`, of the tools to offer; `None`: all.
        exclude: Names or patterns of tools to leave out, even if `include` matches them.
    """

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    include: list[str] | None = None
    exclude: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _look_at_keys(cls, values: Any) -> Any:
        if isinstance(values, list):  # some hosts have the list alone
            return {"include": values}
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(
                    f"has the unknown key {key!r}. Did you mean {nearest(key, cls.model_fields)!r}?"
                )
        return values


def with_tools(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a server's entry with `tools` in place of the keys that mean the same.

    Raises:
        ValueError: Two keys say which tools to offer, or which to leave out.
    """
    found = {"include": INCLUDING, "exclude": EXCLUDING}
    present = {kind: [key for key in keys if key in entry] for kind, keys in found.items()}
    both = [key for keys in present.values() for key in keys]
    if not both:
        return entry
    for keys in (*present.values(), ["tools", *both] if "tools" in entry else []):
        if len(keys) > 1:
            raise ValueError(f"has {' and '.join(repr(key) for key in keys)}: keep only one")
    tools = {kind: entry[keys[0]] for kind, keys in present.items() if keys}
    return {**{key: value for key, value in entry.items() if key not in both}, "tools": tools}
