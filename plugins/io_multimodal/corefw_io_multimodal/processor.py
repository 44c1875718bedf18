"""The IO processor: a chat with media becomes token ids, with the model's tokens where the media stand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import msgspec

from corefw.errors import ConfigError, RequestError
from corefw.interfaces.hooks.media import MediaItem, MediaModel, MediaTokens
from corefw.interfaces.io_processor import IOChat, IOContext, IOProcessor, IOPrompt, IORequest, IOSetup
from corefw_io_multimodal.images import decode_image
from corefw_io_multimodal.kept import KeptItems
from corefw_io_multimodal.memory import Memory, Share
from corefw_io_multimodal.parsing import parse_messages
from corefw_io_multimodal.settings import Multimodal
from corefw_io_multimodal.sources import Sources
from corefw_io_multimodal.tracker import MediaTracker, TrackedItem

__all__ = ["MediaContext", "MultimodalProcessor"]

# Fetching waits, decoding computes: no more images are decoded at once than this, whatever the requests are.
_NUM_READERS = 8


class MediaContext(IOContext):
    """One chat's items.

    Attributes:
        tracker: the items.
        messages: with marks in the media's places.
        reads: those that are being read; what hasn't begun when the request ends never does.
    """

    def __init__(self, request: IORequest, tracker: MediaTracker) -> None:
        super().__init__(request)
        self.tracker = tracker
        self.messages: list[dict[str, object]] = []
        self.reads: list[Future[MediaTokens]] = []

    def close(self) -> None:
        """Drop what waits to be read. What is being read gives its memory back by itself."""
        for read in self.reads:
            read.cancel()


class MultimodalProcessor(IOProcessor):
    """``--io-processor-plugin multimodal``, for models whose plugin has a ``MediaModel``."""

    name: ClassVar[str] = "multimodal"

    def __init__(self, setup: IOSetup) -> None:
        super().__init__(setup)
        if setup.media_model is None:
            raise ConfigError(
                "the IO processor 'multimodal' is for models that take media, but no plugin says so of "
                f"{setup.config.model_info.architecture} (corefw_media_model); use --io-processor-plugin none"
            )
        self._model: MediaModel = setup.media_model
        self._limits = {name: count for name, count in self._model.limits.items() if count > 0}
        self._settings = msgspec.convert(setup.config.plugin_settings.get(self.name, {}), Multimodal)
        self._sources = Sources(self._settings)
        self._kept = KeptItems(self._settings.max_kept_bytes)
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="media")
        self.memory = Memory(self._settings.max_total_bytes)

    @property
    def modalities(self) -> frozenset[str]:
        """The model's."""
        return frozenset(self._limits)

    def begin(self, request: IORequest) -> MediaContext:
        """A context without items."""
        return MediaContext(request, MediaTracker(self._limits))

    def parse(self, context: IOContext) -> None:
        """Find the items; nothing is read yet."""
        assert isinstance(context, MediaContext), "begin makes no others"
        if context.request.chat is None:
            raise RequestError("this server takes media in the messages of a chat; it takes no data")
        context.messages = parse_messages(context.request.chat.messages, context.tracker)

    def pre_process(self, context: IOContext) -> IOPrompt:
        """Read the items, then render."""
        context = self._reading(context)
        return self._render(context, [read.result() for read in context.reads])

    async def pre_process_async(self, context: IOContext) -> IOPrompt:
        """The same, with nobody waiting in a thread."""
        context = self._reading(context)
        tokens = await asyncio.gather(*map(asyncio.wrap_future, context.reads))
        return await context.in_thread(self._render, context, tokens)

    def _reading(self, context: IOContext) -> MediaContext:
        assert isinstance(context, MediaContext), "begin makes no others"
        salt = context.request.cache_salt
        context.reads = [self._readers.submit(self._read, item, salt) for item in context.tracker.items]
        return context

    def _read(self, item: TrackedItem, salt: str | None) -> MediaTokens:
        with self.memory.share() as share:
            found = self._item(item, salt, share)
            try:
                tokens = self._model.encode(found)
            except RequestError as error:
                error.param = error.param or item.path
                raise
        if item.media_id is not None and item.source is not None:
            self._kept.put(salt, item.media_id, found)
        return tokens

    def _item(self, item: TrackedItem, salt: str | None, share: Share) -> MediaItem:
        if item.source is None:
            kept = self._kept.get(salt, item.modality, item.media_id or "")
            if kept is None:
                raise RequestError(
                    f"no {item.modality} is kept under that uuid, or not any more; send it again",
                    param=f"{item.path}.uuid",
                    code="media_not_kept",
                )
            return kept
        fetched = self._sources.read(item.source, share, param=item.path)
        kind = fetched.media_type.partition("/")[0]
        if kind not in ("", item.modality) and fetched.media_type != "application/octet-stream":
            raise RequestError(
                f"the media are declared as {fetched.media_type[:80]!r}, which is no {item.modality}",
                param=item.path,
                code="media_invalid",
            )
        if item.modality != "image":
            return MediaItem(modality=item.modality, content=fetched.content, media_type=fetched.media_type)
        pixels = decode_image(fetched.content, share, max_pixels=self._settings.max_pixels, param=item.path)
        return MediaItem(modality="image", pixels=pixels, media_type=fetched.media_type)

    def _render(self, context: MediaContext, tokens: Sequence[MediaTokens]) -> IOPrompt:
        chat: IOChat | None = context.request.chat
        assert chat is not None, "parse saw to it"
        marks = [item.mark for item in context.tracker.items]
        rendered = self.setup.renderer.render_chat_with(
            context.messages,
            {mark: each.token_ids for mark, each in zip(marks, tokens, strict=True)},
            template_kwargs=chat.template_kwargs,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )
        embeds = {
            rendered.offsets[mark]: each.embeds
            for mark, each in zip(marks, tokens, strict=True)
            if each.embeds is not None
        }
        return IOPrompt(token_ids=rendered.ids, embeds=embeds)
