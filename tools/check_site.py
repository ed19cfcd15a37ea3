"""Check a built site: links lead to files and places that exist, and no page loads anything from the network.

    python tools/check_site.py build/site

mkdocs checks the links in Markdown. This also checks what themes, plugins and generated pages add.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The links, the loaded files and the ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        given = dict(attrs)
        self.ids |= {given[name] or "" for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif (
            tag in _LOADING
            and given.get(_LOADING[tag])
            and given.get("rel") not in ("canonical", "next", "prev")
        ):
            self.loaded.append(given[_LOADING[tag]] or "")


def problems(site: Path) -> Iterator[str]:
    """Yield a sentence for each broken link and each file that would be loaded from the network."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.glob("**/*.html"))}
    for address in re.findall(r"\]\((\S+?)\): ", (site / "llms.txt").read_text(encoding="utf-8")):
        if not (site / address).exists():
            yield f"llms.txt refers to {address}, which is not there"
    for path, page in pages.items():
        name = path.relative_to(site)
        if path.name == "404.html":
            continue  # its links are relative to the root of a web server
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{name} loads {address} from the network"
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{name} refers to {address}, which is not there"
            elif target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name} refers to {address}, and that page has no such place"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "Every link leads somewhere, and nothing is loaded from the network.")
    sys.exit(bool(found))
