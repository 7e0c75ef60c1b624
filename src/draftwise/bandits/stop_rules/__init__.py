"""Stop rules decide whether to draft one more token."""

from draftwise.bandits.stop_rules.head import read_head
from draftwise.bandits.stop_rules.tapout import TABLE_1, TapOutToken, split_rules
from draftwise.bandits.stop_rules.thresholds import AdaEdl, Fixed, MaxConfidence
