"""``python -m draftwise.integrations.sglang`` prints the path of the config file for SGLang."""

from draftwise.integrations.sglang.policy import CONFIG

if __name__ == "__main__":
    print(CONFIG)
