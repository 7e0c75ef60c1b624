"""Training: language models from text, drafters by distillation from a target."""
