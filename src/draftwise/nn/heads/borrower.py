"""Small models that keep no embeddings of their own: they take their target's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftwise.nn.attention import attend_raggedly
from draftwise.nn.cpu.layout import lay_out
from draftwise.nn.folder import BORROWS
from draftwise.nn.heads.eagle import LentHead
from draftwise.nn.heads.files import refuse_mismatch, refuse_other_target
from draftwise.nn.load import load_model
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

FILE = "model.safetensors"
IDS = "draft_ids"  # beside the weights: the tokens that can be drafted, where these are not all


def save_borrower(module: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write a causal LM without embeddings and ``lm_head``, with the ids of its ``LentHead``."""
    own = _own(module)
    config = AutoConfig.for_model(**module.config.to_dict())
    setattr(config, BORROWS, True)
    config.architectures, config.dtype = [type(module).__name__], dtype
    config.save_pretrained(folder)
    weights = {name: tensor.to(dtype).cpu().contiguous() for name, tensor in own.items()}
    if isinstance(head := module.get_output_embeddings(), LentHead):
        weights[IDS] = head.ids.cpu()
    save_file(weights, folder / FILE, metadata={"format": "pt"})


def load_borrower(folder: str | Path, target: CausalModel) -> CausalModel:
    """A checked model from such a folder, with the target's embeddings, ``lm_head``, dtype and
    device. Raises DraftwiseError for a key that is missing or left over, unknown tokens, or another
    size.
    """
    what = f"drafter {folder}"
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    text = config.get_text_config()
    refuse_other_target(what, text.hidden_size, text.vocab_size, target)
    try:
        weights = load_file(Path(folder) / FILE)
    except Exception as error:
        raise DraftwiseError(f"{what}: {FILE} cannot be read as weights: {error}") from error
    ids = weights.pop(IDS, None)
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < text.vocab_size:
        raise DraftwiseError(f"{what}: {IDS} has tokens beyond the target's {text.vocab_size}")
    module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    module = module.to(target.dtype)
    wanted = _own(module)
    refuse_mismatch(what, {name: tuple(own.shape) for name, own in wanted.items()}, weights)
    module.load_state_dict({n: t.to(target.dtype) for n, t in weights.items()}, strict=False)
    module.set_input_embeddings(nn.Identity())  # so that nothing of the target's is moved
    module.set_output_embeddings(nn.Identity())
    module.to(target.device)
    attend_raggedly(module)
    lay_out(module)
    embed, theirs = target.module.get_input_embeddings(), target.module.get_output_embeddings()
    module.set_input_embeddings(embed)
    module.set_output_embeddings(theirs)
    model = load_model(module.requires_grad_(False))
    if ids is not None:  # after the check, which compares finite logits
        module.set_output_embeddings(LentHead(theirs, ids, text.vocab_size))
        looked_up = sum(p.numel() for p in embed.parameters())
        model.num_parameters = sum(p.numel() for p in module.parameters()) - looked_up
    model.name = str(folder)
    return model


def _own(module: Any) -> Mapping[str, Tensor]:
    lent = (module.get_input_embeddings(), module.get_output_embeddings())
    places = {id(tensor) for layer in lent for tensor in (*layer.parameters(), *layer.buffers())}
    state = module.state_dict(keep_vars=True)
    return {name: value.detach() for name, value in state.items() if id(value) not in places}
