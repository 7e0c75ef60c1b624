"""What draftwise relies on in transformers, looked up by name in the library's source files.

Names, methods and parameters move between minor releases, so a version check would not suffice.
Behaviour (masks, positions, caches) is compared per model by the self-check, ``nn.check``.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from draftwise.errors import DraftwiseError

TESTED = "5.17 to 5.24"
"""The releases that the tests passed with."""
NEEDS = """\
__init__.py Cache AttentionInterface AttentionMaskInterface PreTrainedModel
models/auto/configuration_auto.py class:AutoConfig from_pretrained
models/auto/modeling_auto.py class:AutoModelForCausalLM
models/auto/tokenization_auto.py class:AutoTokenizer from_pretrained
models/llama/configuration_llama.py class:LlamaConfig
cache_utils.py class:Cache layers
modeling_utils.py class:AttentionInterface
modeling_utils.py def:set_attn_implementation attn_implementation
masking_utils.py class:AttentionMaskInterface
masking_utils.py def:sdpa_mask q_length kv_length attention_mask
utils/generic.py def:register key value
integrations/sdpa_attention.py def:sdpa_attention_forward query key value attention_mask scaling
models/llama/modeling_llama.py class:LlamaMLP config
models/llama/modeling_llama.py class:LlamaRotaryEmbedding config position_ids
models/llama/modeling_llama.py def:rotate_half
generation/__init__.py GenerateDecoderOnlyOutput GenerationMixin
generation/utils.py def:_extract_generation_mode_kwargs custom_generate
generation/utils.py def:generate custom_generate streamer logits_processor stopping_criteria
generation/utils.py class:GenerateDecoderOnlyOutput sequences
generation/stopping_criteria.py class:EosTokenCriteria eos_token_id
generation/stopping_criteria.py class:MaxLengthCriteria max_length
generation/logits_process.py class:UnbatchedClassifierFreeGuidanceLogitsProcessor
generation/logits_process.py class:SynthIDTextWatermarkLogitsProcessor
generation/logits_process.py class:WhisperTimeStampLogitsProcessor
generation/logits_process.py class:PrefixConstrainedLogitsProcessor
generation/logits_process.py class:RepetitionPenaltyLogitsProcessor penalty prompt_ignore_length
generation/logits_process.py class:TemperatureLogitsWarper temperature
generation/logits_process.py class:TopKLogitsWarper top_k
generation/logits_process.py class:TopPLogitsWarper top_p
"""
"""Each line names a file, a class or function in it or nothing, and the parameters, methods or
attributes that it has; without a class or function, names that the file has."""


def missing(root: Path) -> list[str]:
    """All names that this transformers lacks, as ``file: owner(name)``; nothing is imported.

    root: the folder of the package ``transformers``.
    """
    found = []
    for line in NEEDS.splitlines():
        file, *names = line.split()
        try:
            text = (root / file).read_text("utf-8")
        except OSError:
            text = ""
        owner = names.pop(0) if ":" in names[0] else ""
        if owner:
            text = _body(text, *owner.split(":"))
        what = owner.partition(":")[2]
        if not text:
            found.append(f"{file}: {what}" if what else file)
            continue
        lacking = [name for name in names if not re.search(rf"\b{name}\b", text)]
        found += [f"{file}: {what}({name})" if what else f"{file}: {name}" for name in lacking]
    return list(dict.fromkeys(found))


def check_library() -> None:
    """Raise DraftwiseError with all names that the installed transformers lacks."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return  # the import that follows says so
    if found := missing(Path(spec.origin).parent):
        try:
            installed = version("transformers")
        except PackageNotFoundError:
            installed = "in an unknown version"
        raise DraftwiseError(
            f"transformers {installed} lacks what draftwise uses of it ({'; '.join(found)}): "
            f"install a release that has it ({TESTED} do), or a newer draftwise"
        )


def _body(text: str, kind: str, name: str) -> str:
    """The text of a class up to the next line at its indentation, or a function's signature."""
    if kind == "def":
        found = re.search(rf"^ *def {name}\(.*?\)(?: ->.*?)?:$", text, re.M | re.S)
    else:
        found = re.search(rf"^class {name}\b.*\n(?:(?:[ )].*)?\n)*", text, re.M)
    return found.group() if found else ""
