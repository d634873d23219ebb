#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public names of include/specagg that have no comment, as libclang reads the headers. scripts/check-tree asks for them.

usage: public_names.py [FOLDER]    FOLDER: of the headers (default: include/specagg)
       public_names.py --install   libclang into build/tools, from PyPI (25 MB), if it is not there

Public is what stands at namespace scope outside `detail`, and the public members of public types; not constructors,
operators and a type's aliases. Vectors are the plain ones (SPECAGG_SCALAR). A name has a comment if
  * one stands directly above its declaration or after it, or above its group: declarations of at most five lines each,
    without a blank line between them (a type's first group is that of the type)
  * another declaration of the name in the same scope has one (overloads, specialisations)
  * it is a member that the comment above its type names
  * it is a member that a requires-expression or the comment of a concept asks for, which says what it is
"""
import pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBCLANG = "18.1.1"
MISSING = f"libclang {LIBCLANG} is not installed (scripts/public_names.py --install)"
sys.path.insert(0, str(ROOT / "build/tools" / f"libclang-{LIBCLANG}"))
try:
    from clang.cindex import AccessSpecifier, CursorKind as K, Index, TranslationUnit
except ImportError:
    Index = None  # nothing is checked
else:
    TYPES = {K.STRUCT_DECL, K.CLASS_DECL, K.UNION_DECL, K.CLASS_TEMPLATE, K.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION}
    FUNCTIONS = {K.FUNCTION_DECL, K.FUNCTION_TEMPLATE, K.CXX_METHOD}
    ALIASES = {K.TYPE_ALIAS_DECL, K.TYPEDEF_DECL, K.TYPE_ALIAS_TEMPLATE_DECL}
    # An unexposed declaration with a name is of a variable template.
    OTHERS = {K.ENUM_DECL, K.CONCEPT_DECL, K.VAR_DECL, K.FIELD_DECL, K.UNEXPOSED_DECL}
GROUP_LINES = 5


def parsed(folder):
    """All headers in one file. Of a library that is not there (llama.h), types are unknown, and names are still found."""
    compiler_headers = subprocess.run(["c++", "-print-file-name=include"], capture_output=True, text=True).stdout.strip()
    text = "".join(f"#include <specagg/{p.relative_to(folder).as_posix()}>\n" for p in sorted(folder.rglob("*.hpp")))
    return Index.create().parse(
        "all.cpp", ["-xc++", "-std=c++20", "-ferror-limit=0", "-DSPECAGG_SCALAR", f"-I{folder.parent}",
                    f"-I{folder.parents[1]}/tests/cuda/emulator", "-isystem/usr/include/eigen3", "-isystem" + compiler_headers],
        [("all.cpp", text)], TranslationUnit.PARSE_SKIP_FUNCTION_BODIES | 0x200).cursor  # 0x200: goes on without a header


def comment_above(lines, i):
    """The lines of the comment that ends directly above a line."""
    at = i
    while at > 0 and re.match(r"\s*//(?! ----| SPDX)", lines[at - 1]):
        at -= 1
    return lines[at:i]


def declarations(cursor, texts, scope=(), before=(-9, False)):
    """(header, line, scope, name, cursor, whether it has a comment) of each public one, in order. Scope: names of types.
    before: the first line of the declaration before, and whether its comment may be this one's, too."""
    below = AccessSpecifier.PUBLIC  # as written: where types are unknown, a member's own may be wrong
    for c in cursor.get_children():
        if c.kind == K.CXX_ACCESS_SPEC_DECL:
            below = c.access_specifier
        header = c.location.file and c.location.file.name
        if header not in texts:
            continue
        if c.kind == K.NAMESPACE and c.spelling != "detail" or c.kind in (K.LINKAGE_SPEC, K.UNEXPOSED_DECL) and not c.spelling:
            yield from declarations(c, texts)
            continue
        lines, first, last = texts[header], (c.extent.start.line or c.location.line) - 1, c.extent.end.line - 1
        if c.kind in TYPES | FUNCTIONS and c.is_definition():  # up to where it opens
            last = next((i for i in range(first, len(lines)) if "{" in lines[i]), last)
        in_group = before[1] and first - before[0] <= GROUP_LINES and all(line.strip() for line in lines[before[0]:first])
        commented = bool(in_group or comment_above(lines, first) or any("//" in line for line in lines[first:last + 1]))
        before, name = (first, commented), c.spelling.split("<")[0]
        if (c.kind not in TYPES | FUNCTIONS | OTHERS | (set() if scope else ALIASES) or not name.isidentifier() or
                name in scope[-1:] or scope and {below, c.access_specifier} != {AccessSpecifier.PUBLIC} or
                not scope and c.semantic_parent.kind in TYPES):  # a member that is defined outside
            continue
        yield header, first, scope, name, c, commented
        if c.kind in TYPES:
            yield from declarations(c, texts, scope + (name,), (last, commented and last - first < GROUP_LINES))


def asked_for(texts, found):
    """Members that concepts and other requires-expressions ask for, or that the comment of a concept writes as calls."""
    names = set()
    for lines in texts.values():
        code = re.sub("//.*", "", "\n".join(lines))
        for match in re.finditer(r"\brequires\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)?\{", code):
            depth, at = 1, match.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(code[at], 0)
                at += 1
            names |= set(re.findall(r"(?:\.|::)\s*(?:template\s+)?(\w+)", code[match.end():at]))
    for header, first, _, _, c, _ in found:
        if c.kind == K.CONCEPT_DECL:
            names |= set(re.findall(r"\b(\w+)(?:\(|<\w+>)", "\n".join(comment_above(texts[header], first))))
    return names


def uncommented(folder):
    """(header, line, name) of each; and how many public names there are at namespace scope, and members."""
    texts = {str(p): p.read_text().splitlines() for p in folder.rglob("*.hpp")}
    found = list(declarations(parsed(folder), texts))
    asked, names, above_type = asked_for(texts, found), {}, {}
    for header, first, scope, name, c, commented in found:
        place = re.sub(r"/detail(/.*)?$", "", pathlib.Path(header).parent.as_posix())  # detail/ is of its folder
        if c.kind in TYPES:
            above_type.setdefault((place, scope + (name,)), []).extend(comment_above(texts[header], first))
        if scope:
            commented = (commented or name in asked or bool(asked & set(scope[1:])) or
                         any(k.kind == K.CXX_OVERRIDE_ATTR for k in c.get_children()) or
                         re.search(rf"\b{name}\b", " ".join(above_type.get((place, scope), []))))
        where, already = names.get((place, scope, name), ((header, first + 1), False))
        names[place, scope, name] = (where, already or commented)
    members = sum(bool(scope) for _, scope, _ in names)
    bad = [(pathlib.Path(header).relative_to(folder).as_posix(), line, "::".join(scope + (name,)))
           for (_, scope, name), ((header, line), commented) in names.items() if not commented]
    return bad, len(names) - members, members


if __name__ == "__main__":
    if sys.argv[1:] == ["--install"]:
        sys.exit(subprocess.run([ROOT / "scripts/from-pypi", "libclang", LIBCLANG]).returncode)
    if not Index:
        sys.exit(MISSING)
    bad, names, members = uncommented(pathlib.Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT / "include/specagg")
    for header, line, name in bad:
        print(f"{header}:{line}: {name} has no comment")
    print(f"{names} public names at namespace scope, {members} public members: {len(bad)} without a comment")
    sys.exit(bool(bad))
