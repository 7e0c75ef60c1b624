"""Training an EAGLE-3 head: initialisation, the loss over unrolled drafts, acceptance by depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.functional import pad as padded
from transformers import PreTrainedModel

from draftwise.nn.eagle import EagleHead, lent_rows
from draftwise.nn.eagle_files import LLAMA, default_taps, head_config
from draftwise_lab.train.data import Observed, Text, groups, observe

DECAY = 0.8  # weight of a pass relative to the previous one: a draft's early tokens count most
LOGITS_AT_ONCE = 1 << 27  # half a gigabyte, when acceptance is measured
QUIET = 0.3
"""Initial scale relative to the target's final norm. The deepest state describes the current token,
not the next, so a head with the target's scale is confidently wrong (16 nats a token, not 7.6)."""


def kept_bytes(texts: Sequence[Text], head: EagleHead) -> int:
    """Bytes of ``keep`` on disk: tapped states of all tokens, last states of trained tokens."""
    taps = len(head.config.taps)
    num_states = sum((taps + 1) * len(text.tokens) - text.start for text in texts)
    return 2 * head.config.target_hidden_size * num_states


def draft_vocabulary(texts: Sequence[Text], size: int, vocab_size: int) -> Tensor | None:
    """[size] the most frequent trained tokens, in ascending order; None = all tokens."""
    if size >= vocab_size:
        return None
    counts = Counter(token for text in texts for token in text.tokens[text.start :])
    often = [token for token, _ in counts.most_common(size)]
    rest = (token for token in range(vocab_size) if token not in counts)
    return torch.tensor(sorted([*often, *islice(rest, size - len(often))]))


def new_head(
    target: PreTrainedModel, draft_ids: Tensor | None, *, seed: int, lends: bool = False
) -> EagleHead:
    """An untrained EAGLE-3 head that shares the target's embeddings.

    Initially ``fc`` passes the deepest tapped state through, ``norm`` is the target's times
    ``QUIET``, ``lm_head`` is the target's, and the layer's outputs are small. lends: the head uses
    the target's ``lm_head`` rows, which are neither trained nor stored.
    """
    config, theirs = target.config.get_text_config(), target.get_output_embeddings()
    if draft_ids is not None:
        theirs = lent_rows(theirs, draft_ids)
    size = config.hidden_size
    torch.manual_seed(seed)
    settings = {"draft_vocab_size": None if draft_ids is None else len(draft_ids)}
    layer = {name: getattr(config, name, None) for name in LLAMA}
    taps = default_taps(config.num_hidden_layers)
    shape = head_config(settings, layer, config, generation=3, taps=taps)
    head = EagleHead(shape, target.get_input_embeddings(), theirs if lends else None)
    if draft_ids is not None:
        head.set_vocabulary(draft_ids)
    with torch.no_grad():
        for weights in (head.midlayer.self_attn.o_proj.weight, head.midlayer.mlp.down_proj.weight):
            weights.mul_(0.1)
        head.fc.weight.normal_(0, 0.1 * size**-0.5)
        head.fc.weight[:, -size:] += torch.eye(size)
        norm = getattr(target.base_model, "norm", None)
        if norm is not None and head.norm is not None:  # its output for ones is its scale
            head.norm.weight.copy_(QUIET * norm(torch.ones(size, device=target.device)).float())
        if head.lm_head is not None:
            head.lm_head.weight.copy_(theirs.weight)
    return head.to(target.device)


def unrolled(head: EagleHead, batch: Observed, num_passes: int) -> list[Tensor]:
    """States g [B, T - 1, h] of drafts that begin at every slot, by pass.

    Source: EAGLE-3 (Li et al. 2025), section 3.2, "training-time test". Pass k predicts the k-th
    token after the first: entry s combines the token after that of pass k - 1 with the state of
    pass k - 1 at s, and attends to what a draft that begins at s would: slots up to s of pass 0,
    and the later passes at s. Cost: one layer per pass, and T scores per query.
    """
    width = batch.tokens.shape[1]
    hidden = head.fuse(batch.states[:, : width - 1])
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups_ = q.shape[1] // k.shape[1]
        keys.append(k.repeat_interleave(groups_, dim=1))
        values.append(v.repeat_interleave(groups_, dim=1))
        if len(keys) == 1:
            return nn.functional.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
        q = q * q.shape[-1] ** -0.5
        num = q.shape[2]
        late = torch.ones(num, num, dtype=torch.bool, device=q.device).triu(1)
        scores = [(q @ keys[0].transpose(2, 3)).masked_fill(late, float("-inf"))]
        scores += [(q * own).sum(-1, keepdim=True) for own in keys[1:]]
        weights = torch.cat(scores, dim=-1).softmax(-1).to(q.dtype)
        found: Tensor = weights[..., :num] @ values[0]
        for index, own in enumerate(values[1:], num):
            found = found + weights[..., index : index + 1] * own
        return found

    found = []
    for step in range(num_passes):
        tokens = padded(batch.tokens, (0, step))[:, 1 + step :]
        positions = torch.arange(step, width - 1 + step, device=tokens.device)[None]
        hidden = head(tokens, hidden, positions, attend)
        found.append(hidden)
    return found


def _aligned(batch: Observed, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """The trained positions that pass ``step`` predicts: their indices, rows and slots, all [N]."""
    rows = batch.positions // batch.tokens.shape[1]
    slots = batch.positions % batch.tokens.shape[1] - 1 - step
    which = (slots >= 0).nonzero()[:, 0]
    return which, rows[which], slots[which]


def eagle_loss(
    head: EagleHead, batch: Observed, num_passes: int, regression: float = 0.0
) -> Tensor:
    """Soft cross-entropy against the target over the draft vocabulary, in nats per token, averaged
    over passes with weights ``DECAY`` ** pass.

    Source: EAGLE-3's training code: soft labels are renormalised; positions where the target's
    likeliest token cannot be drafted are excluded. regression: weight of EAGLE-1's other loss (Li
    et al. 2024, section 3.2), smooth L1 between the normalised states of head and target, for a
    head with the target's ``lm_head``.
    """
    ids = head.draft_ids
    p = batch.logits(ids).softmax(-1)
    counts = torch.ones_like(batch.best).bool() if ids is None else torch.isin(batch.best, ids)
    total = p.new_zeros(())
    for step, states in enumerate(unrolled(head, batch, num_passes)):
        which, rows, slots = _aligned(batch, step)
        good = counts[which]
        ours = states[rows[good], slots[good]]
        log_q = head.draft_logits(ours).float().log_softmax(-1)
        loss = -(p[which[good]] * log_q).sum(-1).sum() / max(1, int(good.sum()))
        if regression and head.norm is not None:
            theirs = batch.last[which[good]].float()
            loss = loss + regression * nn.functional.smooth_l1_loss(head.norm(ours), theirs)
        total = total + DECAY**step * loss
    return total / sum(DECAY**step for step in range(num_passes))


@torch.no_grad()
def acceptance_by_depth(
    head: EagleHead, target: PreTrainedModel, texts: Sequence[Text], num_passes: int,
    sharpness: float = 1.0,
) -> list[float]:  # fmt: skip
    """Mean acceptance probability by draft depth along verified text, at 1 / sharpness."""
    totals, counts = [0.0] * num_passes, [0] * num_passes
    ids = head.draft_ids
    for group in groups(texts, min(2048, LOGITS_AT_ONCE // head.config.vocab_size)):
        batch = observe(target, [texts[i] for i in group], head.config.taps)
        p = (batch.logits() * sharpness).softmax(-1)
        p = p if ids is None else p[:, ids]  # q is 0 for all other tokens
        for step, states in enumerate(unrolled(head, batch, num_passes)):
            which, rows, slots = _aligned(batch, step)
            q = (head.draft_logits(states[rows, slots]).float() * sharpness).softmax(-1)
            totals[step] += float(torch.minimum(p[which], q).sum())
            counts[step] += len(which)
    return [total / max(1, count) for total, count in zip(totals, counts, strict=True)]
