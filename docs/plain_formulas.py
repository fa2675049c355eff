"""Plain-text formulas as TeX, symbol by symbol: int exp(-|x - y|^2) dmu(y) becomes an integral.

A docstring is read in terminals, so its formulas are plain text. Here each symbol is replaced by one of TeX,
and their order never changes: a quotient keeps its slash. What is not surely a formula stays as it is.
"""

import re
from collections.abc import Iterator

GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "eps",
    "zeta",
    "eta",
    "theta",
    "kappa",
    "lambda",
    "lam",
    "mu",
    "nu",
    "xi",
    "pi",
    "rho",
    "sigma",
    "tau",
    "phi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
]
LETTERS = {name: f"\\{name}" for name in GREEK} | {
    "eps": r"\varepsilon",
    "phi": r"\varphi",
    "lam": r"\lambda",
    "inf": r"\infty",
    "infinity": r"\infty",
    "oo": r"\infty",
    "grad": r"\nabla",
    "Laplace": r"\Delta",
}
COMMANDS = {
    name: f"\\{name}"
    for name in [
        "exp",
        "log",
        "sin",
        "cos",
        "sinh",
        "cosh",
        "tanh",
        "det",
        "min",
        "max",
        "sup",
        "lim",
        "sum",
        "int",
        "iint",
    ]
}
COMMANDS["infimum"] = r"\inf"
UPRIGHT = [
    "tr",
    "diag",
    "argmin",
    "argmax",
    "softmax",
    "sigmoid",
    "act",
    "div",
    "sign",
    "rank",
    "ker",
    "conv",
    "Cov",
    "Var",
    "Lip",
    "Re",
    "sym",
    "top",
    "lse",
    "KL",
    "OT",
    "MMD",
    "Ei",
]
OPERATORS = COMMANDS | {name: f"\\operatorname{{{name}}}" for name in UPRIGHT}
NAMES = {"target", "const", "mean", "mass", "size"}  # words, but symbols in the middle of a formula
ENGLISH = {
    "In",
    "If",
    "It",
    "On",
    "At",
    "To",
    "By",
    "Of",
    "Is",
    "As",
    "An",
    "No",
    "We",
    "Or",
    "So",
    "Be",
    "Up",
    "Do",
    "My",
    "SA",
}
SIGNS = {
    "<=": r"\le ",
    ">=": r"\ge ",
    "!=": r"\ne ",
    "<-": r"\leftarrow ",
    "|->": r"\mapsto ",
    "->": r"\to ",
    "+-": r"\pm ",
    "-+": r"\mp ",
    "*": r"\ast ",
    "{": r"\{",
    "}": r"\}",
    "<": "<",
    ">": ">",
}
RELATIONS = {"=", "<=", ">=", "<", ">", "<-", "->", "|->", "!="}
CLOSING = {")": "(", "]": "[", "}": "{"}
TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<fraction>(?<![\w)\]}.])\d+/\d+(?![\w.]))"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)(?!_)"
    r"|(?P<star>(?<=[A-Za-z])\*(?![\w(]))"
    r"|(?P<call>[a-z]+(?=\())"
    r"|(?P<word>[A-Za-z]+)(?P<index>\d+)?(?![A-Za-z0-9])"
    r"|(?P<script>[_^](?=[\w({+-]))"
    r"|(?P<dot>(?<=\w)\.(?=[A-Za-z(])|(?<=\))\.(?=[A-Za-z(]))"
    r"|(?P<langle><(?=[A-Za-z(][^<>]*,[^<>]*>))"
    r"|(?P<rangle>(?<=[\w)])>)"
    r"|(?P<sign><=|>=|!=|<-|\|->|->|\+-|-\+|[-+=/<>|*!(){}\[\]'])"
)
SCRIPT = re.compile(r"[+-]?(?:\d+|[A-Za-z]+(?:\d+)?)|[+-]")


APART = re.compile(r"(^|/|=|[({]|\\quad )\\,d")  # differentials that follow nothing
INFIMUM = re.compile(r"\binf(?= int)")
SMALL = re.compile(r"\\tfrac\{(\d+)\}\{(\d+)\}")


class NotAFormula(ValueError):
    """Something that TeX has no symbol for, or that is more likely a word."""


def word(name: str) -> str:
    """The symbol that a word stands for: a Greek letter, an operator, a differential, one or two letters."""
    if name in LETTERS:
        return LETTERS[name] + " "
    if name in OPERATORS:
        return OPERATORS[name] + " "
    if len(name) > 1 and name[0] == "d" and (len(name) == 2 or name[1:] in LETTERS):
        return r"\,d" + (LETTERS.get(name[1:]) or name[1:]) + " "
    if name in NAMES:
        return f"\\mathrm{{{name}}}\\,"
    if len(name) == 1 or (len(name) == 2 and not name.islower()):
        return name
    raise NotAFormula(name)


def index(text: str, *, raised: bool) -> str:
    """What stands in a script without brackets: `i`, `ij`, `-1`, `T`, `max`, `S0`."""
    sign, rest = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    if rest == "T" and raised:
        return sign + r"\top"
    if rest in LETTERS:
        return sign + LETTERS[rest]
    if len(rest) > 3 or rest in COMMANDS:
        return f"{sign}\\mathrm{{{rest}}}"
    return sign + re.sub(r"(?<=[A-Za-z])\d+", r"_{\g<0>}", rest)


def bracketed(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "({[") - (text[place] in ")}]")
        if depth == 0:
            return place
    raise NotAFormula(text)


def script(text: str, start: int) -> tuple[str, int]:
    """The TeX of a script whose mark stands before `start`, and where it ends."""
    if text[start] in "({":
        end = bracketed(text, start)
        inside = SMALL.sub(r"\1/\2", tex(text[start + 1 : end]))
        return f"{{{inside}}}", end + 1
    found = SCRIPT.match(text, start)
    if not found:
        raise NotAFormula(text)
    return f"{{{index(found[0], raised=text[start - 1] == '^')}}}", found.end()


def symbols(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        found = TOKEN.match(text, place)
        if not found:
            if text[place] != ",":
                raise NotAFormula(text)
            yield r",\; "
            place += 1
            continue
        place = found.end()
        if found["script"]:
            inside, place = script(text, place)
            yield found["script"] + inside
        elif found["call"] == "sqrt":
            end = bracketed(text, place)
            yield f"\\sqrt{{{tex(text[place + 1 : end])}}}"
            place = end + 1
        elif found["index"] and text[place : place + 1] == "_":
            yield f"{{{symbol(found)}}}"  # S0_11: an index of its own for what has one
        else:
            yield symbol(found)


def called(name: str) -> str:
    """What stands before a bracket: a symbol, or the name of a function."""
    try:
        return word(name)
    except NotAFormula:
        return f"\\operatorname{{{name}}}"


def symbol(found: re.Match[str]) -> str:
    """One symbol that needs nothing of what surrounds it."""
    if found["space"]:
        return r"\qquad " if len(found["space"]) > 1 else ""
    if found["fraction"]:
        over, _, under = found["fraction"].partition("/")
        return f"\\tfrac{{{over}}}{{{under}}}"
    if found["number"]:
        digits, _, power = found["number"].partition("e")
        return digits if not power else f"{digits}\\cdot " * (digits != "1") + f"10^{{{power}}}"
    if found["call"]:
        return called(found["call"])
    if found["word"]:
        return word(found["word"]) + (f"_{{{found['index']}}}" if found["index"] else "")
    fixed = {"star": "^{*}", "dot": r"\cdot ", "langle": r"\langle ", "rangle": r"\rangle "}
    return fixed.get(found.lastgroup or "") or SIGNS.get(found["sign"], found["sign"])


def tex(text: str) -> str:
    """The TeX of a whole formula; raises `NotAFormula` for anything else."""
    found = "".join(symbols(INFIMUM.sub("infimum", text.strip()))).strip()
    return APART.sub(r"\1d", found.replace(r"\int \int ", r"\iint "))


# --- formulas in a line of prose ----------------------------------------------------------------------

BREAK = re.compile(r"``.*?``|`.*?`|\"[^\"]*\"|:\w+:`.*?`|[;:?](?=\s|$)|\.(?=\s|$)")
RELATION = r"(?<=\s)(?:=|<=|>=|->|<-|<|>)(?=\s)"
TRIGGER = re.compile(rf"[\w)\]|'](?:_[\w({{+]|\^[\w({{-])|{RELATION}|<\w[^<>]*,[^<>]*>|\b(?:int|iint) ")
WORD = re.compile(r"\S+|\s+")
OPERATORS_AROUND = re.compile(r"[-+=/<>^*|{}]")
SCRIPTED = re.compile(r"\w[_^][\w({]")
IDENTIFIER = re.compile(r"\b[a-z]{2,}(?:_[a-z]{3,})+\b(?<!_min)(?<!_max)")  # max_iter, but not lambda_max
DANGLING = {*RELATIONS, "+", "-", "/", "*"}


def split(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    parts, depth = [""], 0
    for one in text:
        depth += (one in "([{<") - (one in ")]}>")
        if one == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def balanced(text: str) -> bool:
    stack: list[str] = []
    for one in text:
        if one in "([{":
            stack.append(one)
        elif one in CLOSING and (not stack or stack.pop() != CLOSING[one]):
            return False
    return not stack and text.count("|") % 2 == 0


def whole(text: str) -> bool:
    """Whether a piece of a line starts and ends as a formula does, and says something between its commas."""
    words = text.split()
    if not words or words[0] in (DANGLING - {"-"}) | NAMES or words[-1] in DANGLING | {"a"}:
        return False
    if words[0] in {"a", "A", "I"} and len(words) > 1 and words[1] not in DANGLING:
        return False
    if words[-1] in NAMES and words[-2:-1] not in [[one] for one in DANGLING]:
        return False
    return not ENGLISH & set(words) and all(TRIGGER.search(part) for part in split(text))


def readable(text: str) -> bool:
    """Whether a piece of a line is a formula: whole, balanced, and of symbols only."""
    if not text or text[0] in ",.;:" or text[-1].isspace() or not whole(text) or not balanced(text):
        return False
    if IDENTIFIER.search(text):
        return False
    try:
        tex(text)
    except NotAFormula:
        return False
    return True


def longest(words: list[str]) -> tuple[str, int] | None:
    """The longest formula that the words start with, and how many they are."""
    for end in range(len(words), 0, -1):
        core = "".join(words[:end]).rstrip(".,;:")
        if readable(core):
            return core, end
    return None


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """A line cut into the longest formulas and what lies between: (piece, whether it is one)."""
    words = WORD.findall(text)
    start = 0
    while start < len(words):
        found = longest(words[start:]) if words[start].strip() else None
        if found:
            core, length = found
            yield core, True
            yield "".join(words[start : start + length])[len(core) :], False
            start += length
        else:
            yield words[start], False
            start += 1


def torn(before: str, after: str) -> bool:
    """Whether a formula is only a part of one that goes on to its left or right."""
    left, right = "".join(before.split()[-1:]), "".join(after.split()[:1])
    if SCRIPTED.search(left) or SCRIPTED.search(right) or after[:1] == "(":
        return True
    return bool(OPERATORS_AROUND.match(left[-1:]) or OPERATORS_AROUND.match(right[:1]))


def complete(found: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """The same pieces, where those that are torn out of a longer formula are none."""
    out = []
    for place, (piece, formula) in enumerate(found):
        before = "".join(one for one, _ in found[:place])
        after = "".join(one for one, _ in found[place + 1 :])
        out.append((piece, formula and not torn(before, after)))
    return out


def marked(line: str) -> Iterator[tuple[str, bool]]:
    """A line with code and quotations in it, which are no formulas, cut in the same way."""
    place = 0
    for found in BREAK.finditer(line):
        yield from complete(list(pieces(line[place : found.start()])))
        yield found[0], False
        place = found.end()
    yield from complete(list(pieces(line[place:])))
