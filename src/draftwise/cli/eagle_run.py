"""One run of ``draftwise train eagle``: what is learned, and what it is worth on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from draftwise.cli import training as t

if TYPE_CHECKING:
    from draftwise.train.lesson import Text
    from draftwise.types import Costs

MOST_KEPT_BYTES = 4 << 30
"""Above this the target's states are computed again in every epoch."""


@dataclass(frozen=True)
class Wish:
    """The numbers of a run."""

    epochs: float
    lr: float
    depth: int
    draft_vocab: int | None
    max_length: int
    batch_tokens: int
    seed: int
    keep: bool | None
    bf16: bool | None
    lends: bool
    regression: float
    probe: float


class Run:
    """One training run: the head, its looks at what it is worth, its result."""

    def __init__(
        self,
        scene: t.Scene,
        taught: Sequence[Text],
        held_out: Sequence[Text],
        wish: Wish,
        folder: Path,
        bars: t.Bars,
    ) -> None:
        import torch

        from draftwise.train.eagle import draft_vocabulary, new_head
        from draftwise.train.lesson import groups
        from draftwise.train.loop import Settings

        self._target, self._held_out, self._wish = scene.target, held_out, wish
        self._taught, self._folder, self._bars = taught, folder, bars
        size = wish.draft_vocab or min(32000, scene.target.vocab_size)
        ids = draft_vocabulary(taught, size, scene.target.vocab_size)
        self._head = new_head(scene.target.module, ids, seed=wish.seed, lends=wish.lends)
        steps = max(1, round(wish.epochs * len(groups(taught, wish.batch_tokens))))
        self._is_half = scene.target.dtype == torch.bfloat16  # what it lends does not mix with ours
        on_cuda = scene.target.device.type == "cuda"
        mixed = self._is_half or (on_cuda if wish.bf16 is None else wish.bf16)
        self._settings = Settings(
            steps, wish.lr, min(50, steps // 10), steps // 2, clip=0.5, bf16=mixed
        )
        self._costs: Costs | None = None

    def train(self) -> dict[str, Any]:
        """Look, train as far as the probe, look again, and train to the end."""
        from draftwise.train.eagle import train_eagle
        from draftwise.train.observed import observed_batches

        wish, steps = self._wish, self._settings.steps
        batches = observed_batches(
            self._target.module,
            {"texts": self._taught},
            self._head.config.taps,
            seed=wish.seed,
            tokens_per_batch=wish.batch_tokens,
            keep=self._folder / "states" if self._keeps() else None,
        )
        update = self._bars.stage("training", steps)
        self._look("before training")
        first = round(wish.probe * steps)
        for stop in (first, steps) if 0 < first < steps else (steps,):
            losses = train_eagle(
                self._head,
                batches,
                self._settings,
                num_passes=wish.depth,
                regression=wish.regression,
                checkpoint=self._folder / "head.pt",
                progress=update,
                stop_at=stop,
            )
            found = self._look(f"after {len(losses)} of {steps} steps")
        return found | {
            "held_out_texts": len(self._held_out),
            "steps": len(losses),
            "last_loss": losses[-1],
            "parameters": self._head.num_parameters,
            "hidden_states": list(self._head.config.taps),
            "draft_vocab_size": self._head.config.draft_vocab_size,
        }

    def save(self, out: Path, layout: str) -> None:
        """Write the head in the target's precision."""
        from draftwise.nn.eagle_save import save_head

        target = self._target
        save_head(self._head.cpu(), out, layout=layout, dtype=target.dtype, verifier=target.name)

    def _keeps(self) -> bool:
        from draftwise.train.eagle import kept_bytes

        if self._wish.keep is not None:
            return self._wish.keep
        return kept_bytes(self._taught, self._head) < MOST_KEPT_BYTES

    def _look(self, when: str) -> dict[str, Any]:
        """Acceptance by depth on held-out answers, and the speed that it promises."""
        import torch

        from draftwise.train.eagle import acceptance_by_depth
        from draftwise.train.speedup import chain_speedups, head_costs

        self._head.eval()
        module, depth = self._target.module, self._wish.depth
        with torch.autocast(module.device.type, torch.bfloat16, enabled=self._is_half):
            if self._costs is None:
                self._costs = head_costs(self._target, self._head)
            alphas = acceptance_by_depth(self._head, module, self._held_out, depth)
        target_s, draft_s = self._costs.target_s, self._costs.draft_s["head"]
        expected = chain_speedups(alphas, target_s, draft_s)
        Console(stderr=True).print(
            f"{when}: acceptance {', '.join(f'{alpha:.3f}' for alpha in alphas)}, expected "
            f"{expected.max():.2f}x plain decoding with drafts of {expected.argmax() + 1} (a "
            f"target token takes {1000 * target_s[0]:.1f} ms, a drafted one {1000 * draft_s:.1f})",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        return {
            "acceptance_by_depth": [round(alpha, 4) for alpha in alphas],
            "expected_speedup": round(float(expected.max()), 3),
            "target_ms": round(1000 * float(target_s[0]), 2),
            "draft_ms": round(1000 * draft_s, 2),
        }
