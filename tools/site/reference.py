# SPDX-License-Identifier: Apache-2.0
"""The reference's pages: an entry for every public name of include/specagg, of the Python package and of c/specagg.h.

What is public, and which comment belongs to a name, scripts/public_names.py says. A comment's lines `name  what it is`,
in columns, are a list of parameters.
"""
import ast, html, pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import public_names

HEADERS = ROOT / "include/specagg"
FOLDERS = {"": "Core", "rows": "Rows", "kernel": "Kernels", "policy": "Policies", "verify": "Verifiers", "audit": "Audits",
           "draft": "Drafters", "decode": "Decoders", "plan": "Plans", "sites": "Two sites", "sites/net": "Network",
           "backend/cpu": "CPU", "backend/cuda": "CUDA", "backend/llama_cpp": "llama.cpp",
           "backend": "Engines", "backend/executorch": "ExecuTorch", "backend/openvino": "OpenVINO"}
MODULES = {"specagg": "__init__", **{f"specagg.{m}": m for m in ("plan", "hf", "traced", "testing", "cuda", "vllm")}}


# --- comments -----------------------------------------------------------------------------------------------------------
def inline(text):
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def items_of(lines):
    """(names, text) of lines in two columns, or None. The text goes on in lines that are indented at least as far."""
    items = []
    for line in lines:
        match = re.match(r"(\s*)([\w.=()\[\], |*\"-]*?[\w)\]\"])(\s{2,})(?=\S)(.*)$", line)
        indent = len(line) - len(line.lstrip())
        if match and (not items or indent <= items[0][2]):
            items.append([match[2], [match[4]], indent])
        elif items and indent > items[0][2]:
            items[-1][1].append(line.strip())
        else:
            return None
    return [(name, " ".join(text)) for name, text, _ in items]


def blocks(lines):
    """Runs of lines of one kind: paragraph, columns, code (indented otherwise)."""
    run, kind, found = [], None, []
    for i, line in enumerate([*lines, ""]):
        indented, column = line.startswith("  "), re.match(r"\s{0,4}\S(?:\S| (?! ))*\s{2,}\S", line)
        if not line.strip():
            now = None
        elif kind == "columns" and indented or column and (indented or re.match(r"[\w, ]+\s{2,}\S", line)):
            now = "columns"
        elif re.match(r"[*-] ", line.lstrip()) or kind == "list" and indented:
            now = "list"
        else:
            now = "code" if indented else "paragraph"
        if now == "code" and kind == "columns":
            now = "columns"
        if now != kind and run:
            found.append((kind, run))
            run = []
        kind = now
        if now:
            run.append(line)
    return found


def comment_html(lines):
    out = []
    for kind, run in blocks(lines):
        items = items_of(run) if kind == "columns" else None
        if items:
            out.append("<dl class=\"parameters\">" + "".join(f"<dt><code>{html.escape(name)}</code></dt><dd>{inline(text)}</dd>"
                                                              for name, text in items) + "</dl>")
        elif kind == "list":
            points = re.split(r"(?:^|\n)\s*[*-] ", "\n".join(run))[1:]
            out.append("<ul>" + "".join(f"<li>{inline(' '.join(point.split()))}</li>" for point in points) + "</ul>")
        elif kind == "paragraph":
            out.append(f"<p>{inline(' '.join(run))}</p>")
        else:
            out.append("<pre>" + html.escape("\n".join(run)) + "</pre>")
    return "\n".join(out)


def code_html(code):
    return f"<pre class=\"signature\"><code>{html.escape(code)}</code></pre>"


# --- C++ ----------------------------------------------------------------------------------------------------------------
def signature(lines, cursor):
    """The declaration without its body."""
    start, end = cursor.extent.start, cursor.extent.end
    text = "\n".join(lines[start.line - 1 : end.line + 1])[start.column - 1 :]
    text = re.sub(r"[ \t]*//[^\n]*", "", text)
    whole = cursor.kind in public_names.OTHERS - {public_names.K.ENUM_DECL}
    field = cursor.kind == public_names.K.FIELD_DECL
    depth = 0
    for i, c in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if field and "=" not in text[:i]:  # of its type
            depth += {"<": 1, ">": -1}.get(c, 0)
        if whole:
            depth += {"{": 1, "}": -1}.get(c, 0)
        if depth == 0 and (c == ";" or c == "{" and not whole and not re.search(r"requires(\s*\([^)]*\))?\s*$", text[:i]) or
                           c == "," and field):
            text = text[:i]
            break
    text = re.sub(r"\b(SPECAGG_(FUNCTION|LANE|INLINE|PAIR|OUTLINE|INNER|FLATTEN))\s+", "", text)
    if cursor.kind in public_names.FUNCTIONS:
        text = re.sub(r"\)\s*:\s*\w+[({].*$", ")", text, flags=re.S)
    kept = [line for line in text.rstrip().split("\n") if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in kept[1:]), default=0)
    return "\n".join([kept[0].strip(), *(line[min(margin, start.column - 1):] for line in kept[1:])]) if kept else cursor.spelling


def own_comment(lines, first, cursor):
    """The comment above a declaration or behind its first line."""
    above = [re.sub(r"^\s*// ?", "", line) for line in public_names.comment_above(lines, first)]
    if above:
        return above
    behind = re.search(r"//\s?(.*)", lines[first])
    found = [behind[1]] if behind else []
    for line in lines[first + 1 :] if behind else ():  # a comment that goes on
        if not (more := re.match(r"\s{8,}//\s?(.*)", line)):
            break
        found.append(more[1])
    return found


def file_comment(lines):
    head = []
    for line in lines[1:]:
        if not line.startswith("//"):
            break
        head.append(re.sub(r"^// ?", "", line))
    return head


def parameters(cursor):
    """The names of a function's parameters."""
    return [c.spelling for c in cursor.get_children() if c.kind == public_names.K.PARM_DECL and c.spelling]


def cpp_entries():
    """{header: [entry]}: scope, names, signatures, comment; a name without its own comment joins the entry above it."""
    texts = {str(p): p.read_text().splitlines() for p in HEADERS.rglob("*.hpp")}
    found = {}
    for header, first, scope, name, cursor, _ in public_names.declarations(public_names.parsed(HEADERS), texts):
        where = pathlib.Path(header).relative_to(HEADERS).as_posix()
        lines, entries = texts[header], found.setdefault(where, [])
        comment = own_comment(lines, first, cursor)
        last = entries[-1] if entries else None
        if last and last["scope"] == scope and (not comment or name == last["names"][-1]) and (
                scope or cursor.kind not in public_names.TYPES or name == last["names"][-1]):
            last["names"].append(name)
            last["signatures"].append(signature(lines, cursor))
            last["comment"] += [""] * bool(comment and last["comment"]) + comment
            last["parameters"] += parameters(cursor)
        else:
            entries.append({"scope": scope, "names": [name], "signatures": [signature(lines, cursor)], "comment": comment,
                            "line": first + 1, "parameters": parameters(cursor)})
    return found, {str(pathlib.Path(h).relative_to(HEADERS)): file_comment(lines) for h, lines in texts.items()}


def folder_of(header):
    folder = re.sub(r"(^|/)(detail|grpc|dots)(/.*)?$", "", header.rpartition("/")[0]).rstrip("/")
    return folder if folder in FOLDERS else folder.rpartition("/")[0]


def page_of(header):
    return "cpp/" + (folder_of(header).replace("/", "-") or "core") + ".md"


def anchor(header):
    return re.sub(r"\W+", "-", header)


def cpp_pages():
    """{page: Markdown}; and the ids that it has."""
    found, heads = cpp_entries()
    pages = {}
    for folder, title in FOLDERS.items():
        out = [f"# {title}: C++ reference\n"]
        for header in sorted(h for h in heads if folder_of(h) == folder and ("detail/" not in h or found.get(h))):
            out.append(f"\n## {header} {{ #{anchor(header)} }}\n\n<pre class=\"signature\"><code>#include &lt;specagg/{header}&gt;"
                       f"</code></pre>\n{comment_html(heads[header])}\n")
            for entry in found.get(header, ()):
                ids = list(dict.fromkeys("::".join((*entry["scope"], name)) for name in entry["names"]))
                targets = "".join(f"<span id=\"{anchor(header)}.{i}\"></span>" for i in ids)
                text = targets + code_html("\n".join(entry["signatures"])) + "\n" + comment_html(entry["comment"])
                if entry["scope"]:
                    out.append(f"<div class=\"member\">{text}</div>\n")
                else:
                    out.append(f"\n### {', '.join(ids)} {{ #{anchor(header)}-{ids[0]} }}\n\n<div>{text}</div>\n")
        pages[f"cpp/{folder.replace('/', '-') or 'core'}.md"] = "\n".join(out)
    return pages


# --- Python -------------------------------------------------------------------------------------------------------------
def python_public():
    """{module: {name: node}} of what is public, as the sources say."""
    package = ROOT / "python/specagg"
    trees = {p.stem: ast.parse(p.read_text()) for p in [*package.glob("*.py"), package / "_core.pyi"]}
    defined = {stem: {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
               for stem, tree in trees.items()}
    origin = {}
    for node in trees["__init__"].body:
        if isinstance(node, ast.ImportFrom) and node.module:
            origin.update({alias.name: node.module for alias in node.names})
    exported = next(ast.literal_eval(node.value) for node in trees["__init__"].body
                    if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    found = {"specagg": {name: defined[origin[name]].get(name) for name in exported if name in origin}}
    for module, stem in MODULES.items():
        if stem != "__init__":
            found[module] = {name: node for name, node in defined[stem].items() if not name.startswith("_")}
    return found, {module: ast.get_docstring(trees[stem]) or "" for module, stem in MODULES.items()}


def python_signature(node):
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {node.name}" + (f"({bases})" if bases else "")
    arguments = ast.unparse(node.args)
    if len(arguments) > 80:
        arguments = "\n    " + re.sub(r", (?=(?:[^\[\]()]|\[[^\]]*\]|\([^)]*\))*$)", ",\n    ", arguments) + "\n"
    return f"{node.name}({arguments})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def python_members(node):
    """Public methods, properties and fields of a class."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__init__"):
            yield member.name, python_signature(member), ast.get_docstring(member) or ""
        elif isinstance(member, ast.AnnAssign) and not member.target.id.startswith("_"):
            yield member.target.id, ast.unparse(member), ""


def python_pages():
    found, docs = python_public()
    pages = {}
    for module, names in found.items():
        out = [f"# {module}: Python reference\n\n{comment_html(docs[module].splitlines())}\n"]
        for name, node in names.items():
            out.append(f"\n## {name} {{ #{module}.{name} }}\n")
            if node is None:  # a value, such as the enumeration Status
                out.append(f"<div>{comment_html(value_comment(name))}</div>\n")
                continue
            text = code_html(python_signature(node)) + comment_html((ast.get_docstring(node) or "").splitlines())
            members = python_members(node) if isinstance(node, ast.ClassDef) else ()
            text += "".join(f"<div class=\"member\"><span id=\"{module}.{name}.{member}\"></span>{code_html(shown)}"
                            f"{comment_html(doc.splitlines())}</div>" for member, shown, doc in members)
            out.append(f"<div>{text}</div>\n")
        pages[f"python/{module}.md"] = "\n".join(out)
    return pages


def value_comment(name):
    """The comment above an assignment in python/specagg."""
    for path in (ROOT / "python/specagg").glob("_*.py"):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if line.startswith(f"{name} ="):
                above = []
                while lines[i - 1 - len(above)].startswith("#"):
                    above.insert(0, lines[i - 1 - len(above)][2:])
                return above
    return []


# --- what is missing ----------------------------------------------------------------------------------------------------
def expected():
    """(page, id, name) of every public name, read again from the headers and the package."""
    texts = {str(p): p.read_text().splitlines() for p in HEADERS.rglob("*.hpp")}
    for header, _, scope, name, _, _ in public_names.declarations(public_names.parsed(HEADERS), texts):
        where = pathlib.Path(header).relative_to(HEADERS).as_posix()
        yield page_of(where).replace(".md", ".html"), f"{anchor(where)}.{'::'.join((*scope, name))}", "::".join((*scope, name))
    for module, names in python_public()[0].items():
        for name in names:
            yield f"python/{module}.html", f"{module}.{name}", f"{module}.{name}"


def misnamed():
    """(header, line, name) where a comment has a list of parameters, and one of them is none of the function's."""
    for header, entries in cpp_entries()[0].items():
        for entry in entries:
            for kind, run in blocks(entry["comment"]):
                items = items_of(run) if kind == "columns" else None
                names = [name for group, _ in items or () for name in re.split(r",\s*", group)]
                if set(names) & set(entry["parameters"]):
                    yield from ((header, entry["line"], name) for name in names if name.isidentifier() and name not in entry["parameters"])


def pages():
    header = (ROOT / "c/specagg.h").read_text()
    return {**cpp_pages(), **python_pages(), "c.md": f"# c/specagg.h: C reference\n\n```c\n{header}```\n"}
