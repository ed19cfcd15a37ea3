"""The reference server: a mock server with nearly all features of MCP and what its conformance suite expects.

Most tools that need something from the client (sampling, elicitation, roots) declare a parameter for it, so
that the SDK asks as the protocol revision prescribes. The two other tools call `_answer`.
"""

# This import comes first: without the package `mcp` it raises an error that says how to install it.
from grue.testing.mock_server import MockServer

# isort: split
import base64
import struct
from collections.abc import Callable
from typing import Annotated, Any, Literal

import anyio
import mcp_types as types
from mcp.server.connection import allowed_log_levels
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, ListRoots, Resolve, Sample, UserMessage
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError as ProtocolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field

# An image of one red pixel, and a recording of a tenth of a second of silence.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
_WAV_FIELDS = (b"RIFF", 36 + 800, b"WAVEfmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 800)
WAV = struct.pack("<4sI8sIHHIIHH4sI", *_WAV_FIELDS) + b"\x80" * 800
CITIES = ("Paris", "Parma", "Porto", "Prague")
STEP_S = 0.05
_QUESTION = "question"
SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


class Answer(BaseModel):
    """The form with which `test_elicitation` asks the user."""

    username: str = Field(description="Your name")
    email: str = Field(description="Your address")


class Defaults(BaseModel):
    """A form with a default for every primitive type."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


class Weather(BaseModel):
    """A structured result."""

    city: str
    celsius: float
    sunny: bool


def reference_server(**options: Any) -> MockServer:
    """Return a server that shows MCP's features; `options` are arguments of `MockServer`."""
    options.setdefault("name", "reference")
    server = MockServer(**options)
    _add_tools(server)
    _add_tools_that_tell(server)
    _add_content_tools(server)
    _add_asking_tools(server)
    _add_tools_that_ask(server)
    _add_resources_and_prompts(server)
    return server


def _add_tools(server: MockServer) -> None:
    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def weather(city: str) -> Weather:
        """Return the weather of a city, as structured content."""
        return Weather(city=city, celsius=21.5, sunny=True)

    @server.tool()
    def echo(text: str) -> str:
        """Return the text."""
        return text

    @server.tool(name="json_schema_2020_12_tool", description="Takes an address.", structured_output=False)
    def json_schema_2020_12_tool(name: str = "", address: dict[str, str] | None = None) -> str:
        return f"{name} {address}"

    tool = next(each for each in server._tool_manager.list_tools() if each.name.startswith("json_"))  # noqa: SLF001
    tool.parameters = SCHEMA_2020_12

    @server.tool(structured_output=False)
    def test_error_handling() -> str:
        """Return an error."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool(structured_output=False)
    async def test_tool_with_logging(ctx: Context[Any, Any]) -> str:
        """Send three log messages, 50 ms apart."""
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await _log(server, ctx, "info", text)
            await anyio.sleep(STEP_S)
        return "Tool with logging executed successfully"

    @server.tool(structured_output=False)
    async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
        """Report progress three times, 50 ms apart."""
        for progress in (0, 50, 100):
            await ctx.report_progress(progress, total=100)
            await anyio.sleep(STEP_S)
        return "Tool with progress executed successfully"

    @server.tool(structured_output=False)
    async def test_reconnection(ctx: Context[Any, Any]) -> str:
        """Close the HTTP stream of this call before it is answered, so that the client resumes it."""
        await ctx.close_sse_stream()
        await anyio.sleep(STEP_S)
        return "Reconnection test completed successfully"

    @server.tool(structured_output=False)
    async def wait(seconds: Annotated[float, Field(ge=0, le=600)]) -> str:
        """Wait. A cancelled call stops waiting."""
        await anyio.sleep(seconds)
        return f"waited {seconds:g} s"


def _add_tools_that_tell(server: MockServer) -> None:
    @server.tool(structured_output=False)
    async def add_tool(name: str, ctx: Context[Any, Any]) -> str:
        """Add a tool to this server, and tell the clients that the list has changed."""
        server.add_tool(lambda: f"this is {name}", name=name, description=f"The tool {name}.")
        await ctx.notify_tools_changed()
        await server.tell_tools_changed()
        return f"added {name}"

    @server.tool(structured_output=False)
    async def touch(uri: str, ctx: Context[Any, Any]) -> str:
        """Tell the clients that are subscribed to a resource that it has changed."""
        await ctx.notify_resource_updated(uri)
        await server.tell_updated(uri)
        return f"touched {uri}"


async def _log(server: MockServer, ctx: Context[Any, Any], level: types.LoggingLevel, text: str) -> None:
    # The SDK's own method is not used: each call of that method warns that logging is deprecated.
    request = ctx.request_context
    if server.logs(level, request) and level in allowed_log_levels(request.protocol_version, request.meta):
        params = types.LoggingMessageNotificationParams(level=level, data=text)
        await ctx.session.send_notification(types.LoggingMessageNotification(params=params), ctx.request_id)


def _add_content_tools(server: MockServer) -> None:
    image = types.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
    audio = types.AudioContent(type="audio", data=base64.b64encode(WAV).decode(), mime_type="audio/wav")
    text = types.TextContent(type="text", text="This is a simple text response for testing.")

    def embedded(uri: str, content: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
        contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=content)
        return types.EmbeddedResource(type="resource", resource=contents)

    resource = embedded("test://embedded-resource", "This is an embedded resource content.")
    mixed = embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json")
    link = types.ResourceLink(type="resource_link", uri="test://static-text", name="static text")
    contents: dict[str, tuple[str, list[Any]]] = {
        "test_simple_text": ("Return a text.", [text]),
        "test_image_content": ("Return an image.", [image]),
        "test_audio_content": ("Return a recording.", [audio]),
        "test_embedded_resource": ("Return a resource.", [resource]),
        "test_resource_link": ("Return a link to a resource.", [link]),
        "test_multiple_content_types": ("Return a text, an image and a resource.", [text, image, mixed]),
    }
    for name, (description, blocks) in contents.items():
        server.add_tool(_returns(blocks), name=name, description=description, structured_output=False)


def _returns(blocks: list[Any]) -> Callable[[], list[Any]]:
    return lambda: blocks


def _add_asking_tools(server: MockServer) -> None:
    def sample(prompt: str) -> Sample:
        text = types.TextContent(type="text", text=prompt)
        return Sample([types.SamplingMessage(role="user", content=text)], max_tokens=100)

    @server.tool(structured_output=False)
    def test_sampling(prompt: str, reply: Annotated[types.CreateMessageResult, Resolve(sample)]) -> str:
        """Ask the client's model."""
        del prompt  # declared so that it is in the tool's schema; only `sample` reads it
        return f"LLM response: {getattr(reply.content, 'text', reply.content)}"

    def ask(message: str) -> Elicit[Answer]:
        return Elicit(message, Answer)

    @server.tool(structured_output=False)
    def test_elicitation(message: str, answer: Annotated[ElicitationResult[Answer], Resolve(ask)]) -> str:
        """Ask the user for a name and an email address."""
        del message  # unused here: the MCP SDK passes it to `ask`, which has a parameter `message`
        return f"User response: {_outcome(answer)}"

    def ask_with_defaults() -> Elicit[Defaults]:
        return Elicit("Please check the form", Defaults)

    @server.tool(structured_output=False)
    def test_elicitation_sep1034_defaults(
        answer: Annotated[ElicitationResult[Defaults], Resolve(ask_with_defaults)],
    ) -> str:
        """Ask the user to fill in a form that has a default for every field."""
        return f"Elicitation completed: {_outcome(answer)}"


def _add_tools_that_ask(server: MockServer) -> None:
    @server.tool(structured_output=False)
    async def test_elicitation_sep1330_enums(ctx: Context[Any, Any]) -> str | types.InputRequiredResult:
        """Ask the user to choose, in all five forms of a choice."""
        params = types.ElicitRequestFormParams(message="Please choose", requested_schema=CHOICES)
        result = await _answer(ctx, params)
        if isinstance(result, types.InputRequiredResult):
            return result
        return f"Elicitation completed: action={result.action}, content={result.content}"

    @server.tool(structured_output=False)
    async def open_page(ctx: Context[Any, Any]) -> str | types.InputRequiredResult:
        """Ask the user to open a web page."""
        params = types.ElicitRequestURLParams(
            message="Please log in", url="https://example.com/login", elicitation_id="login-1"
        )
        result = await _answer(ctx, params)
        return result if isinstance(result, types.InputRequiredResult) else f"action={result.action}"

    def roots() -> ListRoots:
        return ListRoots()

    @server.tool(structured_output=False)
    def list_roots(found: Annotated[types.ListRootsResult, Resolve(roots)]) -> str:
        """Return the folders that the client lets servers work in."""
        return ", ".join(str(root.uri) for root in found.roots)


async def _answer(
    ctx: Context[Any, Any], params: types.ElicitRequestFormParams | types.ElicitRequestURLParams
) -> types.ElicitResult | types.InputRequiredResult:
    # Since revision 2026-07-28, a server sends no requests: the question is the result of the tool call, and
    # the client calls the tool again with the answer.
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answer = (ctx.input_responses or {}).get(_QUESTION)
        if isinstance(answer, types.ElicitResult):
            return answer
        _require_elicitation(ctx, "url" if isinstance(params, types.ElicitRequestURLParams) else "form")
        return types.InputRequiredResult(input_requests={_QUESTION: types.ElicitRequest(params=params)})
    result: types.ElicitResult
    if isinstance(params, types.ElicitRequestURLParams):
        identity = params.elicitation_id or ""
        result = await ctx.session.elicit_url(
            params.message, params.url, identity, related_request_id=ctx.request_id
        )
    else:
        schema = params.requested_schema
        result = await ctx.session.elicit_form(params.message, schema, related_request_id=ctx.request_id)
    return result


def _require_elicitation(ctx: Context[Any, Any], mode: Literal["form", "url"]) -> None:
    declared = ctx.client_capabilities
    modes = None if declared is None else declared.elicitation
    # Raise if the client lacks `mode`. Older clients, which declare elicitation without modes, support forms.
    if modes is None or (
        modes.url is None if mode == "url" else modes.form is None and modes.url is not None
    ):
        raise ProtocolError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"The client has not declared the capability elicitation.{mode}",
            {"requiredCapabilities": {"elicitation": {mode: {}}}},
        )


def _outcome(answer: Any) -> str:
    data = getattr(answer, "data", None)
    return f"action={answer.action}, content={data.model_dump() if data is not None else None}"


_OPTIONS = ["option1", "option2", "option3"]
CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": _OPTIONS},
        "titledSingle": {
            "type": "string",
            "oneOf": [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
        },
    },
}


def _add_resources_and_prompts(server: MockServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """An image."""
        return PNG

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        """A resource to subscribe to."""
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:  # noqa: A002 - the parameter's name in the URI
        """Data for an id."""
        return f'{{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}}'

    @server.prompt()
    def test_simple_prompt() -> str:
        """A prompt without arguments."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """A prompt with two arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:  # noqa: N803 - the suite's name
        """A prompt with a resource."""
        contents = types.TextResourceContents(
            uri=resourceUri, mime_type="text/plain", text="Embedded content."
        )
        return [
            UserMessage(types.EmbeddedResource(type="resource", resource=contents)),
            UserMessage("Please process the embedded resource above."),
        ]

    @server.prompt()
    def test_prompt_with_image() -> list[Any]:
        """A prompt with an image."""
        image = types.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
        return [UserMessage(image), UserMessage("Please analyze the image above.")]

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
        del ref, context
        found = [city for city in CITIES if city.lower().startswith(argument.value.lower())]
        return types.Completion(values=found, total=len(found), has_more=False)
