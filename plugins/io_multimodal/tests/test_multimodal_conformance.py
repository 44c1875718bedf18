"""The processor passes the suite of IO processors, and the section of its settings that of hook modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from corefw.interfaces.hooks.media import MediaItem, MediaModel, MediaTokens
from corefw.interfaces.io_processor import IOChat, IOSetup
from corefw.testing.hook_module_suite import HookModuleSuite
from corefw.testing.io_processor_suite import IOProcessorSuite
from corefw_io_multimodal import settings
from corefw_io_multimodal.processor import MultimodalProcessor
from plugins.io_multimodal.tests.media_files import data_url, image_file


class Brightness(MediaModel):
    """An image is two positions: an id that says how bright it is, and one with an embedding."""

    @property
    def limits(self) -> Mapping[str, int]:
        return {"image": 2}

    def encode(self, item: MediaItem) -> MediaTokens:
        assert item.pixels is not None
        return MediaTokens(token_ids=[int(item.pixels.mean()), 0], embeds=np.ones((2, 4), dtype=np.float32))


class TestMultimodal(IOProcessorSuite):
    plugin = MultimodalProcessor

    def setup(self) -> IOSetup:
        return replace(super().setup(), media_model=Brightness())

    def chat(self) -> IOChat:
        parts = [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": data_url(image_file("blue"))}},
        ]
        return IOChat(messages=[{"role": "user", "content": parts}])


class TestSettings(HookModuleSuite):
    plugin = settings
    plugin_name = "multimodal"
    values = {"max_pixels": 1000}


def test_an_image_stands_where_it_was_sent() -> None:
    suite = TestMultimodal()
    processor = MultimodalProcessor(suite.setup())
    context = processor.begin(suite._request())
    processor.parse(context)
    prompt = processor.pre_process(context)
    before = b"user: What is it?"
    assert list(prompt.token_ids or ())[: len(before) + 3] == [*before, 85, 0, ord("\n")]
    assert list(prompt.embeds) == [len(before)]
