# ---- resource requirements of LSF, from lsf/hooks/resreq.py
import re

WORDS = ("ready", "qubits", "queue", "wait")
INDEX = r"qpu_([A-Za-z0-9_]+)"
_SECTION = re.compile(r"(select|order|rusage|span|same|cu|affinity)\s*\[")
_PAIR = re.compile(r"%s\s*=\s*(\d+)(?:/(?:job|task|host))?\Z" % INDEX)
_CONDITION = re.compile(r"%s\s*(>=|==|>|=)\s*(\d+)\Z" % INDEX)
_TIMED = re.compile(r"(duration|decay)\b")
_ANY = re.compile(r"(?<![A-Za-z0-9_])%s" % INDEX)


class Malformed(Exception):
    """The text is for the user."""


def pieces(text, cuts, whole=False):
    """The text cut at each of `cuts` that is in no bracket and no quotes; stripped, and empty ones left out.

    Raises `Malformed`; with `whole` also for an empty piece beside others.
    """
    out, start, position, depth, quote = [], 0, 0, [], ""
    while position < len(text):
        char = text[position]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth.append({"(": ")", "[": "]", "{": "}"}[char])
        elif char in ")]}":
            if not depth or depth.pop() != char:
                raise Malformed("%r has a %s too many" % (text[:200], char))
        elif not depth:
            cut = next((cut for cut in cuts if text.startswith(cut, position)), None)
            if cut:
                out.append(text[start:position].strip())
                position += len(cut)
                start = position
                continue
        position += 1
    if depth or quote:
        raise Malformed("a %s is missing in %r" % (depth[-1] if depth else quote, text[:200]))
    out.append(text[start:].strip())
    if whole and len(out) > 1 and not all(out):
        raise Malformed("something is missing beside a %s in %r" % (cuts[0], text[:200]))
    return [piece for piece in out if piece]


def closing(text, opening):
    """Where the bracket that opens at `opening` closes. Raises `Malformed`."""
    depth, quote = 0, ""
    for position in range(opening, len(text)):
        char = text[position]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return position
    raise Malformed("a bracket is not closed in %r" % text[:200])


def sections(text):
    """`(name, content)` in order; the name is empty for a selection that is written without `select[…]`."""
    pieces(text, ())
    out, position = [], 0
    while position < len(text):
        match = next(_found(text, position), None)
        bare = text[position : match.start() if match else len(text)].strip()
        if bare:
            if any(not name for name, _ in out):
                raise Malformed("two selections without select[...] in %r" % text[:200])
            out.append(("", bare))
        if match is None:
            break
        end = closing(text, match.end() - 1)
        out.append((match.group(1), text[match.end() : end].strip()))
        position = end + 1
    return out


def _found(text, position):
    """Beginnings of sections from a position on that stand in no quotes and end no longer word."""
    quote = ""
    for at in range(position, len(text)):
        if quote:
            quote = "" if text[at] == quote else quote
        elif text[at] in "'\"":
            quote = text[at]
        elif at == 0 or not re.match(r"[A-Za-z0-9_]", text[at - 1]):
            match = _SECTION.match(text, at)
            if match:
                yield match


def stripped(text):
    """Without brackets around all of it."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def conjuncts(selection):
    """The conditions that must all hold; && binds closer than ||, so a selection with || on top is one condition."""
    text = stripped(selection)
    ways, parts = pieces(text, ("||",), True), pieces(text, ("&&",), True)
    if len(parts) < 2 or len(ways) > 1:
        return [text] if text else []
    return [condition for part in parts for condition in conjuncts(part)]


def compound(text):
    """The terms of `{…} || {…}` (one is chosen) or `2*{…} + 3*{…}` (all are taken), as `(before, inner, after)`."""
    terms = []
    position = 0
    while position < len(text):
        opening = text.find("{", position)
        if opening < 0:
            break
        end = closing(text, opening)
        terms.append((text[position:opening], text[opening + 1 : end].strip()))
        position = end + 1
    return terms, text[position:]


def is_compound(text):
    return re.match(r"\s*(\d+\s*\*\s*)?\{", text) is not None


def asked(text):
    """Native names and slots of the QPUs that the requirement names itself. Raises `Malformed` for an either-or."""
    if is_compound(text):
        terms, _ = compound(text)
        found = [asked(inner) for _, inner in terms]
        if "||" in "".join(before for before, _ in terms) and any(each != found[0] for each in found):
            raise Malformed(EITHER)
        return _together(found)
    found = []
    for name, content in sections(text):
        if name in ("", "select"):
            found.append(_selected(content))
        elif name == "rusage":
            ways = [_used(way) for way in pieces(content, ("||",))]
            if any(way != ways[0] for way in ways):
                raise Malformed(EITHER)
            found.extend(ways[:1])
    return _together(found)


EITHER = "one of several QPUs cannot be written with || in -R; name them all in one request: bsub -a 'qpu(NAME/NAME)'"


def _together(found):
    out = {}
    for each in found:
        for native, slots in each.items():
            out[native] = max(slots, out.get(native, 0))
    return out


def _named(text):
    return set(_ANY.findall(re.sub(r"'[^']*'|\"[^\"]*\"", "", text)))


def _natives(text):
    return _named(text) - set(WORDS)


def _selected(content):
    out = {}
    for condition in conjuncts(content):
        if not _natives(condition):
            continue
        match = _CONDITION.match(condition)
        if not match:
            raise Malformed(
                "%r is no request for a QPU; write qpu_NAME>=SLOTS, joined by && alone (one of several: %s)"
                % (condition[:200], "bsub -a 'qpu(NAME/NAME)'")
            )
        slots = int(match.group(3)) + (1 if match.group(2) == ">" else 0)
        if slots:
            out[match.group(1)] = max(slots, out.get(match.group(1), 0))
    return out


def _used(way):
    out = {}
    for usage in pieces(way, (",", ":")):
        if not _natives(usage):
            continue
        match = _PAIR.match(usage)
        if not match:
            raise Malformed("%r is no use of a QPU; write rusage[qpu_NAME=SLOTS]" % usage[:200])
        if int(match.group(2)):
            out[match.group(1)] = max(int(match.group(2)), out.get(match.group(1), 0))
    return out


def wanted_words(text):
    """`(word, operator, number)` for each plain condition on a word for any QPU (`qpu_ready==1`), None for none."""
    found, seen = [], False
    terms = [inner for _, inner in compound(text)[0]] if is_compound(text) else [text]
    for name, content in [part for term in terms for part in sections(term)]:
        if name not in ("", "select"):
            continue
        seen = seen or bool(_named(content) & set(WORDS))
        for condition in conjuncts(content):
            match = re.match(r"%s\s*(>=|<=|==|>|<|=)\s*(\d+)\Z" % INDEX, condition)
            if match and match.group(1) in WORDS:
                found.append((match.group(1), match.group(2), int(match.group(3))))
    return found if seen else None


def merged(text, pairs, durations=True):
    """The requirement with these QPUs (`(native, slots)`) and no others, all else as it was. Raises `Malformed`.

    Without `durations`, for an LSF in which one holds for all of a usage, the user's are left out: a QPU is in use as
    long as its job is.
    """
    if is_compound(text):
        terms, rest = compound(text)
        either = "||" in "".join(before for before, _ in terms)
        done = [
            before + "{" + merged(inner, pairs if either or not number else (), durations) + "}"
            for number, (before, inner) in enumerate(terms)
        ]
        return "".join(done) + rest
    parts = [(name, _without(name, content)) for name, content in sections(text)]
    conditions = ["qpu_%s>=%d" % pair for pair in pairs]
    usage = ":".join("qpu_%s=%d" % pair for pair in pairs)
    if conditions:
        _into(parts, ("select", ""), 0, lambda content: " && ".join([content] * bool(content) + conditions))
        _into(parts, ("rusage",), len(parts), lambda content: _with_usage(content, usage, durations))
    return " ".join("%s[%s]" % part if part[0] else part[1] for part in parts if part[1])


def _into(parts, names, place, change):
    """Change the first section of one of the names, or a new one at a place."""
    number = next((number for number, (name, _) in enumerate(parts) if name in names), None)
    if number is None:
        number = place
        parts.insert(place, (names[0], ""))
    parts[number] = (parts[number][0], change(parts[number][1]))


def _without(name, content):
    """A section without what it says of QPUs; of a selection the conditions stand in brackets where they must."""
    if name == "rusage":
        ways = [_way_without(way) for way in pieces(content, ("||",))]
        return "||".join(way for way in ways if way)
    if name in ("", "select"):
        kept = [condition for condition in conjuncts(content) if not _natives(condition)]
        return " && ".join("(%s)" % one if len(pieces(one, ("||",))) > 1 else one for one in kept)
    return content


def _way_without(way):
    strings = [[part for part in pieces(string, (":",)) if not _natives(part)] for string in pieces(way, (",",))]
    kept = [parts for parts in strings if not all(_TIMED.match(part) for part in parts)]
    return ",".join(":".join(parts) for parts in kept)


def _with_usage(content, usage, durations):
    """A usage of its own, if the user's has a duration that would hold for ours too."""
    ways = []
    for way in pieces(content, ("||",)) or [""]:
        way = way if durations else _lasting(way)
        own = re.search(r"duration|decay|,", way)
        ways.append(usage if not way else usage + "," + way if own else way + ":" + usage)
    return "||".join(ways)


def _lasting(way):
    strings = [[part for part in pieces(string, (":",)) if not _TIMED.match(part)] for string in pieces(way, (",",))]
    return ",".join(":".join(parts) for parts in strings if parts)


# ---- end of lsf/hooks/resreq.py
