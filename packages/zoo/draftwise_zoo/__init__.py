"""Bundled models: their weights, drafters for pretrained targets, and a reader of GGUF files.

`weights/` and `prompts.json` belong to the tiny models, which `draftwise.zoo` reads; `real/` has
drafters for pretrained targets.
"""

from draftwise_zoo.bundled import RETRIEVAL, drafter_specs, own_folders, own_specs
from draftwise_zoo.unpack import PRETRAINED, Pretrained, check_pieces, unpacked

__all__ = [
    "PRETRAINED", "RETRIEVAL", "Pretrained", "check_pieces", "drafter_specs",
    "own_folders", "own_specs", "unpacked",
]  # fmt: skip
