"""Images, audio and files as tools return them, and tool results that contain them."""

import base64
import struct
import zlib

from grue.messages import Attachment, CallId, JsonObject, ToolMessage
from grue.policies import TurnLimits
from grue.protocol.tools.results import MediaRoom, from_mcp, told


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\0\0")),
        _chunk(b"IEND", b""),
    )
)
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)
GIF = b"GIF89a" + bytes(34)
WEBP = b"RIFF\x1a\0\0\0WEBPVP8 " + bytes(10)
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)
MP3 = b"ID3\4" + bytes(30)
PDF = b"%PDF-1.7\n%%EOF"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><circle r="1"/></svg>'


def base64_of(content: bytes | str) -> str:
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def image(content: bytes = PNG, mime: str = "image/png") -> JsonObject:
    return {"type": "image", "data": base64_of(content), "mimeType": mime}


def audio(content: bytes = WAV, mime: str = "audio/wav") -> JsonObject:
    return {"type": "audio", "data": base64_of(content), "mimeType": mime}


def blob(content: bytes = PDF, mime: str = "application/pdf", uri: str = "file:///a/map.pdf") -> JsonObject:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": base64_of(content)}}


def padded(content: bytes, size: int) -> bytes:
    """Return the content, padded with zero bytes to `size` bytes."""
    return content + bytes(size - len(content))


def attached(
    kind: str = "image", content: bytes = PNG, mime: str = "image/png", name: str = ""
) -> Attachment:
    data = base64_of(content)
    return Attachment(kind=kind, mime=mime, data=data, bytes=len(content), name=name)  # type: ignore[arg-type]


def tool_message(call_id: str, *blocks: JsonObject) -> ToolMessage:
    """Return the message by which the model gets a result of these blocks, under the default limits."""
    result = from_mcp({"content": list(blocks)})
    return ToolMessage(CallId(call_id), *told(result, 20_000, MediaRoom(TurnLimits())))
