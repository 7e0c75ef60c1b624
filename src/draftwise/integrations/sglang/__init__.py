"""Inside SGLang: the number of EAGLE steps for each batch, by what steps cost and bring.

``python -m draftwise.integrations.sglang`` prints the path of the config file that turns it on
(``--speculative-adaptive-config``; docs/sglang.md). SGLang loads ``plug_in`` by its own plug-in
mechanism, and a config without a "draftwise" entry leaves SGLang as it is. Importing this needs
no SGLang.
"""

from draftwise.integrations.sglang.plugin import plug_in
from draftwise.integrations.sglang.policy import CONFIG, SglangSettings, StepsPolicy, read_settings

__all__ = ["CONFIG", "SglangSettings", "StepsPolicy", "plug_in", "read_settings"]
