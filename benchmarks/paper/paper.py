"""Writes docs/paper.md, docs/what-remains.md and their pictures.

python benchmarks/paper/paper.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from figures import pictures
from paper_page import paper_page
from remains_page import remains_page

DOCS: Final = Path(__file__).parents[2] / "docs"
IMAGES: Final = "images/paper"


def main() -> None:
    """Simulates everything and writes the files."""
    folder = DOCS / IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures():
        (folder / name).write_text(picture + "\n", encoding="utf-8")
    for name, page in (("paper", paper_page(IMAGES)), ("what-remains", remains_page(IMAGES))):
        (DOCS / f"{name}.md").write_text(page, encoding="utf-8")
        print(f"docs/{name}.md")


if __name__ == "__main__":
    main()
