"""The code blocks of the documents, and what their marks say.

A comment above a block of Python says how CI treats it; without one the block is run as pasted:

- `<!-- run -->`: the same.
- `<!-- run with llm, servers -->`: the same, with names that the text has introduced, listed in `given`.
- `<!-- run as a program -->`: from a file of its own, in a process of its own.
- `<!-- FILE.py -->`: the block is part of that file in docs/examples.
- `<!-- not run: REASON -->`
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
    """A block: the page it is on, its number there, its mark or the empty text, its language, its code."""

    page: Path
    number: int
    mark: str
    language: str
    code: str

    @property
    def name(self) -> str:
        """What the block is called in a list of tests."""
        return f"{self.page.relative_to(DOCS.parent)}-{self.number}"

    @property
    def is_test(self) -> bool:
        """Whether it is a file for pytest."""
        return "def test_" in self.code

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names that the reader is assumed to have."""
        return tuple(self.mark.removeprefix("run with ").split(", ")) if "run with" in self.mark else ()

    @property
    def is_program(self) -> bool:
        """Whether it has to be in a file: processes that it starts import it."""
        return self.mark == "run as a program"

    def at(self, endpoint: str, mcp_url: str = _MCP_URL) -> str:
        """Return the code with this endpoint, and with our own servers in place of others."""
        code = _ENDPOINT.sub(endpoint, self.code).replace(_MCP_URL, mcp_url)
        code = _MODEL_ALONE.sub(f"LlmSettings(base_url={endpoint!r}, model=", code)
        code = _MCP_FILES.sub(lambda _: f'"command": {THINK[0]!r}, "args": [{THINK[1]!r}]', code)
        return _NPX.sub(lambda _: f"command={THINK[0]!r}, args=({THINK[1]!r},)", code)


def blocks(language: str) -> Iterator[Block]:
    """Yield the blocks in a language, page by page."""
    for page in PAGES:
        for number, found in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if found["language"] == language:
                yield Block(page, number, found["mark"] or "", language, found["code"])


def given(endpoint: str) -> dict[str, Any]:
    """Return the names that a block may want to be given."""
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
    """Return a pyproject.toml with the endpoint; `asks`: its policy parks turns to ask about each call."""
    text = f'[tool.grue.llm]\nclient_base_url = "{endpoint}"\nagent_model = "m"\n'
    text += "[tool.grue.mcp]\nenabled = true\n"
    policy = '[tool.grue.tool_policy]\nparking = true\n[[tool.grue.tool_policy.rules]]\nverdict = "ask"\n'
    return text + (policy if asks else "")


_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:grue|make|pip|python|podman|printf|export|cd) ")


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands of the blocks without a language, each with its page; output is left out."""
    for language in ("", "sh", "bash", "console"):
        for block in blocks(language):
            for line in block.code.splitlines():
                command = re.sub(r"\s+#\s.*", "", line.removeprefix("$ ")).removeprefix(".venv/bin/")
                if _COMMAND.match(command):
                    yield str(block.page.relative_to(DOCS.parent)), command


def shell_lines() -> Iterator[tuple[str, str]]:
    """Yield the commands that are read as the command line would read them, each with its page."""
    for page, command in commands():
        if re.match(r"(grue|make|pip) ", command):
            yield page, command
    # What stands in a block of text is not run: it has places for the reader's own words.
    for block in blocks("text"):
        for line in re.findall(r"^grue (?!:).*", block.code, re.MULTILINE):
            yield str(block.page.relative_to(DOCS.parent)), re.sub(r"\s+#\s.*", "", line)
