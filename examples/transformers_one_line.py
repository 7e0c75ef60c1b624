"""An existing ``transformers`` script, made faster by one argument; its output stays the same."""

from transformers import AutoModelForCausalLM, AutoTokenizer

import draftwise
from draftwise import zoo

target = str(zoo.target_path())  # any folder or hub id of a causal LM
model = AutoModelForCausalLM.from_pretrained(target)
tokenizer = AutoTokenizer.from_pretrained(target)
inputs = tokenizer(zoo.prompts()["math"][0], return_tensors="pt")

plain = model.generate(**inputs, max_new_tokens=80, do_sample=False)

speculate = draftwise.transformers(drafters=["zoo", "lookup"])
faster = model.generate(**inputs, max_new_tokens=80, do_sample=False, custom_generate=speculate)

print(tokenizer.decode(faster[0]))
print("the same tokens:", bool((plain == faster).all()))
print(f"{speculate.results[0].stats.mean_accepted_tokens:.2f} tokens a round")
