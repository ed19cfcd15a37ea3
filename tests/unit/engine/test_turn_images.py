"""Images of the user, checked before anything is sent."""

import os
import re
from pathlib import Path

import pytest
from media import GIF, PDF, PNG

from grue.engine.turn import TurnRequest, read_images
from grue.errors import MCPError
from grue.policies import TurnLimits

LIMITS = TurnLimits()


def test_paths_and_bytes_are_images(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    (entry,) = os.scandir(os.fsencode(tmp_path))  # its path is bytes
    found = read_images([str(path), path, entry, GIF], LIMITS)
    assert [(each.kind, each.mime, each.bytes) for each in found] == [
        ("image", "image/png", len(PNG)),
        ("image", "image/png", len(PNG)),
        ("image", "image/png", len(PNG)),
        ("image", "image/gif", len(GIF)),
    ]


@pytest.mark.parametrize(
    ("image", "limits", "why"),
    [
        (b"", LIMITS, "Image 2 cannot be shown to the model: it is not a PNG, JPEG, GIF or WebP image."),
        (PDF, LIMITS, "Image 2 is not an image: its content is application/pdf."),
        (PNG, TurnLimits(max_image_bytes=60), "it is larger than max_image_bytes, 60."),
        (PNG, TurnLimits(max_media_bytes=100), "with it the turn would show more than max_media_bytes, 100."),
        ("none.png", LIMITS, "The image none.png cannot be read: No such file or directory."),
    ],
)
def test_an_image_that_cannot_be_shown_is_named(image: bytes | str, limits: TurnLimits, why: str) -> None:
    with pytest.raises(MCPError, match=re.escape(why)):
        read_images([GIF, image], limits)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(PNG)
    with pytest.raises(MCPError, match="cannot be read: it is larger than"):
        read_images([path], TurnLimits(max_image_bytes=10))


def test_the_text_of_a_request_may_be_given_by_position() -> None:
    assert TurnRequest[str]("Go on.", system="Be brief.") == TurnRequest[str](
        user="Go on.", system="Be brief."
    )


def test_more_images_than_a_request_may_carry_are_refused() -> None:
    assert len(read_images([GIF] * 20, LIMITS)) == 20
    with pytest.raises(MCPError, match="At most 20 images can be sent with one turn: leave some out"):
        read_images([GIF] * 21, LIMITS)
