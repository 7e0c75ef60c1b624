"""Torch code without policies: model adapter, ragged KV cache, sampling."""

from draftwise.nn.library import check_library

check_library()  # before any module imports a name that the installed transformers may lack
