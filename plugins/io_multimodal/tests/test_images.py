"""Decoding images: every known format, nothing damaged, and never more pixels than allowed."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from corefw.errors import CapacityError, RequestError
from corefw_io_multimodal.images import decode_image
from corefw_io_multimodal.memory import Memory
from plugins.io_multimodal.tests.media_files import bomb_png, image_file


def decode(content: bytes, *, max_pixels: int = 10_000, num_bytes: int = 10**9) -> np.ndarray:
    with Memory(num_bytes).share() as share:
        return decode_image(content, share, max_pixels=max_pixels, param="here")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_each_format_becomes_rgb_pixels(form: str) -> None:
    pixels = decode(image_file((0, 0, 255), form=form))
    assert (pixels.shape, pixels.dtype) == ((12, 16, 3), np.uint8)
    assert np.abs(pixels.astype(int) - [0, 0, 255]).max() <= 3


def test_transparency_is_white_and_grey_is_rgb() -> None:
    assert decode(image_file((255, 0, 0, 0), mode="RGBA")).tolist() == [[[255] * 3] * 16] * 12
    assert decode(image_file(7, mode="L")).max() == 7


def test_one_pixel_is_an_image() -> None:
    assert decode(image_file(size=(1, 1))).shape == (1, 1, 3)


def test_an_image_is_turned_as_its_metadata_say() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[274] = 6
    Image.new("RGB", (16, 12)).save(file, "JPEG", exif=exif)
    assert decode(file.getvalue()).shape == (16, 12, 3)


_DAMAGED = {
    "empty": b"",
    "text": b"This is no image, whatever it calls itself.",
    "html": b"<html><body>404</body></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "tiff": image_file(form="TIFF"),
    "icon": image_file(form="ICO"),
    "png cut": image_file(size=(64, 64), colour="blue")[:-40],
    "png header alone": image_file()[:30],
    "jpeg cut": image_file(size=(64, 64), form="JPEG")[:-80],
    "webp cut": image_file(size=(64, 64), form="WEBP")[:-10],
    "gif cut": image_file(size=(64, 64), form="GIF")[:-30],
    "png with a wrong checksum": image_file()[:20] + b"\xff" + image_file()[21:],
}


@pytest.mark.parametrize("name", _DAMAGED)
def test_what_is_no_whole_image_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="isn't a whole image") as raised:
        decode(_DAMAGED[name])
    assert raised.value.param == "here"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_noise_in_a_file_is_an_image_or_the_clients_fault(form: str) -> None:
    random, statuses = np.random.default_rng(7), set()
    for _ in range(40):
        content = bytearray(image_file(form=form))
        for place in random.integers(0, len(content), 3):
            content[place] = random.integers(0, 256)
        try:
            statuses.add(decode(bytes(content)).ndim)
        except RequestError as error:
            statuses.add(error.status)
    assert statuses <= {3, 400}
    assert 400 in statuses


@pytest.mark.parametrize("side", [101, 10_000, 20_000])
def test_a_bomb_is_refused_before_it_is_decoded(side: int) -> None:
    content = bomb_png(side, side if side < 1000 else 1) if side == 101 else bomb_png(side, side)
    with pytest.raises(RequestError, match=r"more than 10000 pixels \(--multimodal.max_pixels\)"):
        decode(content, num_bytes=0)


def test_pixels_that_dont_fit_the_memory_are_a_matter_of_time() -> None:
    memory = Memory(1000)
    with memory.share() as share, pytest.raises(CapacityError, match="1000 bytes"):
        decode_image(image_file(), share, max_pixels=10_000, param="here")
    assert memory.num_taken == 0
