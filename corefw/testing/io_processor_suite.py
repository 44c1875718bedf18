"""Conformance suite of IO processors: a request's whole way, with outputs that are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from corefw.errors import CapacityError, RequestError
from corefw.interfaces.io_processor import IOChat, IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, IOSetup
from corefw.messages.plain import plain_problem
from corefw.messages.sampling import SamplingParams
from corefw.testing.byte_text import BYTE_VOCAB_SIZE, ByteRenderer
from corefw.testing.configs import fake_config
from corefw.testing.suite import NotChecked, PluginSuite

__all__ = ["IOProcessorSuite"]

_PARTS = frozenset({"image", "audio", "video", "file"})
_GARBAGE: tuple[Any, ...] = (None, "", 7, [], {}, {"no_such_field": 1}, [[[]]], "x" * 1000, {"": None}, True)


class IOProcessorSuite(PluginSuite):
    """For ``corefw.io_processor_plugins``."""

    plugin: ClassVar[type[IOProcessor]]
    group = "io_processor_plugins"

    def setup(self) -> IOSetup:
        """What it is made with: token ids are bytes, and the model takes text alone."""
        renderer: Any = ByteRenderer()
        return IOSetup(config=fake_config(vocab_size=BYTE_VOCAB_SIZE), renderer=renderer)

    def data(self) -> Any:
        """Right ``data``; a processor that takes chats alone leaves it and gives ``chat()``.

        Raises:
            NotChecked: none are known (the default).
        """
        raise NotChecked("return right data from data(), or a right chat from chat()")

    def chat(self) -> IOChat | None:
        """A right chat with other parts than text, where it takes some."""
        return None

    def test_it_says_what_it_takes(self) -> None:
        processor = self.plugin(self.setup())
        assert processor.modalities <= _PARTS, f"parts are called {', '.join(sorted(_PARTS))}"
        assert processor.tasks, "it can do nothing"

    def test_garbage_is_the_clients_fault(self) -> None:
        processor = self.plugin(self.setup())
        for data in _GARBAGE:
            context = processor.begin(IORequest(params=SamplingParams(), data=data))
            try:
                processor.parse(context)
                self._check_prompts(processor.pre_process(context))
            except (RequestError, CapacityError, ValueError) as refused:
                assert str(refused), f"{data!r} is refused without a reason"
            finally:
                context.close()

    def test_right_data_go_all_the_way(self) -> None:
        processor = self.plugin(self.setup())
        context = processor.begin(self._request())
        processor.parse(context)
        prompts = self._check_prompts(processor.pre_process(context))
        assert context.params.n == 1, "the number of outputs must stay what the client asked for"
        if context.request.chat is None:
            problem = plain_problem(processor.post_process(context, _outputs(prompts)))
            assert not problem, f"the answer {problem}"
        context.close()

    def test_the_server_gets_the_same(self) -> None:
        processor = self.plugin(self.setup())
        request = self._request()

        async def served() -> tuple[Any, Any]:
            context = processor.begin(request)
            processor.parse(context)
            prompts = self._check_prompts(await processor.pre_process_async(context))
            is_chat = request.chat is not None
            answer = None if is_chat else await processor.post_process_async(context, _outputs(prompts))
            context.close()
            return _comparable(prompts), answer

        context = processor.begin(request)
        processor.parse(context)
        prompts = self._check_prompts(processor.pre_process(context))
        answer = None if request.chat is not None else processor.post_process(context, _outputs(prompts))
        context.close()
        assert asyncio.run(served()) == (_comparable(prompts), answer), "in the server and outside of it they differ"

    def test_requests_overlap(self) -> None:
        processor = self.plugin(self.setup())
        contexts = [processor.begin(self._request()) for _ in range(3)]
        assert len({id(context) for context in contexts}) == 3, "requests share a context"
        for context in contexts:
            processor.parse(context)
        prompts = [_comparable(self._check_prompts(processor.pre_process(context))) for context in reversed(contexts)]
        assert prompts[0] == prompts[1] == prompts[2], "equal requests make different prompts"
        for context in contexts:
            context.close()

    def test_a_chat_makes_one_prompt(self) -> None:
        chat = self.chat()
        if chat is None:
            return
        processor = self.plugin(self.setup())
        context = processor.begin(IORequest(params=SamplingParams(), chat=chat))
        processor.parse(context)
        assert len(self._check_prompts(processor.pre_process(context))) == 1
        context.close()

    def test_a_request_that_ends_early_is_closed(self) -> None:
        context = self.plugin(self.setup()).begin(IORequest(params=SamplingParams(), data=None))
        assert isinstance(context, IOContext), f"begin() gave {type(context).__name__}"
        context.close()

    def _request(self) -> IORequest:
        """A right one: data, or a chat where no data are known."""
        try:
            return IORequest(params=SamplingParams(), data=self.data())
        except NotChecked:
            chat = self.chat()
            if chat is None:
                raise
            return IORequest(params=SamplingParams(), chat=chat)

    def _check_prompts(self, prompts: IOPrompt | Sequence[IOPrompt]) -> list[IOPrompt]:
        listed = [prompts] if isinstance(prompts, IOPrompt) else list(prompts)
        assert listed, "pre_process() made no prompt"
        for prompt in listed:
            assert isinstance(prompt, IOPrompt), f"pre_process() gave {type(prompt).__name__}"
            assert (prompt.text is None) != (prompt.token_ids is None), "a prompt is either a text or token ids"
            assert not prompt.embeds or prompt.token_ids is not None, "embeddings need token_ids"
        return listed


def _comparable(prompts: Sequence[IOPrompt]) -> list[Any]:
    """Arrays have no plain equality."""
    return [
        (
            prompt.text,
            None if prompt.token_ids is None else list(prompt.token_ids),
            {at: np.asarray(rows).tolist() for at, rows in prompt.embeds.items()},
        )
        for prompt in prompts
    ]


def _outputs(prompts: Sequence[IOPrompt]) -> list[list[IOOutput]]:
    return [[_output(index)] for index in range(len(prompts))]


def _output(index: int) -> IOOutput:
    text = f"answer {index}"
    return IOOutput(text=text, token_ids=list(text.encode()), finish_reason="stop")
