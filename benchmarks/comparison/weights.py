"""A model's weights in every form that the engines take, each made once from its GGUF file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Weights", "prepare"]

OPENVINO_FORMATS = ("fp16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Weights:
    """Where they are.

    Attributes:
        paths: by form: ``hf``, ``gguf``, ``openvino-fp16`` …
    """

    paths: dict[str, Path]

    def num_bytes(self, form: str) -> int:
        """What the weights take as stored."""
        path = self.paths[form]
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for file in path.iterdir() if file.suffix in (".safetensors", ".bin"))

    @property
    def max_position(self) -> int:
        """The longest context."""
        config = json.loads((self.directory / "config.json").read_text(encoding="utf-8"))
        return int(config["max_position_embeddings"])

    @property
    def directory(self) -> Path:
        """The Hugging Face directory, with config and tokenizer."""
        return self.paths["hf"]


def prepare(model: str, folder: Path, converter: Path | None) -> Weights:
    """Find or make all forms.

    Args:
        model: a GGUF file, a package that carries one, or a Hugging Face directory, which stays the only form.
        folder: keeps what is made.
        converter: optimum-intel's command, for OpenVINO's forms; None leaves out those not made yet, its failure too.
    """
    if Path(model).is_dir():
        return Weights({"hf": Path(model)})
    from corefw.config.args import UserArgs
    from corefw.engine.resolver import resolve_model
    from corefw.plugin_system.manager import PluginManager

    info, _ = resolve_model(UserArgs.from_keywords(model=model), PluginManager.discover(""))
    gguf = Path(info.files.weights[0])
    target = folder / gguf.stem
    if not (target / "hf").is_dir():
        _dequantise(info.hf_config, gguf, info, target / "hf")
    paths = {"gguf": gguf, "hf": target / "hf"}
    for name in OPENVINO_FORMATS:
        form = f"openvino-{name}"
        if not (target / form).is_dir() and converter is not None:
            _convert(converter, target / "hf", name, target / form)
        if (target / form).is_dir():
            paths[form] = target / form
    return Weights(paths)


def _dequantise(hf_config: dict[str, object], gguf: Path, info: object, target: Path) -> None:
    """A bfloat16 Hugging Face directory, which every engine that computes in 16 bits loads."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from corefw.builtins.model_loaders.gguf import GGUFLoader

    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tensors = {name: tensor.bfloat16().clone() for name, tensor in GGUFLoader().weights(info, torch.bfloat16)}
    save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    config = {**hf_config, "torch_dtype": "bfloat16", "dtype": "bfloat16"}
    (part / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(part)
    part.rename(target)


def _convert(converter: Path, source: Path, name: str, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    command = [
        str(converter), "export", "openvino", "--model", str(source),
        "--task", "text-generation-with-past", "--weight-format", name, str(part),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{target.name} is left out: {' '.join(command)} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return
    part.rename(target)
