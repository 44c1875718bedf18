"""Drives OpenVINO GenAI."""

from __future__ import annotations

from typing import Any

from comparison.driver import Driver, Recorder, serve

__all__ = ["OpenvinoDriver"]


class OpenvinoDriver(Driver):
    """Steps the pipeline with continuous batching, paged attention and a prefix cache."""

    def load(self, weights: str, options: dict[str, Any]) -> dict[str, Any]:
        """``scheduler`` has fields of SchedulerConfig; ``properties`` go to the device."""
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        for name, value in options["scheduler"].items():
            setattr(scheduler, name, value)
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(weights, scheduler, "CPU", options["properties"])
        self.num_requests = 0
        return {"version": openvino_genai.__version__}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Recorder:
        """Handles are read after each step."""
        import numpy as np
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        record = Recorder(len(prompts))
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self.pipeline.add_request(self.num_requests, ids, config))
            self.num_requests += 1
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for place, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        record.add(place, list(output.generated_ids))
        return record


if __name__ == "__main__":
    serve(OpenvinoDriver())
