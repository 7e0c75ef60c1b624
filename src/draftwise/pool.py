"""Loads drafters from specs, and checks that they fit the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise import registry, zoo
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.protocol import Drafter
from draftwise.errors import BadValue
from draftwise.files import local_path
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.settings import ZOO, check_drafter, expand, lm_options, name_and_spec
from draftwise.types import NONE, DraftwiseError


def resolve_target(target: Any) -> tuple[Any, list[str]]:
    """The target's folder, hub id or module, and its default drafters.

    Besides these three, ``target`` may be ``zoo``, a key of ``PRETRAINED``, or the path of a
    ``.gguf`` file, which is unpacked on first use.
    """
    if target == ZOO:
        return str(zoo.target_path()), [ZOO, "lookup"]
    if isinstance(target, (str, Path)) and zoo.is_pretrained(str(target)):
        package = zoo.package()
        return str(package.unpacked(str(target))), package.drafter_specs(str(target))
    return (str(target) if isinstance(target, Path) else target), ["lookup"]


def check_drafters(specs: Any) -> None:
    """Reject wrong specs, and models that cannot be had, before a target is loaded for them."""
    for given in [specs] if isinstance(specs, str) else specs:
        if isinstance(given, str):
            check_drafter(given)


def load_drafters(
    specs: str | Sequence[Any], target: CausalModel, target_source: Any, *, dtype: Any, device: Any
) -> list[Drafter]:
    """Load each spec (or a single one), in order; a name that occurs twice gets a number.

    target_source: the target's tokenizer, or where it was loaded from. device: if the target is
    spread over several devices, drafters are placed on its first one.
    Raises DraftwiseError for an unknown spec or option, a folder without a model, or a vocabulary
    (or tokenizer) that differs from the target's.
    """
    named: dict[str, Drafter] = {}
    if isinstance(device, dict) or str(device).startswith("map:"):
        device = str(target.device)
    if not isinstance(specs, (str, Path, list, tuple)):
        raise BadValue("drafters", specs, 'a spec such as "lookup", or a list of specs and models')
    for given in expand([specs] if isinstance(specs, (str, Path)) else specs):
        name, spec = name_and_spec(given)
        base, number = name, 2
        while name in named or name in {NONE, "target"}:
            name, number = f"{base}-{number}", number + 1
        if isinstance(spec, str) and not spec.startswith("lm:"):
            filled = {"name": name, "vocab_size": target.vocab_size, "target": target}
            named[name] = registry.build("drafter", spec, filled)
        else:
            source = lm_options(spec).get("path", "") if isinstance(spec, str) else spec
            model = load_model(source, dtype=dtype, device=device)
            shared = _num_shared(model, target, source, target_source)
            is_place = isinstance(source, (str, Path))
            home = local_path(source) if is_place and local_path(source).is_dir() else None
            named[name] = LMDrafter(name, model, target, home, shared)
    return list(named.values())


def _num_shared(model: CausalModel, target: CausalModel, source: Any, target_source: Any) -> int:
    """Number of token ids, from 0 up, that both models share: by tokenizer, else by logits.

    Logits may be padded to different sizes. DraftwiseError if the tokenizers differ, or if sizes
    differ and there are no tokenizers to tell padding from tokens.
    """
    sizes = (model.vocab_size, target.vocab_size)
    ours, theirs = (_vocabulary(where, min(sizes)) for where in (source, target_source))
    if ours is None or theirs is None:
        if sizes[0] != sizes[1]:
            raise DraftwiseError(
                f"drafter {model.name} has logits for {sizes[0]} tokens and target {target.name} "
                f"for {sizes[1]}, and no two tokenizers to tell whether that is padding: a drafter "
                "must share the target's tokenizer. Name folders, or pass tokenizer=..."
            )
        return sizes[0]
    if ours != theirs:
        raise DraftwiseError(
            f"drafter {model.name} and target {target.name} have tokenizers that number tokens "
            "differently: a drafter must share the target's tokenizer"
        )
    return max(ours.values(), default=min(sizes) - 1) + 1


def _vocabulary(source: Any, size: int) -> Mapping[str, int] | None:
    """Ids below ``size`` by token, from a tokenizer, a path or a model; None if there are none."""
    is_place = isinstance(source, (str, Path))
    where = source if is_place else getattr(getattr(source, "config", None), "_name_or_path", "")
    if where:
        try:
            source = load_tokenizer(where, asks_hub=is_place)
        except DraftwiseError:
            return None
    if not hasattr(source, "get_vocab"):
        return None
    return {name: token for name, token in source.get_vocab().items() if token < size}
