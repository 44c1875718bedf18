"""Drives corefw, engine and program in one process."""

from __future__ import annotations

from typing import Any

from comparison.driver import Driver, Recorder, serve

__all__ = ["CorefwDriver"]


class CorefwDriver(Driver):
    """Steps the engine below ``corefw.LLM``, so that each token's time is seen."""

    def load(self, weights: str, options: dict[str, Any]) -> dict[str, Any]:
        """Settings are those of ``LLM``."""
        from corefw import LLM, __version__

        self.llm = LLM(weights, enable_multiprocessing=False, **options)
        decisions = [list(decision) for decision in self.llm.config.decisions]
        return {"version": __version__, "decisions": decisions}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Recorder:
        """Through the core's own requests."""
        from corefw import SamplingParams
        from corefw.frontend.core_requests import core_requests

        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, seed=0)
        engine = self.llm.engine
        record = Recorder(len(prompts))
        places = {}
        for place, prompt in enumerate(prompts):
            (request,) = core_requests(prompt, params, eos_ids=())
            places[request.request_id] = place
            engine.add_request(request)
        while engine.has_work():
            for output in engine.step():
                if output.error:
                    raise RuntimeError(output.error)
                record.add(places[output.request_id], output.new_token_ids)
        return record

    def score(self, ids: list[int]) -> float:
        """From the prompt's log-probabilities."""
        from corefw import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
        (result,) = self.llm.generate([ids], params, use_tqdm=False)
        told = [entry for entry in result.prompt_logprobs if entry is not None]
        return -sum(_of_token(entry) for entry in told) / len(told)


def _of_token(entry: Any) -> float:
    return float(entry.logprob)


if __name__ == "__main__":
    serve(CorefwDriver())
