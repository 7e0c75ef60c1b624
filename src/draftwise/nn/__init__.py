"""Torch code without policies: model adapter, ragged KV cache, sampling."""
