#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public names of include/specagg that have no comment. scripts/check-tree asks for them.

usage: public_names.py [FOLDER]   FOLDER: of the headers (default: include/specagg)

Public is what stands at namespace scope outside `detail`, and the public members of public types; not constructors,
operators and a type's aliases. This reads what clang-format has laid out, and no other C++. A name has a comment if
  * one stands directly above its declaration or after it, or above its group: declarations of at most five lines each,
    without a blank line between them (a type's first group is that of the type)
  * another declaration of the name in the same scope has one (overloads, specialisations)
  * it is a member that the comment above its type names
  * it is a member that a requires-expression or the comment of a concept asks for, which says what it is
"""
import pathlib, re, sys

GROUP_LINES = 5


def is_comment(lines, i):
    return 0 <= i < len(lines) and re.match(r"\s*//(?! ----| SPDX)", lines[i]) is not None


def code_of(lines):
    """The lines without comments, strings and what is for the preprocessor."""
    out, continued = [], False
    for line in lines:
        directive = continued or re.match(r"\s*#", line)
        continued = directive and line.endswith("\\")
        line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', '""', line)
        out.append("" if directive else re.sub(r"/\*.*?\*/", "", line).split("//")[0].rstrip())
    return out


def head_of(text):
    """A declaration up to the { of its body, the = of its value, or its ;, without template heads and what stands in <> and
    (): of the latter one ( is left."""
    before = None
    while text != before:
        before, text = text, re.sub(r"\([^()]*\)", "\0", text)
    text = re.sub(r"\brequires\s*\0?\s*\{[^{}]*\}", "requires\0", text)
    text = re.sub(r"\[\[.*?\]\]|[<>=!]=|->|operator[^\w\s\0]+", lambda m: "operator" if "operator" in m[0] else "", text)
    while head := re.match(r"\s*template\s*<", text):
        depth, at = 1, head.end()
        while depth:
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at += 1
        text = re.sub(r"^\s*requires\b[^\n]*(\n(&&|\|\|)[^\n]*)*\n", "", text[at:])
    text, before = re.sub(r"[{=;].*", lambda m: m[0][0], text, count=1, flags=re.S), None
    while text != before:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return text.strip().replace("\0", "(")


def name_of(text, member):
    """The name that a declaration declares; None for what needs no comment."""
    head = head_of(text)
    if re.match(r"using namespace|using [\w:]+;", head) or member and head.startswith("using"):
        return None
    if named := re.match(r"(?:using|concept|enum(?: class)?|struct|class|union)\s+(?:alignas\(\s*)?([\w:]+)", head):
        return named[1]
    if re.match(r"(static_assert|friend|namespace)\b|extern \"", head) or "operator" in head:
        return None
    head = re.sub(r"\b(alignas|SPECAGG_DEPRECATED|explicit|requires)\s*\(", "", re.sub(r"\bdecltype\(", "auto ", head))
    words = re.findall(r"~?\w+", re.sub(r"\bSPECAGG_\w+", "", re.split(r"[(,\[{=;]|(?<!:):(?!:)", head)[0]))
    kinds = {"inline", "static", "constexpr", "virtual", "mutable", "extern", "const"}
    return words[-1] if len([w for w in words if w not in kinds]) > 1 else None  # one: a constructor, a deduction guide


def scope_of(text):
    """Of a text that ends in {: the name of the type that it opens; "" for a namespace; None for anything else."""
    head = head_of(text)
    if re.match(r"(inline )?namespace\b|extern \"", head):
        return ""
    opened = re.match(r"(?:struct|class|union)\s+(?:alignas\(\s*)?([\w:]+)", head)
    return opened[1] if opened else None


def declarations(lines):
    """(first line, last line, scope, whether it is public, its text), in order. Scope: a tuple of names of types."""
    code, at, scopes = code_of(lines), 0, [("", True, True)]  # name, public, what `public:` means here
    while at < len(code):
        line = code[at].strip()
        if re.match(r"(public|private|protected):$", line):
            scopes[-1] = (scopes[-1][0], scopes[-1][2] and line == "public:", scopes[-1][2])
        elif line.startswith("}"):
            del scopes[max(len(scopes) - 1, 1):]
        elif line and not re.match(r"SPECAGG_(BEGIN|END|MOVED)\w*\b", line):
            first, text, opened = at, line, None
            while True:
                depth = sum(map(text.count, "({[")) - sum(map(text.count, ")}]"))
                if text[-1] == "{" and depth == 1 and (opened := scope_of(text)) is not None:
                    break
                whole = text[-1] == ";" or text[-1] == "}" and not head_of(text).endswith("=")
                if depth == 0 and whole or at + 1 == len(code):
                    break
                at += 1
                text += "\n" + code[at].strip()
            public = scopes[-1][1]
            yield first, at, tuple(name for name, *_ in scopes if name), public, text
            if opened is not None:
                inside = public and not re.search(r"\bnamespace [\w:]*\bdetail\b", text)
                scopes.append((opened, inside and not re.search(r"^class |\nclass ", text), inside))
        at += 1


def asked_for(headers):
    """Members that concepts and other requires-expressions ask for, or that the comment of a concept writes as calls."""
    names = set()
    for lines in headers.values():
        code = "\n".join(code_of(lines))
        for found in re.finditer(r"\brequires\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)?\{", code):
            depth, at = 1, found.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(code[at], 0)
                at += 1
            names |= set(re.findall(r"(?:\.|::)\s*(?:template\s+)?(\w+)", code[found.end():at]))
        for i, line in enumerate(lines):
            if re.match(r"concept ", line):
                at = i - 1
                while at >= 0 and not is_comment(lines, at) and lines[at].strip():
                    at -= 1
                while is_comment(lines, at):
                    names |= set(re.findall(r"\b(\w+)(?:\(|<\w+>)", lines[at]))
                    at -= 1
    return names


def uncommented(folder):
    """(header, line, name) of each; and how many public names there are at namespace scope, and members."""
    headers = {p.relative_to(folder).as_posix(): p.read_text().splitlines() for p in sorted(folder.rglob("*.hpp"))}
    asked, found, above_type = asked_for(headers), {}, {}
    for header, lines in headers.items():
        before = (-2, (), False)  # where the declaration before ended, in which scope, whether its comment is this one's, too
        for first, last, scope, public, text in declarations(lines):
            name, opens = name_of(text, bool(scope)), text.endswith("{")
            head = first + (text.split("{")[0].count("\n") if text[-1] in "{}" else last - first)
            commented = (is_comment(lines, first - 1) or before == (first - 1, scope, True) or
                         any("//" in line for line in lines[first:head + 1] + [lines[last]]))
            before = (last, scope + (name,) if opens and name else scope, commented and last - first < GROUP_LINES)
            place = pathlib.Path(header).parent
            if name and re.search(r"\b(struct|class)\b", head_of(text)):
                at = first
                while is_comment(lines, at - 1):
                    at -= 1
                above_type.setdefault((place, scope + (name,)), []).extend(lines[at:first])
            if not public or not name or name in scope[-1:]:
                continue
            if scope:
                commented = (commented or name in asked or bool(asked & set(scope[1:])) or "override" in head_of(text) or
                             re.search(rf"\b{name}\b", " ".join(above_type.get((place, scope), []))))
            key = (place, scope, name)
            where, already = found.get(key, ((header, first + 1), False))
            found[key] = (where, already or commented)
    members = sum(bool(scope) for _, scope, _ in found)
    bad = [(*where, "::".join(scope + (name,))) for (_, scope, name), (where, commented) in found.items() if not commented]
    return bad, len(found) - members, members


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parent.parent
    bad, names, members = uncommented(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "include/specagg")
    for header, line, name in bad:
        print(f"{header}:{line}: {name} has no comment")
    print(f"{names} public names at namespace scope, {members} public members: {len(bad)} without a comment")
    sys.exit(bool(bad))
