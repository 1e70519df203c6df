"""A model's files on the Hugging Face hub: from its cache without the network, or downloaded.

What comes back is a folder, which is then read like any other. The hub's address is HF_ENDPOINT's.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pvml.errors import HubUnavailable, PvmlError
from pvml.hub import endpoint, require_hub
from pvml.loading.files import CONFIG, INDEX, TOKENIZER, WHOLE, shards_of
from pvml.runs.json_object import read_json
from pvml.runs.layout import SEEDS_WEIGHTS

HUB_MODELS = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
"""Names that stand for a model on the Hugging Face hub, and where it is there."""

ALSO_CALLED = {"gpt2-small": "gpt2"}
"""What others call one of these; notebooks for TransformerLens begin with gpt2-small."""

SCHEME = "hf://"
"""With it, folders inside a repository can be named: hf://owner/name/folder."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OTHERS = ("model_final.pth", "model.pth", "state_dict.pt", "pytorch_model.pt")
"""Further names that state dicts in TransformerLens's names have."""
_WITHOUT_HUB = (
    "Without it, give a run directory (`pvml demo` or `pvml train` makes one) or a folder that "
    "holds a Hugging Face GPT-2."
)


def is_hub_id(word: str) -> bool:
    """Whether a word may be a model on the hub: a short name, owner/name, or hf://..."""
    short = ALSO_CALLED.get(word, word)
    return short in HUB_MODELS or word.startswith(SCHEME) or bool(_ID.fullmatch(word))


def hub_folder(word: str) -> Path:
    """The folder in the hub's cache that holds the model's files; the network only if it must.

    word: as `is_hub_id` takes it. Whether the files make a model is not looked at.

    Raises: PvmlError for an address that no model has; HubUnavailable, within 5 s, if the hub is
    needed and does not answer or does not have the files.
    """
    word = ALSO_CALLED.get(word, word)
    repo, inside = _address(word)
    # transformers caches these models under their short names, too
    for cached in dict.fromkeys((repo, word if word in HUB_MODELS else repo)):
        try:
            return _Files(word, cached, inside, online=False).folder()
        except _NotCachedError:
            pass
    # 3 s here and torch's import before it stay within 5 s of the command's start
    require_hub(f"The model {word}", timeout_s=3.0, instead=_WITHOUT_HUB)
    return _Files(word, repo, inside, online=True).folder()


def _address(word: str) -> tuple[str, str]:
    """The repository and the folder in it, which is empty for its top."""
    if word in HUB_MODELS:
        return HUB_MODELS[word], ""
    owner, _, rest = word.removeprefix(SCHEME).partition("/")
    name, _, inside = rest.partition("/")
    inside = inside.strip("/")
    parts = inside.split("/") if inside else []
    if not _ID.fullmatch(f"{owner}/{name}") or any(part in ("", ".", "..") for part in parts):
        raise PvmlError(f"{word!r} is no model on the hub: expected {SCHEME}owner/name/folder")
    return f"{owner}/{name}", inside


class _NotCachedError(Exception):
    """Only the hub can tell whether it has a file."""


class _Files:
    """The files of one folder of a repository, all of one commit."""

    def __init__(self, word: str, repo: str, inside: str, *, online: bool):
        self.repo, self.online = repo, online
        self.inside = inside.split("/") if inside else []
        self.has_gpt2s_tokenizer = word in HUB_MODELS
        self.commit: str | None = None
        try:
            import huggingface_hub
        except ImportError as error:
            raise PvmlError(
                f"{word} is read from the Hugging Face hub, which needs: pip install 'pvml[hub]'"
            ) from error
        self.hub: Any = huggingface_hub

    def folder(self) -> Path:
        """Where all that the model needs lies, once it is there.

        Raises: HubUnavailable for what the hub does not have; _NotCachedError if it must be asked.
        """
        config = self.get(CONFIG)
        if config is None:
            raise self._without(f"no {CONFIG}: {self._where_else()}")
        self.commit = config.parents[len(self.inside)].name
        says = read_json(config)
        seeds = "model_type" not in says and "args" in says and "format" not in says
        names = [SEEDS_WEIGHTS]
        if not seeds:
            names = [file for name in WHOLE for file in (name, name + INDEX)]
            names += _OTHERS if "model_type" not in says else ()
        weights = self.first(names)
        if weights.name.endswith(INDEX):
            for shard in shards_of(weights):
                if self.get(shard) is None:
                    raise self._without(f"no {shard}, which {weights.name} names")
        if not seeds and not self.has_gpt2s_tokenizer:
            self.get(TOKENIZER)
        return config.parent

    def first(self, names: Sequence[str]) -> Path:
        """The first of these files that is cached; where none is, the first that the hub has.

        Raises: as `folder`.
        """
        cached = [file for name in names if isinstance(file := self._cached(name), Path)]
        there = cached[0] if cached else None
        for name in names:
            there = there or self.get(name)
        if there is None:
            raise self._without(f"no weights: expected {' or '.join(names)}")
        return there

    def get(self, name: str) -> Path | None:
        """Where a file is; None if there is none of this name.

        Raises: _NotCachedError if only the hub knows; HubUnavailable if it does not say.
        """
        cached = self._cached(name)
        if cached is not None:
            return cached or None
        if not self.online:
            raise _NotCachedError
        errors = self.hub.errors
        try:
            got = self.hub.hf_hub_download(
                self.repo, self._path(name), revision=self.commit, endpoint=endpoint()
            )
        except Exception as error:  # the library's own, its HTTP client's, or the disk's
            gone = isinstance(error, errors.EntryNotFoundError)
            if gone and not isinstance(error, errors.LocalEntryNotFoundError):
                return None
            first = str(error).strip().splitlines()
            raise HubUnavailable(
                f"{self.repo} could not be read from {endpoint()} "
                f"({type(error).__name__}: {first[0] if first else ''}). {_WITHOUT_HUB}"
            ) from error
        return Path(got)

    def _cached(self, name: str) -> Path | Literal[False] | None:
        """Where a file is in the cache; False if it is known that there is none; None: unknown."""
        try:
            found = self.hub.try_to_load_from_cache(
                self.repo, self._path(name), revision=self.commit
            )
        except ValueError as error:  # a name that no repository can have
            raise PvmlError(str(error)) from error
        if found is None:
            return None
        return Path(found) if isinstance(found, str) else False

    def _path(self, name: str) -> str:
        return "/".join([*self.inside, name])

    def _without(self, what: str) -> HubUnavailable:
        return HubUnavailable(f"{self.repo} on {endpoint()} has {what}")

    def _where_else(self) -> str:
        """Which folders of the repository hold a config.json, where the hub tells."""
        try:
            files = self.hub.HfApi(endpoint=endpoint()).list_repo_files(self.repo)
        except Exception:  # whatever it is, it makes the message shorter only
            return "give another one"
        tail = f"/{CONFIG}"
        inside = sorted(file.removesuffix(tail) for file in files if file.endswith(tail))
        if not inside:
            return "it holds no model that PvML reads"
        return f"it is in {', '.join(f'{SCHEME}{self.repo}/{folder}' for folder in inside)}"
