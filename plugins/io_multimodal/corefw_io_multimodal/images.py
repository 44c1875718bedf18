"""Images: from a file's bytes to pixels, with bounds on what that takes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from corefw.errors import RequestError
from corefw_io_multimodal.memory import Share

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["decode_image"]

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# While it is decoded: the file's own pixels (4 bytes at most), RGB, and what is handed on.
_BYTES_A_PIXEL = 4 + 3 + 3


def decode_image(content: bytes, share: Share, *, max_pixels: int, param: str) -> npt.NDArray[np.uint8]:
    """uint8 [height, width, 3]: the first frame, turned as its metadata say, over white where it is transparent.

    The size is read first; nothing is decoded of an image with more than ``max_pixels``.

    Raises:
        RequestError: it isn't an image of a known format, is damaged, or is too large.
        CapacityError: there is no memory for it now.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _too_large(max_pixels, param)
            share.grow(width * height * _BYTES_A_PIXEL)
            return _pixels(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(max_pixels, param) from None
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, OverflowError):
        # What Pillow raises for damaged files; an unknown format is an OSError.
        raise RequestError(
            f"that isn't a whole image in one of the formats {', '.join(_FORMATS)}", param=param, code="media_invalid"
        ) from None


def _pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    turned = ImageOps.exif_transpose(image)
    if turned.has_transparency_data:
        colours = turned.convert("RGBA")
        turned = Image.new("RGB", colours.size, (255, 255, 255))
        turned.paste(colours, mask=colours.getchannel("A"))
    return np.array(turned.convert("RGB"), dtype=np.uint8)


def _too_large(max_pixels: int, param: str) -> RequestError:
    return RequestError(
        f"the image has more than {max_pixels} pixels (--multimodal.max_pixels)", param=param, code="media_too_large"
    )
