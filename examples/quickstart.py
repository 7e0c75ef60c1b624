"""Generate with the bundled target and its drafters, and show what the policy did.

A script; editors and Jupytext open it as a notebook of the cells marked with ``# %%``.
"""

from draftwise import Speculator, zoo

# %%
speculator = Speculator.from_pretrained("zoo", drafters=["zoo", "lookup"])

# %%
prompt = zoo.prompts()["math"][0]
result = speculator.generate(prompt, max_new_tokens=120)
print(result.text)
print(
    f"{result.stats.mean_accepted_tokens:.2f} tokens a round, {result.stats.tok_per_s:.0f} a second"
)

# %%
print("rounds by drafter:", dict(result.stats.pulls))
