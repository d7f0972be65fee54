"""Words that nobody wrote: long random strings, known apart from hashes, ids, symbols and names by what those are.

Of letters in a name or a symbol most neighbours are pairs that languages use; of letters in a key hardly a third. A
hash is hexadecimal, an id has its dashes, a symbol has its mangling, a path has its words: these stay.
"""

from __future__ import annotations

import re
from operator import ne

LONG = re.compile(rb"[A-Za-z0-9+/_=~.-]{20,}")
"""What is looked at: long runs of the letters that keys are made of."""

_PIECE = re.compile(rb"[A-Za-z0-9+/_-]{20,}={0,2}")
_HEX = re.compile(rb"(?:0[xX])?[0-9a-fA-F_-]+")
_KEPT = re.compile(
    rb"sha(?:1|224|256|384|512)-.+"  # a checksum in base64
    rb"|_Z\w+"  # a mangled C++ or Rust symbol
    rb"|_R\w+"
    rb"|[A-Z0-9_]+|[a-z_./-]+|[A-Z_./-]+"
)
_BASE32 = re.compile(rb"(?<![A-Z0-9])(?=[A-Z]*(?:\d+[A-Z]+){3})(?=[A-F0-9]*[G-Z])[A-Z0-9]{20,}(?![A-Z0-9])")
"""Large letters and digits that take turns in one run: no name of a variable has that."""
_BASE36 = re.compile(rb"(?<![a-zA-Z0-9])(?=[a-z]*(?:\d+[a-z]+){4})(?=[a-f0-9]*[g-z])[a-z0-9]{20,}(?![a-zA-Z0-9])")
"""The same with small letters: a name has its digits at its end, or few."""
_ONE_RUN = re.compile(
    rb"(?<![a-zA-Z0-9])(?:(?=[A-Z]*\d)[A-Z0-9]{28,}|(?=[a-z]*\d+[a-z]+\d)[a-z0-9]{28,})(?![a-zA-Z0-9])"
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
_KINDS = bytes(
    0 if 48 <= byte <= 57 else 1 if 65 <= byte <= 90 else 2 if 97 <= byte <= 122 else 3 for byte in range(256)
)
_SURELY = 32
_SURE_TURNS = 0.55
_UUID = re.compile(rb"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")
_LETTERS = re.compile(rb"[A-Za-z]+")
_WORDS = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_COMMON = frozenset(
    b"""ab ac ad ag ai ak al am an ap ar as at av aw ax ay az ba be bi bl bo br bu by ca cc ce ch ci ck cl co cp cr ct
    cu da db dd de di dm do dr ds dt du ea ec ed ee ef ei ek el em en ep eq er es et ev ex ey fa fe ff fi fl fo fr
    fs ft ga ge gh gl gp gr gs gu ha he hi ho hp hr ht hu ia ib ic id ie if ig il im in io ip ir is it iv jo js ke
    ki kn ks la ld le lf li ll lm ln lo lp ls lt lu ly ma mb mc me mi ml mm mo mp my na nc nd ne nf ng ni nk nn no
    ns nt nu nv ny od of og oi ok ol om on oo op or os ot ou ov ow pa pe ph pi pl po pp pr ps pt pu py qk qu qv ra
    rc rd re rg ri rk rl rm rn ro rp rr rs rt ru rv rx ry sc se sh si sk sl sm sn so sp ss st su sw sy ta tc te th
    ti tl tm to tr ts tt tu tw tx ty ua ub ud ue uf ug ui ul um un up ur us ut uv va ve vi vo vp wa we wh wi wn wo
    xc xp xt ye yp ys ze zi""".split()
)
"""Neighbours of letters that words of languages and programs have."""
_PAIR = re.compile(
    b"|".join(
        b"%c(?=[%s])" % (first, bytes(sorted(pair[1] for pair in _COMMON if pair[0] == first)))
        for first in sorted({pair[0] for pair in _COMMON})
    )
)
"""A letter that has such a neighbour behind it."""


def is_random(word: bytes) -> bool:
    """Whether a long word is random beyond what names, hashes, ids and symbols are."""
    if len(word) >= _SURELY and _BASE64.fullmatch(word):
        kinds = word.translate(_KINDS)
        if sum(map(ne, kinds, kinds[1:])) > _SURE_TURNS * len(word) and {0, 1, 2} <= set(kinds):
            return True  # as nothing is that anybody wrote
    if _HEX.fullmatch(word) or _UUID.search(word):
        return False
    if any(not _PLAIN.fullmatch(run) for run in (*_BASE32.findall(word), *_BASE36.findall(word))):
        return True
    if any(_unspoken(run) for run in _ONE_RUN.findall(word)):
        return True
    if _KEPT.fullmatch(word):
        return False
    return score(word) > _LINE or any(score(run) > _LINE for run in _RUN.findall(word) if 20 <= len(run) < len(word))


def _unspoken(run: bytes) -> bool:
    """Whether a run of one case has letters beside each other that no language has."""
    if len(set(run)) < 10 or _HEX.fullmatch(run) or _PLAIN.fullmatch(run):
        return False
    return _odd_letters(_LETTERS.findall(run)) > 0.5


_LINE = 0.75
_LEAST = 12
"""The least length of one run: short ones between underscores (`e4m3fn`, `mingw32`) are jargon."""
_RUN = re.compile(rb"[A-Za-z0-9+]+")
_PLAIN = re.compile(rb"(?=[a-f]*\d)[0-9a-f]{7,}|\d+|[a-z2-7]{50,56}|[A-Z2-7]{50,56}|(?i:float8e\dm\d\w*)")
"""Parts that say nothing: hashes, numbers, base32 of a hash (the caches of inductor and Triton), number formats."""


def score(word: bytes) -> float:
    """How often kinds of letters take turns, and how many neighbours no language has: together some 0.4 for names and
    symbols and 1.1 for keys, whatever their length. A name made of words gets some odd pairs for nothing."""
    if b"+" in word or word.endswith(b"="):
        word = word.replace(b"/", b"")  # base64, and no path
    runs = [run for run in _RUN.findall(word) if not _PLAIN.fullmatch(run)]
    if max(map(len, runs), default=0) < _LEAST:
        return 0.0
    letters = [part for run in runs for part in _LETTERS.findall(run)]
    if sum(map(len, letters)) < 8:
        return 0.0
    found = sum(map(_turns, runs)) / sum(len(run) - 1 for run in runs) + _odd_letters(letters)
    wordy = sum(map(len, runs)) > 2.7 * len(_WORDS.findall(b" ".join(runs)))
    return found - 0.12 if wordy else found


def _odd_letters(letters: list[bytes]) -> float:
    """The share of neighbouring letters that words do not have."""
    pairs = sum(map(len, letters)) - len(letters)
    return 1.0 - len(_PAIR.findall(b" ".join(letters).lower())) / pairs if pairs else 1.0


def _turns(word: bytes) -> int:
    return max(0, len(_OF_ONE_KIND.findall(word)) - 1)


_OF_ONE_KIND = re.compile(rb"\d+|[A-Z]+|[a-z]+|[^A-Za-z0-9]+")


def pieces(word: bytes) -> list[tuple[int, int]]:
    """The parts of a long run that are random each by itself: a path or an address has words between its slashes."""
    found: list[tuple[int, int]] = []
    for match in _PIECE.finditer(word):
        piece = match.group()
        if is_random(piece):
            # A path with a key in it: the key alone, where that can be seen.
            inner: list[tuple[int, int]] = []
            if piece.count(b"/") * 24 > len(piece) + 48 or re.match(rb"/?[a-z]+/[a-z]", piece):
                parts = [m.span() for m in re.finditer(rb"[^/]+", piece) if m.end() - m.start() >= 20]
                inner = [(a, b) for a, b in parts if is_random(piece[a:b])]
            for a, b in inner or [(0, len(piece))]:
                found.append((match.start() + a, match.start() + b))
    return found
