"""One torch thread for every test: two threads on a busy machine stall each other."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests load nothing from anywhere

import torch

torch.set_num_threads(1)
