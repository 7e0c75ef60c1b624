"""MTP heads as drafters: they draft as EAGLE heads do, with a layer of the target's kind."""

from __future__ import annotations

from draftwise.drafters.eagle import EagleDrafter, head_tree
from draftwise.nn.model import CausalModel
from draftwise.nn.mtp_files import load_mtp_head


def load_mtp(
    name: str,
    target: CausalModel,
    path: str = "",
    depth: int | None = None,
    top_k: int | None = None,
    total_tokens: int | None = None,
) -> EagleDrafter:
    """The MTP head in the target's own checkpoint, or in another folder or hub id.

    depth, top_k, total_tokens: as for an EAGLE head; such a head was trained for one token, or for
    as many as its authors say. Raises DraftwiseError for a head that is not there, cannot be read
    or was made for another target, ValueError for a limit outside 1 to 1,024.
    """
    tree = head_tree(depth, top_k, total_tokens)
    return EagleDrafter(name, load_mtp_head(path or target.name, target), target, depth, tree)
