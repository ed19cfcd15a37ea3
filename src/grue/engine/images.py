"""Read and check the images of a `TurnRequest`, because one bad image makes an endpoint refuse a request."""

import base64
import os
from pathlib import Path
from typing import Any

import anyio.to_thread

from grue.errors import MCPError
from grue.messages import Attachment, TurnLimits
from grue.protocol.tool_media import MediaRoom
from grue.runtime.safe_open import read_regular
from grue.turn_request import Image, TurnRequest


async def images_for(request: TurnRequest[Any], limits: TurnLimits) -> tuple[Attachment, ...]:
    """Read the images of a request in a thread.

    Raises:
        MCPError: As `read_images`.
    """
    if not request.images:
        return ()
    return await anyio.to_thread.run_sync(read_images, request.images, limits)


def read_images(images: Any, limits: TurnLimits) -> tuple[Attachment, ...]:
    """Return images as they are sent to the model.

    Args:
        images: Paths of files, or their bytes.
        limits: How large an image, and all of them together, may be.

    Raises:
        MCPError: A file cannot be read, is not an image that models take, or is too large. Names the image.
    """
    room = MediaRoom(limits)
    for number, image in enumerate(images):
        what = f"Image {number + 1}" if isinstance(image, bytes) else f"The image {os.fspath(image)}"
        content = _content(image, what, limits)
        refused = room.attach("image", base64.b64encode(content).decode())
        if refused:
            raise MCPError(f"{what} cannot be shown to the model: {refused}.")
        if room.attachments[-1].kind != "image":
            raise MCPError(f"{what} is not an image: its content is {room.attachments[-1].mime}.")
    return tuple(room.attachments)


def _content(image: Image, what: str, limits: TurnLimits) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return read_regular(Path(image), max_bytes=limits.max_image_bytes)
    except OSError as error:
        raise MCPError(f"{what} cannot be read: {error.strerror or error}.") from error
