"""Turn pydantic's errors into messages that say what was found and what is expected."""

from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

_SHOWN_CHARACTERS = 40


def setting_problem(error: ErrorDetails) -> str:
    """Describe an invalid setting: its value and what it should be. The text follows the setting's name."""
    wanted = error["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    if error["type"] == "value_error":
        return f"{wanted}."
    if error["type"] in ("unexpected_keyword_argument", "no_such_attribute"):
        return "is not a setting."
    return f"is {toml_kind(error['input'])}; it {wanted}."


def toml_kind(value: Any) -> str:
    """Describe a value in terms of TOML: numbers and texts by their value, anything else by its kind."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            shown = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
            return f"the text {shown!r}"
        case int() | float():
            return repr(value)
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


_WANTED = {
    "string_type": "a string",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "bool_type": "true or false",
    "float_type": "a number",
}


def entry_problem(error: ErrorDetails) -> str:
    """Describe an invalid entry of the servers' file. Values are shown by kind only: they may be secrets."""
    _, *place = error["loc"]
    where = _entry([part for part in place if part != "[key]"])
    if error["type"] == "value_error":
        return f"{where} {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "literal_error":
        return f"{where} should be {error['ctx']['expected']}"
    wanted = _WANTED.get(error["type"], error["msg"])
    return f"{where} should be {wanted}, not {_json_kind(error['input'])}"


def _entry(parts: list[int | str]) -> str:
    if not parts:
        return "the list of servers"
    server, *keys = parts
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
    return f"MCP server {server!r}" + (f": {path}" if path else "")


def _json_kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def missing_servers(path: Path, *, named: bool) -> str:
    """Return the error for a missing file of servers; `named`: the user has named it, and no setting."""
    if named:
        return f"The file of MCP servers {path} was not found. Correct the name; or `grue init` writes one."
    return (
        f"MCP is enabled but config file not found: {path}\n"
        "Please either:\n"
        f"  1. Create {path.name} in project root, or\n"
        "  2. Set mcp.enabled = false in pyproject.toml"
    )
