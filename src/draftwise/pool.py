"""Specs to drafters: which ones exist for a target, and whether they fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise import registry
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.lm_window import SINK, Window
from draftwise.drafters.protocol import Drafter
from draftwise.nn.borrower import load_borrower
from draftwise.nn.folder import borrows
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.real.bundled import drafter_specs
from draftwise.real.unpack import is_pretrained, unpacked
from draftwise.specs import name_and_spec
from draftwise.types import NONE, DraftwiseError

ZOO = "zoo"


def resolve_target(target: Any) -> tuple[Any, list[str]]:
    """The target's folder, hub id or module, and the drafters it gets when none are named.

    Besides a folder, hub id or module it may be ``zoo``, a name of ``real.catalog``, or the path of
    a ``.gguf`` file, which is unpacked on first use.
    """
    if target == ZOO:
        from draftwise import zoo

        return str(zoo.target_path()), [ZOO, "lookup"]
    if isinstance(target, (str, Path)) and is_pretrained(str(target)):
        return str(unpacked(str(target))), drafter_specs(str(target))
    return (str(target) if isinstance(target, Path) else target), ["lookup"]


def load_drafters(
    specs: str | Sequence[Any], target: CausalModel, target_source: Any, *, dtype: Any, device: str
) -> list[Drafter]:
    """Load each spec (or the one), in order; a name that occurs twice gets a number.

    Raises DraftwiseError for an unknown spec or option, a folder without a model, or a vocabulary
    (or tokenizer) that is not the target's.
    """
    named: dict[str, Drafter] = {}
    for given in _expand([specs] if isinstance(specs, (str, Path)) else specs):
        name, spec = name_and_spec(given)
        base, number = name, 2
        while name in named or name in {NONE, "target"}:
            name, number = f"{base}-{number}", number + 1
        if isinstance(spec, str) and not spec.startswith("lm:"):
            if Path(spec).is_dir():
                raise DraftwiseError(f"drafter {spec!r} is a folder: write lm:{spec}")
            filled = {"name": name, "vocab_size": target.vocab_size, "target": target}
            named[name] = registry.build("drafter", registry.DRAFTERS, spec, filled)
        else:
            source, window = _lm_parts(spec)
            model = (
                load_borrower(source, target)
                if borrows(source)
                else load_model(source, dtype=dtype, device=device)
            )
            _check_pair(model, target, source, target_source)
            named[name] = LMDrafter(name, model, target, _folder(source), window)
    return list(named.values())


def models_of(drafters: Sequence[Drafter]) -> list[CausalModel]:
    """Of the drafters that are causal LMs."""
    return [drafter.model for drafter in drafters if isinstance(drafter, LMDrafter)]


def _lm_parts(spec: Any) -> tuple[Any, Window | None]:
    """``lm:PATH,window=256`` as the path and its window; a model or a path is itself."""
    if not isinstance(spec, str):
        return spec, None
    path, _, text = spec.removeprefix("lm:").partition(",")
    options = registry.parse_options("drafter 'lm'", text, {"window": int, "sink": int})
    if not options:
        return path, None
    if "window" not in options:
        raise DraftwiseError(f"drafter 'lm': sink={options['sink']} needs a window: window=256")
    return path, Window(options.get("sink", SINK), options["window"])


def _folder(source: Any) -> Path | None:
    """Where a model was loaded from, if that is a folder."""
    is_folder = isinstance(source, (str, Path)) and Path(source).is_dir()
    return Path(source) if is_folder else None


def _expand(specs: Sequence[Any]) -> list[Any]:
    """``zoo`` stands for every bundled model, ``zoo:NAME`` for one of them or an EAGLE head."""
    expanded: list[Any] = []
    for spec in specs:
        name, comma, options = spec.partition(",") if isinstance(spec, str) else ("", "", "")
        if name.partition(":")[0] == ZOO:
            from draftwise import zoo

            models = {name: f"lm:{path}" for name, path in zoo.drafter_paths().items()}
            heads = {name: f"eagle:{path}" for name, path in zoo.eagle_paths().items()}
            wanted = name.partition(":")[2]
            known = models | heads if wanted else models
            if wanted and wanted not in known:
                raise DraftwiseError(f"no zoo drafter {wanted!r}; there are: {', '.join(known)}")
            expanded += [f"{n}={s}{comma}{options}" for n, s in known.items() if wanted in {"", n}]
        else:
            expanded.append(spec)
    return expanded


def _check_pair(model: CausalModel, target: CausalModel, source: Any, target_source: Any) -> None:
    """A drafter must speak the target's tokens."""
    if model.vocab_size != target.vocab_size:
        raise DraftwiseError(
            f"drafter {model.name} has a vocabulary of {model.vocab_size} tokens and target "
            f"{target.name} one of {target.vocab_size}: a drafter must share the target's tokenizer"
        )
    vocabularies = [_vocabulary(where) for where in (source, target_source)]
    if None not in vocabularies and vocabularies[0] != vocabularies[1]:
        raise DraftwiseError(
            f"drafter {model.name} and target {target.name} have tokenizers that number tokens "
            "differently: a drafter must share the target's tokenizer"
        )


def _vocabulary(source: Any) -> Mapping[str, int] | None:
    """What a folder's or hub id's tokenizer calls its tokens; None where there is none to load."""
    if not isinstance(source, (str, Path)):
        return None
    try:
        vocabulary: Mapping[str, int] = load_tokenizer(source).get_vocab()
    except DraftwiseError:
        return None
    return vocabulary
