"""A runner around the context model."""

from __future__ import annotations

import torch

from corefw.config.runtime_plan import RuntimePlan
from corefw.runtime.kv_pages import KVPages
from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.execution import Execution
from corefw.runtime.model_runner.input_preparation import InputPreparation, TableLayout
from corefw.runtime.model_runner.prompt_embeds import HeldEmbeds
from corefw.runtime.model_runner.prompt_logprobs import PromptLogprobsCollector
from corefw.runtime.model_runner.runner import ModelRunner
from corefw.runtime.model_runner.sampling_output import SamplingOutput
from corefw.runtime.sampling.sampler import Sampler
from tests.runtime.context_model import VOCAB, ContextBackend, ContextModel

MAX_MODEL_LEN = 1000


def context_plan(num_blocks: int = 64, block_size: int = 4, num_groups: int = 1) -> RuntimePlan:
    layers = [f"layers.{index}" for index in range(2)]
    groups = (tuple(layers),) if num_groups == 1 else tuple((name,) for name in layers)
    return RuntimePlan(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=MAX_MODEL_LEN,
        kv_cache_bytes=0,
        attention_backend="context",
        layer_groups=groups,
    )


def context_runner(
    model: ContextModel, plan: RuntimePlan, *, max_num_seqs: int = 8, max_num_tokens: int = 256
) -> ModelRunner:
    layers = {layer.spec.name: layer for layer in model.attention_layers}
    groups = [[layers[name] for name in names] for names in plan.layer_groups]
    pages = KVPages(
        [{layer.spec.name: layer.kv_cache_spec(plan.block_size) for layer in group} for group in groups],
        plan.num_blocks,
        torch.device("cpu"),
    )
    for buffer in pages.buffers:
        buffer[:, 1:] = 255  # NaN: whoever reads a page before it is cleared or written gets caught
    for name, view in pages.views(ContextBackend).items():
        layers[name].bind_pages(view)
    sampler = Sampler(VOCAB)
    return ModelRunner(
        batch=BatchState(max_num_seqs, len(groups)),
        pages=pages,
        preparation=InputPreparation(
            torch.device("cpu"),
            max_num_tokens=max_num_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=plan.max_model_len,
            groups=[TableLayout(plan.block_size)] * len(groups),
        ),
        assembly=AttentionMetadataAssembly(
            ContextBackend,
            [[layer.spec for layer in group] for group in groups],
            [plan.block_size] * len(groups),
            max_num_seqs,
        ),
        execution=Execution(model),
        sampling=SamplingOutput(sampler),
        embeds=HeldEmbeds(torch.device("cpu")),
        prompt_logprobs=PromptLogprobsCollector(sampler, VOCAB),
    )
