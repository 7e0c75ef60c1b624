"""Torch parts that know no policy: model adapter, ragged KV cache, sampling."""
