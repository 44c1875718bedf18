"""Conformance suite of model loaders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from corefw.config.model_info import ModelFiles
from corefw.errors import ModelFormatError
from corefw.interfaces.model_loader import ModelLoader
from corefw.testing.suite import NotChecked, PluginSuite, check_reason

__all__ = ["ModelLoaderSuite"]


class ModelLoaderSuite(PluginSuite):
    """For ``corefw.model_loaders``."""

    plugin: ClassVar[type[ModelLoader]]
    group = "model_loaders"

    def make_files(self, folder: Path) -> ModelFiles:
        """A small model of this format in ``folder``, which is empty. The default writes a Hugging Face directory."""
        from corefw.testing.tiny_models import write_tiny_llama

        root = write_tiny_llama(folder)
        weights = (str(root / "model.safetensors"),)
        files = ModelFiles(reference=str(root), source="local", root=str(root), weights=weights)
        if self.plugin().supports(files) is not None:
            raise NotChecked("it doesn't read Hugging Face directories; write a small model in make_files()")
        return files

    def test_it_says_why_it_does_not_read_other_files(self) -> None:
        other = ModelFiles(reference="x", source="local", root="/nowhere", weights=("/nowhere/model.unknown",))
        reason = self.plugin().supports(other)
        check_reason(reason, "supports()")
        assert reason is not None, "supports() says yes to a format that doesn't exist"

    def test_it_reads_the_header(self) -> None:
        with _folder() as folder:
            files = self.make_files(folder)
            assert self.plugin().supports(files) is None
            info = self.plugin().read_info(files)
            assert info.files == files
            assert info.loader == self.plugin.name
            assert info.architecture
            assert min(info.vocab_size, info.max_position, info.num_layers) > 0
            assert isinstance(info.eos_ids, tuple)

    def test_it_gives_every_tensor_once(self) -> None:
        import torch

        with _folder() as folder:
            loader = self.plugin()
            info = loader.read_info(self.make_files(folder))
            names = []
            for name, tensor in loader.weights(info, torch.float32):
                names.append(name)
                assert tensor.device.type == "cpu", f"{name} is on {tensor.device}"
                assert tensor.numel() > 0, f"{name} is empty"
                assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), f"{name} isn't finite"
            assert names, "weights() is empty"
            assert len(names) == len(set(names)), "a tensor comes twice"
            width = info.hf_config["hidden_size"]
            assert width > 0

    def test_a_damaged_file_is_an_error_that_names_it(self) -> None:
        import torch

        with _folder() as folder:
            files = self.make_files(folder)
            path = Path(files.weights[0])
            path.write_bytes(path.read_bytes()[:50])
            try:
                loader = self.plugin()
                list(loader.weights(loader.read_info(files), torch.float32))
            except ModelFormatError as error:
                assert path.name in str(error), f"the error doesn't name {path.name}: {error}"
                return
            raise AssertionError("a file that was cut off is read without an error")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corefw-loader-") as folder:
        yield Path(folder).resolve()
