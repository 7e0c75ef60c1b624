"""Load on any OpenAI-compatible server: when to ask, what came back and when, in numbers."""
