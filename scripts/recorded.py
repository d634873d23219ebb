# SPDX-License-Identifier: Apache-2.0
"""What a run measured, as its page shows it: a JSON file beside the page's plots. The page is written from it alone, so
that a test can write it again."""
import json


def text(value, deep=2):
    """JSON with a line for each entry of the first two levels."""
    if deep and isinstance(value, (dict, list)) and value:
        items = [f"{json.dumps(k)}: {text(v, deep - 1)}" for k, v in value.items()] if isinstance(value, dict) else [
            text(v, 0) for v in value]
        return ("{%s}" if isinstance(value, dict) else "[%s]") % ("\n  " + ",\n  ".join(items))
    return json.dumps(value, ensure_ascii=False)


def write(path, results):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(results) + "\n")
