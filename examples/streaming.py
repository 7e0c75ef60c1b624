"""Stream accepted text with the drafter of each piece, and generate for several prompts at once."""

from draftwise import Speculator, zoo

speculator = Speculator.from_pretrained("zoo")
for piece, round_ in speculator.stream(zoo.prompts()["sql"][0], max_new_tokens=60):
    print(f"[{round_.plan}] {piece!r}")

prompts = [found[0] for found in zoo.prompts().values()]
for result in speculator.generate(prompts, max_new_tokens=40, temperature=0.7, seed=1):
    print(f"{result.stats.mean_accepted_tokens:.2f} {result.finish_reason:8} {result.text[:60]!r}")
