"""Integration with SGLang: chooses the number of EAGLE steps of each batch.

``python -m draftwise.integrations.sglang`` prints the path of the config file that enables it
(``--speculative-adaptive-config``; docs/sglang.md). SGLang loads ``plug_in`` through its plug-in
mechanism. Without a "draftwise" entry in the config SGLang is unchanged. Importing this module does
not need SGLang.
"""

from draftwise.integrations.sglang.plugin import plug_in
from draftwise.integrations.sglang.policy import CONFIG, SglangSettings, StepsPolicy, read_settings

__all__ = ["CONFIG", "SglangSettings", "StepsPolicy", "plug_in", "read_settings"]
