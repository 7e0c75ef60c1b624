"""Lists the licences of draftwise's dependencies from installed metadata, without network.

Prints a line a package; ends with 1 where a licence is unknown or not on the list of those that ask
for no more than attribution, or, for MPL-2.0, for publishing changes of their own files.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata, requires

ROOTS = (
    "draftwise",
    "draftwise[serve]",
    "draftwise[bench]",
    "draftwise[gguf]",
)
KNOWN = re.compile(
    r"\b(Apache|BSD|0BSD|MIT|ISC|PSF|Python Software Foundation|Mozilla Public License 2\.0|"
    r"MPL-2\.0|HPND|Unlicense|CNRI-Python|Zlib|CC0|BSL-1\.0)\b"
)


def wanted(roots: tuple[str, ...]) -> dict[str, PackageMetadata]:
    """The installed packages that these need, directly or not; extras of the roots included."""
    found: dict[str, PackageMetadata] = {}
    left = [root.rstrip("]").partition("[")[::2] for root in roots]
    while left:
        name, extra = left.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        try:
            lines = requires(name) or []
            about = metadata(name)
        except PackageNotFoundError:  # for another platform or Python
            continue
        is_new = name not in found
        found[name] = about
        for line in lines:
            of = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
            if of.group(1) == extra if of else is_new:
                left.append((re.split(r"[^\w.-]", line, maxsplit=1)[0], ""))
    return {name: about for name, about in found.items() if not name.startswith("draftwise")}


def licence(about: PackageMetadata) -> str:
    """The licence from the expression, the classifiers, or the first line of the licence field."""
    if expression := about.get_all("License-Expression"):
        return str(expression[0])
    shelves = [x.split(" :: ")[-1] for x in about.get_all("Classifier", []) if x[:7] == "License"]
    named = [x for x in shelves if x != "OSI Approved"] or about.get_all("License") or ["unknown"]
    return " AND ".join(x.strip().partition("\n")[0][:60] for x in named)


def is_known(text: str) -> bool:
    """Whether every part of an expression is on the list; of alternatives, one."""
    return all(
        any(KNOWN.search(one) for one in part.split(" OR "))
        for part in re.split(r" AND |;|, ", text)
    )


def main() -> None:
    unknown = []
    for name, about in sorted(wanted(ROOTS).items()):
        text = licence(about)
        print(f"{name:24} {about['Version']:16} {text}")
        if not is_known(text):
            unknown.append(name)
    if unknown:
        sys.exit(f"look at the licences of: {', '.join(unknown)}")


if __name__ == "__main__":
    main()
