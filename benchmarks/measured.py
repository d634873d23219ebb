# SPDX-License-Identifier: Apache-2.0
"""docs/measured.md has a section of each script that measures, and a folder beside it all tables: this writes both."""


def marks(name):
    return f"<!-- {name}: written by its script -->\n", f"<!-- end of {name} -->\n"


def tables(page, folder, lines):
    """The tables that the section leaves out: FOLDER/tables.md beside PAGE, next to results.json and the plots."""
    path = page.parent / folder / "tables.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).strip() + "\n")


def write(page, name, lines):
    """The section `name` of PAGE between its two marks. A file that does not exist becomes the section alone."""
    text = "\n".join(lines).strip() + "\n"
    if not page.exists() or marks(name)[0] not in page.read_text():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
        return
    begin, end = marks(name)
    before, _, rest = page.read_text().partition(begin)
    page.write_text(before + begin + text + end + rest.partition(end)[2])
