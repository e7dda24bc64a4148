"""Make the links of README.md absolute, for a package index, which has none of the files: `absolute_links.py BASE`.

BASE is where the repository's files are shown, such as https://github.com/OWNER/REPOSITORY/blob/v1.2.3. Run it in a
checkout that is thrown away, before the package is built.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def absolute(text: str, base: str) -> str:
    """The text with `base` before each link to a file of the repository; pictures are asked for as they are."""

    def changed(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        return f"{mark}[{label}]({base.rstrip('/')}/{target}{'?raw=true' if mark else ''})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", changed, text)


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].startswith("https://"):
        sys.exit("usage: absolute_links.py https://github.com/OWNER/REPOSITORY/blob/TAG")
    readme = Path("README.md")
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), sys.argv[1]), encoding="utf-8")


if __name__ == "__main__":
    main()
