"""`@tool`: mark a function as a tool, with a name, a description and a time limit of its own."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from msgspec import Struct

from grue.policies import ToolAnnotations

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__grue_tool__"


class ToolSettings(Struct, frozen=True, kw_only=True):
    """The arguments of `@tool`.

    Attributes:
        name: The tool's bare name; `None`: the function's name.
        description: What the model reads; `None`: the docstring up to its first section.
        timeout_s: Time limit of a call; `None`: the turn's.
        annotations: What the tool does, for the tool policy; `None`: nothing is known.
    """

    name: str | None = None
    description: str | None = None
    timeout_s: float | None = None
    annotations: ToolAnnotations | None = None


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    annotations: ToolAnnotations | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    annotations: ToolAnnotations | None = None,
) -> F | Callable[[F], F]:
    """Mark a function as a tool that `FunctionTools` can serve, and return the same function.

    The parameters' types become the schema that the model sees, and their descriptions come from the
    docstring (Google, NumPy or Sphinx style), from `Annotated[T, "text"]`, `msgspec.Meta` or pydantic's
    `Field`. A parameter of the type `ToolContext` is for progress and cancellation.

    ```python
    @tool
    def look(
        direction: Annotated[Literal["north", "south"], "Where to look."],
        far: Annotated[bool, "Whether to use the telescope."] = False,
    ) -> str:
        \"\"\"Look in a direction.\"\"\"
        ...

    runner = Runner(llm=..., servers={"eyes": FunctionTools([look])})
    ```

    Args:
        function: A plain function, a coroutine function, or a method.
        name: The tool's bare name; `None`: the function's name.
        description: What the model reads; `None`: the docstring up to its first section.
        timeout_s: Time limit of a call in seconds; `None`: the turn's. A smaller limit of the turn wins.
        annotations: What the tool does, such as `ToolAnnotations(read_only=True)`. A tool policy matches and
            trusts them, since they are the host's own. `None`: MCP's defaults, which assume the worst.
    """
    settings = ToolSettings(name=name, description=description, timeout_s=timeout_s, annotations=annotations)

    def mark(marked: F) -> F:
        setattr(marked, _ATTRIBUTE, settings)
        return marked

    return mark if function is None else mark(function)


def settings_of(function: Callable[..., Any]) -> ToolSettings | None:
    """Return the arguments of this function's `@tool`; `None` if it has none."""
    settings = getattr(function, _ATTRIBUTE, None)
    return settings if isinstance(settings, ToolSettings) else None
