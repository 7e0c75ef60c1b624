"""Pretrained targets that ``pip`` installs: found, checked, unpacked once, with their licences."""
