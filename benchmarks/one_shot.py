"""Processes that run one turn and end: when does their first request arrive, and when have they ended?

grue uses the tool lock and the listing that `grue tools --lock` writes. It is compared with a script that
only imports httpx and posts, with the hand-written agent, and with three other frameworks.
"""

import compileall
import datetime as dt
import ipaddress
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from boots import PEERS_SHOWN
from children import HERE, MCP_SERVER, ChatServer, chat_server, environment
from measuring import Bar, Effort, Figure, Section, figure

sys.path.append(str(HERE / "peers"))

from sides import TURNS as PEERS

SIDES = {
    "grue": "grue, servers in code",
    "files": "grue, `Runner.from_toml`",
    "httpx": "script that only posts",
    "script": "hand-written script",
}
MODEL = "calls-1"
BOOT_S = 0.6
LIMIT_S = 60.0
LOCK, LISTING = "mcp_tools.lock", "mcp_tools.listing.json"
COMPARED = ("grue", "httpx")
"""What is started most often."""

FEW = 1
"""Starts of the other sides: they take most of the time."""


class Shot(NamedTuple):
    """Two times of one process, in milliseconds since its start.

    Attributes:
        first: When its first request reached the endpoint.
        done: When it ended.
    """

    first: float
    done: float


Shots = dict[str, list[Shot]]


def one_shot_section(effort: Effort) -> Section:
    """Compare processes that run one turn."""
    _compile_grue()
    figures: list[Figure] = []
    facts: dict[str, str] = {}
    dropped = 0
    with tempfile.TemporaryDirectory() as name:
        certificate = Path(name, "certificate.pem")
        make_certificate(certificate)
        for scheme, chosen, share in (("http", None, 0.5), ("https", certificate, 1.0)):
            folder = Path(name, scheme)
            folder.mkdir()
            with chat_server(delay_ms=effort.reply_ms, certificate=chosen) as chat:
                shots, failed = _shots(chat, folder, chosen, effort.part(share))
            figures += _figures(scheme, shots)
            facts |= {f"{side} over {scheme} failed": why for side, why in failed.items()}
            dropped += sum(trace.read_text().count('"ReplyDropped"') for trace in folder.rglob("*.jsonl"))
    return Section(
        "one_shot",
        "A process of one turn: its first request, and its end",
        "Measured: from the start of the process until the endpoint has received the first bytes of its "
        f"first request, and until the process has ended. The server takes {BOOT_S:g} s to start, each reply "
        f"{effort.reply_ms:.0f} ms; trace in a file. Bytecode is present, and the files are in the cache. "
        "Over https the certificates are those of the system. The script that only posts has no server, "
        "tools or second request.",
        figures,
        [Bar("processes of one turn: replies of the model that grue dropped", dropped, 0)],
        facts,
    )


def _shots(
    chat: ChatServer, folder: Path, certificate: Path | None, effort: Effort
) -> tuple[Shots, dict[str, str]]:
    """Return the times of each side, and why peers (other frameworks) failed."""
    environ = environment()
    if certificate:
        environ["SSL_CERT_FILE"] = str(_trusted(certificate, folder))
    server = (*MCP_SERVER, "--boot-s", str(BOOT_S if effort.one_shots > 1 else 0.0))
    project = _project(chat, folder, server, environ)
    sides = _sides(chat, folder, project, server)
    shots: Shots = {side: [] for side in sides}
    failed: dict[str, str] = {}
    # The first round fills the file system's cache and does not count. A quick run does without it.
    warm = int(effort.one_shots > 1)
    for number in effort.within(warm + effort.one_shots):
        for side, command in sides.items():
            if side in failed or (side not in COMPARED and (number >= warm + FEW or not warm)):
                continue
            try:
                shot = _shot(command(), folder, chat, environ)
            except (OSError, subprocess.SubprocessError, RuntimeError) as error:
                if side in SIDES:
                    raise
                failed[side] = str(error)
                continue
            if number >= warm:
                shots[side].append(shot)
    return {side: seen for side, seen in shots.items() if seen}, failed


def _sides(
    chat: ChatServer, folder: Path, project: Path, server: Sequence[str]
) -> dict[str, Callable[[], list[str]]]:
    def grue(*before: str, after: Sequence[str] = ()) -> list[str]:
        trace = Path(tempfile.mkdtemp(dir=folder)) / "trace.jsonl"
        return [sys.executable, str(HERE / "one_shot_script.py"), *before, str(trace), *after]

    model = [chat.base_url, MODEL]
    sides: dict[str, Callable[[], list[str]]] = {
        "grue": partial(grue, *model, after=server),
        "files": partial(grue, str(project)),
        "httpx": lambda: [sys.executable, str(HERE / "post_script.py"), chat.base_url, "calls-0"],
        "script": lambda: [sys.executable, str(HERE / "sdk_script.py"), *model, *server],
    }
    for peer in PEERS:
        if peer.name in PEERS_SHOWN and peer.installed:
            sides[peer.name] = partial(list, [*peer.command, *model, *server])
    return sides


def _shot(command: Sequence[str], folder: Path, chat: ChatServer, environ: Mapping[str, str]) -> Shot:
    chat.received()
    begun = time.perf_counter()
    # The processes of other frameworks run a turn for each line that they read.
    subprocess.run(
        command, input=b"\n", capture_output=True, cwd=folder, env=environ, timeout=LIMIT_S, check=True
    )
    done = time.perf_counter()
    seen = chat.received()
    if not seen["requests"]:
        raise RuntimeError("it sent no request")
    return Shot((seen["first_at"] - begun) * 1e3, (done - begun) * 1e3)


def _project(chat: ChatServer, folder: Path, server: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Write a project's files; return its `pyproject.toml`. The tool lock is made once and then copied."""
    project = folder / "pyproject.toml"
    project.write_text(
        "[tool.grue.mcp]\nenabled = true\n"
        f'[tool.grue.llm]\nclient_base_url = "{chat.base_url}"\nagent_model = "{MODEL}"\n'
    )
    servers = {"mcpServers": {"plain": {"command": server[0], "args": list(server[1:])}}}
    (folder / "mcp_config.json").write_text(json.dumps(servers))
    if (folder.parent / LISTING).exists():
        for name in (LOCK, LISTING):
            shutil.copy(folder.parent / name, folder)
        return project
    lock = [sys.executable, "-m", "grue", "tools", "--lock"]
    subprocess.run(lock, cwd=folder, env=environ, capture_output=True, timeout=LIMIT_S, check=True)
    for name in (LOCK, LISTING):
        shutil.copy(folder / name, folder.parent)
    return project


def _compile_grue() -> None:
    import grue

    compileall.compile_dir(Path(grue.__file__).parent, quiet=2)


def _trusted(certificate: Path, folder: Path) -> Path:
    """Return a file with this certificate and the system's: reading them takes time, as in a real program."""
    paths = ssl.get_default_verify_paths()
    system = Path(os.environ.get("SSL_CERT_FILE") or paths.cafile or paths.openssl_cafile)
    together = folder / "trusted.pem"
    others = system.read_text() if system.is_file() else ""
    together.write_text(f"{others}\n{certificate.read_text()}")
    return together


def make_certificate(path: Path) -> None:
    """Write a key and a self-signed certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + built.public_bytes(pem))


def _figures(scheme: str, shots: Shots) -> list[Figure]:
    first = [
        figure(
            f"{scheme}, time to the first request: {SIDES.get(side, side)}",
            "ms",
            [shot.first for shot in seen],
        )
        for side, seen in shots.items()
    ]
    done = [
        figure(f"{scheme}, time to the end: {SIDES.get(side, side)}", "ms", [shot.done for shot in seen])
        for side, seen in shots.items()
        if side != "httpx"
    ]
    return [*first, *done]
