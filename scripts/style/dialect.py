"""Finds words of a private dialect in comments and names. scripts/check-style runs it.

Each had a meaning that only its author knew; the right column has the term of the trade. In a name a word counts
between underscores: sh_queue_breathe. A word that plain English needs, too, is wrong in names only.
"""
import re

WORDS = {
    "breath": "pause",
    "breathe": "pause, yield",
    "distrust": "invalidate",
    "errand": "request",
    "keeper": "owner",
    "mood": "state",
    "nudge": "wake",
    "spoil": "poison, mark as lost",
    "spoiled": "poisoned, lost",
}
NAMES = {"closings": "releases", "covered": "complete", "noted": "pending", "put_down": "killed"}
ALL = {**WORDS, **NAMES}

WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(WORDS)})(?:s|ed|d|'s)?(?![A-Za-z])", re.IGNORECASE)
NAME = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(ALL)})(?![A-Za-z0-9])", re.IGNORECASE)


def findings(comments, code):
    """(position, text) of each finding in a source, of which comments and code have all else blank."""
    for part, pattern in ((comments, WORD), (code, NAME)):
        for match in pattern.finditer(part):
            yield match.start(), f"{match.group(1)}: say {ALL[match.group(1).lower()]}"


# As in scripts/check-style: path: (text, the lines that have to be found).
PLANTS = {
    "src/ipc/planted.h": (
        "/* breathes in between\n * as before, spoiled */\nstatic int sh_queue_mood(void);\n#define SH_NUDGE_EVERY 3\nint covered;\n"
        "bool *put_down; // the keeper's\n", [1, 2, 3, 4, 5, 6]),
    "src/kernels/cuda/planted.cu": ("/* an errand */\n", [1]),
    "src/ipc/allowed.h": (
        "/* noted below, and covered by a test; SH_X */\nint moody, recovered, bookkeeper;\nconst char *text = \"mood\";\n", []),
}
