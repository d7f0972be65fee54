"""C++ names of kernels as people write them: `_ZN2at4cuda11spin_kernelEl` is `at::cuda::spin_kernel(long)`.

A small demangler of the Itanium ABI, for what kernels are made of: namespaces, templates, parameters. What it does not
know (most expressions) makes it give up, and the mangled name stays. A name is input like any other: how deep, how long
and in how many steps is bounded, whatever it repeats.
"""

from __future__ import annotations

from functools import lru_cache

from hangscope.model.numbers import integer, is_number

LONGEST_INPUT = 4096
LONGEST = 2000
"""Of what comes out: a substitution that repeats itself could grow without end."""
_DEEPEST = 60
_MOST_STEPS = 20_000
_SHOWN_MANGLED = 120

_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...",
}  # fmt: skip
_BUILTIN_D = {
    "Dd": "decimal64", "De": "decimal128", "Df": "decimal32", "Dh": "half", "Di": "char32_t", "Ds": "char16_t",
    "Du": "char8_t", "Da": "auto", "Dc": "decltype(auto)", "Dn": "decltype(nullptr)",
}  # fmt: skip
_STANDARD = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string", "Si": "std::istream",
    "So": "std::ostream", "Sd": "std::iostream",
}  # fmt: skip
_SUFFIX = {"j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_OPERATORS = {
    "cl": "operator()", "ix": "operator[]", "pl": "operator+", "mi": "operator-", "ml": "operator*",
    "dv": "operator/", "rm": "operator%", "aS": "operator=", "eq": "operator==", "ne": "operator!=",
    "lt": "operator<", "gt": "operator>", "le": "operator<=", "ge": "operator>=", "aa": "operator&&",
    "oo": "operator||", "nt": "operator!", "pp": "operator++", "mm": "operator--", "pt": "operator->",
    "ls": "operator<<", "rs": "operator>>", "an": "operator&", "or": "operator|", "eo": "operator^",
    "de": "operator*", "ng": "operator-", "co": "operator~", "pL": "operator+=", "mI": "operator-=",
}  # fmt: skip


class _Unknown(Exception):
    """Something that this demangler does not know, or that is no mangled name."""


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """The name as it is written in C++, without its result's type; a name that cannot be read, cut to a sane length."""
    if name.startswith("_Z") and len(name) <= LONGEST_INPUT:
        try:
            return _Name(name).whole()
        except (_Unknown, IndexError, ValueError, RecursionError):
            pass
    return name if len(name) <= _SHOWN_MANGLED else f"{name[:_SHOWN_MANGLED]}…"


def title(name: str, longest: int = 100) -> str:
    """A demangled name as it stands in a sentence: without parameters and anonymous namespaces, and without the
    arguments of templates where they are long."""
    text = name.replace("(anonymous namespace)::", "")
    text = text[: _end_of_name(text)]
    if len(text) > longest:
        text = _without_arguments(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _end_of_name(text: str) -> int:
    """Where the parameters begin: the first bracket outside of the arguments of a template, and of an operator."""
    depth = 0
    for at, char in enumerate(text):
        if char == "<" and not text.endswith("operator", 0, at):
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif char == "(" and not depth and at and not text.endswith(("operator", "::"), 0, at):
            return at
    return len(text)


def _without_arguments(text: str) -> str:
    out: list[str] = []
    depth = 0
    for char in text:
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif not depth:
            out.append(char)
    return "".join(out)


class _Name:
    """One mangled name, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 2
        self.known: list[str] = []
        """What later parts may refer to (substitutions)."""
        self.arguments: list[str] = []
        """Of the innermost template of the function's own name."""
        self.depth = 0
        self.steps = 0

    def whole(self) -> str:
        found = self._encoding()
        rest = self.text[self.at :]
        if rest and not rest.startswith("."):  # a clone's suffix, as compilers add it
            raise _Unknown(rest)
        return found

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _peek(self, size: int = 1) -> str:
        return self.text[self.at : self.at + size]

    def _take(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise _Unknown(self.text[self.at : self.at + 8])

    def _digits(self) -> int:
        start = self.at
        while self.at < len(self.text) and is_number(self.text[self.at]):
            self.at += 1
        if not 0 < self.at - start < 8:
            raise _Unknown("a number")
        return integer(self.text[start : self.at])

    def _step(self, text: str = "") -> str:
        """Count a step, and hold what was made to its length."""
        self.steps += 1
        if self.steps > _MOST_STEPS or len(text) > LONGEST:
            raise _Unknown("it never ends")
        return text

    def _keep(self, text: str) -> str:
        self.known.append(self._step(text))
        return text

    # ---- functions ---------------------------------------------------------------------------------------------------

    def _encoding(self) -> str:
        name = self._name(own=True)
        if self.at >= len(self.text) or self._peek() in (".", "E"):
            return name
        if name.endswith(">"):  # a template's result stands in front of its parameters
            self._type()
        return self._step(f"{name}({self._parameters()})")

    def _parameters(self) -> str:
        found: list[str] = []
        while self.at < len(self.text) and self._peek() not in (".", "E"):
            found.append(self._type())
        return self._step("" if found == ["void"] else ", ".join(part for part in found if part))

    # ---- names -------------------------------------------------------------------------------------------------------

    def _name(self, *, own: bool = False) -> str:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _Unknown("too deep")
        try:
            if self._take("N"):
                return self._nested(own=own)
            if self._take("Z"):
                return self._local()
            return self._unscoped(own=own)
        finally:
            self.depth -= 1

    def _unscoped(self, *, own: bool) -> str:
        if self._peek() == "S" and self._peek(2) != "St":
            name = self._substitution()
        else:
            name = f"std::{self._part('')}" if self._take("St") else self._part("")
            if self._peek() == "I":
                self._keep(name)
        return self._step(name + self._template(own=own)) if self._peek() == "I" else name

    def _nested(self, *, own: bool) -> str:
        while self._peek() in ("K", "V", "r", "R", "O") and self._peek(2) != "Rr":
            self.at += 1
        name = ""
        while not self._take("E"):
            here = self._peek()
            if here == "S" and self._peek(2) != "St":
                name = self._substitution()
                continue
            if here == "S":
                self.at += 2
                name = "std"
                continue
            if here == "I":
                name += self._template(own=own)
            elif here == "T":
                name = self._parameter()
            elif here == "D" and self._peek(2) in ("Dt", "DT"):
                raise _Unknown("decltype")
            else:
                part = self._part(name)
                name = f"{name}::{part}" if name else part
            if self._peek() != "E":
                self._keep(name)
        return self._step(name)

    def _local(self) -> str:
        outer = self._encoding()
        self._need("E")
        if self._take("s"):
            return self._step(f"{outer}::string literal")
        if self._take("d"):
            if self._peek() != "_":
                self._digits()
            self._need("_")
        inner = self._name()
        if self._take("_"):
            self._digits()
        return self._step(f"{outer}::{inner}")

    def _part(self, before: str) -> str:
        """One part of a name: an identifier, an operator, a constructor, a lambda."""
        here = self._peek()
        if here == "L":
            self.at += 1
            here = self._peek()
        if is_number(here):
            found = self._identifier()
        elif here == "U":
            found = self._unnamed()
        elif here == "C" and is_number(self._peek(2)[1:]):
            self.at += 2
            found = _without_arguments(before).rsplit("::", 1)[-1]
        elif here == "D" and is_number(self._peek(2)[1:]):
            self.at += 2
            found = "~" + _without_arguments(before).rsplit("::", 1)[-1]
        elif self._take("cv"):
            found = f"operator {self._type()}"
        elif self._peek(2) in _OPERATORS:
            found = _OPERATORS[self._peek(2)]
            self.at += 2
        else:
            raise _Unknown(self._peek(2))
        while self._take("B"):
            found += f"[abi:{self._identifier()}]"
        return self._step(found)

    def _identifier(self) -> str:
        size = self._digits()
        found = self._peek(size)
        if len(found) != size:
            raise _Unknown("cut off")
        self.at += size
        return "(anonymous namespace)" if found.startswith(("_GLOBAL__N_", "_GLOBAL_.N.")) else found

    def _unnamed(self) -> str:
        if self._take("Ut"):
            kind = "unnamed type"
        else:
            self._need("Ul")
            found: list[str] = []
            while not self._take("E"):
                found.append(self._type())
            kind = f"lambda({', '.join(found) if found != ['void'] else ''})"
        number = 1 if self._peek() == "_" else self._digits() + 2
        self._need("_")
        return self._step(f"{{{kind}#{number}}}")

    def _substitution(self) -> str:
        if self._peek(2) in _STANDARD:
            found = _STANDARD[self._peek(2)]
            self.at += 2
            return found
        self._need("S")
        index = self._base36()
        if index >= len(self.known):
            raise _Unknown("a substitution of nothing")
        return self._step(self.known[index])

    def _base36(self) -> int:
        start = self.at
        while is_number(self._peek()) or "A" <= self._peek() <= "Z":
            self.at += 1
        digits = self.text[start : self.at]
        self._need("_")
        if len(digits) > 4:
            raise _Unknown("a substitution")
        return int(digits, 36) + 1 if digits else 0

    def _parameter(self) -> str:
        self._need("T")
        index = self._base36()
        if index >= len(self.arguments):
            raise _Unknown("a parameter of nothing")
        return self._step(self.arguments[index])

    # ---- templates ---------------------------------------------------------------------------------------------------

    def _template(self, *, own: bool = False) -> str:
        self._need("I")
        found: list[str] = []
        while not self._take("E"):
            found.append(self._argument())
        if own:
            self.arguments = found
        return self._step(f"<{', '.join(part for part in found if part)}>")

    def _argument(self) -> str:
        if self._take("L"):
            return self._literal()
        if self._take("J"):
            found: list[str] = []
            while not self._take("E"):
                found.append(self._argument())
            return self._step(", ".join(found))
        if self._peek() == "X":
            raise _Unknown("an expression")
        return self._type()

    def _literal(self) -> str:
        if self._take("_Z"):
            found = self._encoding()
            self._need("E")
            return self._step(f"&{found}")
        code = self._peek()
        kind = self._type()
        start = self.at
        while self._peek() not in ("E", ""):
            self.at += 1
        value = self.text[start : self.at].replace("n", "-", 1)
        self._need("E")
        if kind == "bool":
            return {"0": "false", "1": "true"}.get(value, value)
        if kind == "int":
            return self._step(value)
        return self._step(value + _SUFFIX[code] if code in _SUFFIX else f"({kind}){value}")

    # ---- types -------------------------------------------------------------------------------------------------------

    def _type(self) -> str:
        self.depth += 1
        self._step()
        if self.depth > _DEEPEST:
            raise _Unknown("too deep")
        try:
            return self._any_type()
        finally:
            self.depth -= 1

    def _any_type(self) -> str:
        here = self._peek()
        if here in _BUILTIN:
            self.at += 1
            return _BUILTIN[here]
        if here in ("P", "R", "O"):
            self.at += 1
            return self._keep(_pointed(self._type(), {"P": "*", "R": "&", "O": "&&"}[here]))
        if here in ("K", "V", "r"):
            self.at += 1
            word = {"K": " const", "V": " volatile", "r": " restrict"}[here]
            return self._keep(self._type() + word)
        if here == "F":
            return self._keep(self._function())
        if here == "A":
            return self._keep(self._array())
        if here == "D":
            return self._d_type()
        if here == "T" and self._peek(2) not in ("Ts", "Tu", "Te"):
            name = self._keep(self._parameter())
            return self._keep(name + self._template()) if self._peek() == "I" else name
        if here == "S" and self._peek(2) != "St":
            name = self._substitution()
            return self._keep(name + self._template()) if self._peek() == "I" else name
        if here == "u":  # a vendor's own
            self.at += 1
            return self._keep(self._identifier())
        return self._keep(self._name())

    def _function(self) -> str:
        self._need("F")
        self._take("Y")
        result = self._type()
        found: list[str] = []
        while not self._take("E"):
            found.append(self._type())
        return self._step(f"{result} ({', '.join(found) if found != ['void'] else ''})")

    def _array(self) -> str:
        self._need("A")
        size = str(self._digits()) if self._peek() != "_" else ""
        self._need("_")
        return self._step(f"{self._type()} [{size}]")

    def _d_type(self) -> str:
        if self._take("Dp"):
            return self._type()
        if self._take("DF"):
            bits = self._digits()
            if self._take("b"):
                return "std::bfloat16_t"
            self._need("_")
            return f"_Float{bits}"
        if self._take("Dv"):
            size = self._digits()
            self._need("_")
            return self._keep(f"{self._type()} __vector({size})")
        if self._peek(2) in _BUILTIN_D:
            found = _BUILTIN_D[self._peek(2)]
            self.at += 2
            return found
        raise _Unknown(self._peek(2))


def _pointed(kind: str, mark: str) -> str:
    """A pointer to a function goes inside: `void (*)(int)`; a reference to a reference is one."""
    if kind.endswith("&") and mark != "*":
        return kind if mark == "&&" or not kind.endswith("&&") else kind[:-1]
    if kind.endswith(")") and " (" in kind:
        result, _, parameters = kind.partition(" (")
        return f"{result} ({mark})({parameters}"
    return kind + mark
