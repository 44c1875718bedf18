"""Drives llama.cpp through llama-cpp-python's bindings of its C interface.

Prompts are computed in batches and decoded together, each in a sequence of its own. As in llama.cpp's server, a
sequence keeps what it computed last, and a next prompt that begins alike is computed from where the two part.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llama_cpp
import numpy as np

from comparison.driver import Driver, Recorder, serve

__all__ = ["LlamaDriver"]

_BATCH = 2048


@llama_cpp.llama_log_callback
def _silent(_level: int, _text: bytes, _data: Any) -> None:
    """What llama.cpp tells."""


class _Context:
    """A context for a number of sequences, and what each of them holds."""

    def __init__(self, model: Any, num_sequences: int, options: dict[str, Any]) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = options["context"] * num_sequences
        params.n_batch = _BATCH
        params.n_ubatch = options["ubatch"]
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = options["threads"]
        params.flash_attn_type = options["flash_attention"]
        params.no_perf = True
        self.pointer = llama_cpp.llama_init_from_model(model, params)
        if not self.pointer:
            raise RuntimeError("llama.cpp made no context")
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self.held: list[list[int]] = [[] for _ in range(num_sequences)]
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def compute(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """One batch: sequence, position, token and whether its logits are wanted, each."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for place, (sequence, position, token, wanted) in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = sequence
            batch.logits[place] = wanted
        if llama_cpp.llama_decode(self.pointer, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def logits(self, place: int) -> np.ndarray[Any, Any]:
        """Of one token of the last batch; valid until the next."""
        row = llama_cpp.llama_get_logits_ith(self.pointer, place)
        return np.ctypeslib.as_array(row, (self.vocab_size,))

    def keep_common(self, sequence: int, prompt: list[int]) -> int:
        """Forget what differs from the prompt; how many of its tokens are there already. One at least isn't."""
        held = self.held[sequence]
        common = 0
        while common < min(len(held), len(prompt) - 1) and held[common] == prompt[common]:
            common += 1
        if not llama_cpp.llama_memory_seq_rm(self.memory, sequence, common, -1):
            llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)
            common = 0
        self.held[sequence] = held[:common]
        return common


class LlamaDriver(Driver):
    """A context for one sequence at once, and others as they are needed."""

    def load(self, weights: str, options: dict[str, Any]) -> dict[str, Any]:
        """``context`` tokens a sequence, ``ubatch``, ``threads``, ``flash_attention``."""
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(weights), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp can't load {weights}")
        self.options = options
        self.contexts: dict[int, _Context] = {}
        self._context(1)
        system = llama_cpp.llama_print_system_info().decode()
        return {"version": llama_cpp.__version__, "build": system}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Recorder:
        """All prompts first, then all sequences together."""
        context = self._context(len(prompts))
        record = Recorder(len(prompts))
        self._prefill(context, prompts, record)
        while len(record.tokens[0]) < num_tokens:
            rows = [
                (sequence, len(context.held[sequence]), tokens[-1], True)
                for sequence, tokens in enumerate(record.tokens)
            ]
            context.compute(rows)
            for sequence, (_, _, token, _) in enumerate(rows):
                context.held[sequence].append(token)
                record.add(sequence, [int(context.logits(sequence).argmax())])
        return record

    def score(self, ids: list[int]) -> float:
        """From the logits of every token."""
        context = self._context(1)
        context.keep_common(0, [-1, -1])
        total = 0.0
        for start in range(0, len(ids) - 1, self.options["ubatch"]):
            piece = ids[start : min(start + self.options["ubatch"], len(ids) - 1)]
            context.compute([(0, start + place, token, True) for place, token in enumerate(piece)])
            for place in range(len(piece)):
                row = context.logits(place).astype(np.float64)
                top = row.max()
                total += top + np.log(np.exp(row - top).sum()) - row[ids[start + place + 1]]
        context.keep_common(0, [-1, -1])
        return float(total / (len(ids) - 1))

    def _context(self, num_sequences: int) -> _Context:
        if num_sequences not in self.contexts:
            self.contexts[num_sequences] = _Context(self.model, num_sequences, self.options)
        return self.contexts[num_sequences]

    def _prefill(self, context: _Context, prompts: list[list[int]], record: Recorder) -> None:
        queue = []
        for sequence, prompt in enumerate(prompts):
            start = context.keep_common(sequence, prompt)
            last = len(prompt) - 1
            queue += [(sequence, place, prompt[place], place == last) for place in range(start, len(prompt))]
            context.held[sequence] = list(prompt)
        for begin in range(0, len(queue), _BATCH):
            piece = queue[begin : begin + _BATCH]
            context.compute(piece)
            for place, (sequence, _, _, wanted) in enumerate(piece):
                if wanted:
                    record.add(sequence, [int(context.logits(place).argmax())])


if __name__ == "__main__":
    serve(LlamaDriver())
