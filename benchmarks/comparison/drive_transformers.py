"""Drives Hugging Face transformers."""

from __future__ import annotations

import time
from typing import Any

from comparison.driver import Driver, Recorder, serve

__all__ = ["TransformersDriver"]


class TransformersDriver(Driver):
    """``generate`` of a causal model; shorter prompts of a batch are padded at the left."""

    def load(self, weights: str, options: dict[str, Any]) -> dict[str, Any]:
        """``dtype`` is a name of torch's."""
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        dtype = getattr(torch, options["dtype"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=dtype).eval()
        self.model.generation_config = transformers.GenerationConfig(pad_token_id=0)  # greedy; no token ends an output
        return {"version": transformers.__version__, "torch": torch.__version__}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Recorder:
        """Every prompt gets its token in the same step."""
        import torch

        record = Recorder(len(prompts))
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

        def note(tokens: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
            now_s = time.monotonic()
            for place, token in enumerate(tokens[:, -1].tolist()):
                record.add(place, [token], now_s)
            return torch.zeros(len(tokens), dtype=torch.bool)

        with torch.inference_mode():
            self.model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens, stopping_criteria=[note])
        return record

    def score(self, ids: list[int]) -> float:
        """From one forward pass."""
        import torch

        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0, :-1].float()
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))


if __name__ == "__main__":
    serve(TransformersDriver())
