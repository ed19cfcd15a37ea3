"""The code blocks of the documentation, and the marks that say how tests treat them.

A mark is a comment above a block of Python. Without a mark, the test runs the block as a reader would paste
it.

- `<!-- run -->`: run the block, as without a mark.
- `<!-- run with llm, servers -->`: run it with these names of `given`, which the page's text has introduced.
- `<!-- run as a program -->`: run it from a file, in a process of its own.
- `<!-- FILE.py -->`: do not run it; the block is part of this file in docs/examples.
- `<!-- not run: REASON -->`: do not run it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from grue import LlmSettings, Runner, StdioServer, TurnRequest
from grue.hosts.servers import think

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]+) -->\n)?```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ENDPOINT = re.compile(
    r"https?://(127\.0\.0\.1:11434|localhost:11434|api\.anthropic\.com|openrouter\.ai/api)/v1"
)
_NPX = re.compile(r'command="npx", args=\(.*?\)')
_MCP_FILES = re.compile(r'"command": "mcp-files", "args": \[.*?\]')
_MODEL_ALONE = re.compile(r"LlmSettings\(model=")
_MCP_URL = "http://127.0.0.1:8000/mcp"
THINK = (sys.executable, str(think.__file__))
ASKS = "a policy that asks"


class Block(NamedTuple):
    """A code block: its page, its number on the page, its mark (or ""), its language and its code."""

    page: Path
    number: int
    mark: str
    language: str
    code: str

    @property
    def name(self) -> str:
        """The block's name in the name of a test."""
        return f"{self.page.relative_to(DOCS.parent)}-{self.number}"

    @property
    def is_test(self) -> bool:
        """Whether the block is a file for pytest."""
        return "def test_" in self.code

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names in the mark `run with`, which the block uses but does not define."""
        return tuple(self.mark.removeprefix("run with ").split(", ")) if "run with" in self.mark else ()

    @property
    def is_program(self) -> bool:
        """Whether the block has to run from a file, because processes that it starts import this file."""
        return self.mark == "run as a program"

    def at(self, endpoint: str, mcp_url: str = _MCP_URL) -> str:
        """Return the code with this endpoint, and with grue's own servers in place of other servers."""
        code = _ENDPOINT.sub(endpoint, self.code).replace(_MCP_URL, mcp_url)
        code = _MODEL_ALONE.sub(f"LlmSettings(base_url={endpoint!r}, model=", code)
        code = _MCP_FILES.sub(lambda _: f'"command": {THINK[0]!r}, "args": [{THINK[1]!r}]', code)
        return _NPX.sub(lambda _: f"command={THINK[0]!r}, args=({THINK[1]!r},)", code)


def blocks(language: str) -> Iterator[Block]:
    """Yield all blocks in a language, page by page."""
    for page in PAGES:
        for number, found in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if found["language"] == language:
                yield Block(page, number, found["mark"] or "", language, found["code"])


def given(endpoint: str) -> dict[str, Any]:
    """Return values for the names that a mark `run with` may list."""
    llm = LlmSettings(base_url=endpoint, model="m")
    files = StdioServer(name="files", command=THINK[0], args=(THINK[1],))
    return {
        "llm": llm,
        "settings": llm,
        "servers": {"files": files},
        "key": "a-key-of-the-reader",
        "token": "a-token-of-the-reader",
        "texts": ["a", "b"],
        "Runner": Runner,
        "TurnRequest": TurnRequest,
    }


def project_file(endpoint: str, asks: bool) -> str:
    """Return a pyproject.toml with the endpoint. With `asks`, its policy asks about each call and parks."""
    text = f'[tool.grue.llm]\nclient_base_url = "{endpoint}"\nagent_model = "m"\n'
    text += "[tool.grue.mcp]\nenabled = true\n"
    policy = '[tool.grue.tool_policy]\nparking = true\n[[tool.grue.tool_policy.rules]]\nverdict = "ask"\n'
    return text + (policy if asks else "")


_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:grue|make|pip|python|podman|printf|export|cd) ")


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands in blocks of shell or of no language, as (page, command), without output."""
    for language in ("", "sh", "bash", "console"):
        for block in blocks(language):
            for line in block.code.splitlines():
                command = re.sub(r"\s+#\s.*", "", line.removeprefix("$ ")).removeprefix(".venv/bin/")
                if _COMMAND.match(command):
                    yield str(block.page.relative_to(DOCS.parent)), command


def shell_lines() -> Iterator[tuple[str, str]]:
    """Yield the commands whose options a test checks, as (page, command)."""
    for page, command in commands():
        if re.match(r"(grue|make|pip) ", command):
            yield page, command
    # Commands in blocks of text are checked, but cannot run: they have placeholders for the reader's words.
    for block in blocks("text"):
        for line in re.findall(r"^grue (?!:).*", block.code, re.MULTILINE):
            yield str(block.page.relative_to(DOCS.parent)), re.sub(r"\s+#\s.*", "", line)
