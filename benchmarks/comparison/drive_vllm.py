"""Drives vLLM."""

from __future__ import annotations

from typing import Any

from comparison.driver import Driver, Recorder, serve

__all__ = ["VllmDriver"]


class VllmDriver(Driver):
    """Steps the engine below ``vllm.LLM``; its core is in a process of its own, as by default."""

    def load(self, weights: str, options: dict[str, Any]) -> dict[str, Any]:
        """Settings are those of ``LLM``."""
        import vllm

        self.llm = vllm.LLM(model=weights, **options)
        self.engine = self.llm.llm_engine
        self.num_requests = 0
        return {"version": vllm.__version__}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Recorder:
        """Through the engine's own requests."""
        import vllm

        params = vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        record = Recorder(len(prompts))
        first = self.num_requests
        self.num_requests += len(prompts)
        for place, prompt in enumerate(prompts):
            self.engine.add_request(str(first + place), {"prompt_token_ids": prompt}, params)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                place = int(output.request_id.split("-")[0]) - first
                new = output.outputs[0].token_ids[len(record.tokens[place]) :]
                record.add(place, list(new))
        return record

    def score(self, ids: list[int]) -> float:
        """From the prompt's log-probabilities."""
        import vllm

        params = vllm.SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        (result,) = self.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        told = zip(ids[1:], result.prompt_logprobs[1:], strict=True)
        return -sum(entry[token].logprob for token, entry in told) / (len(ids) - 1)


if __name__ == "__main__":
    serve(VllmDriver())
