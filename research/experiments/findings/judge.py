# SPDX-License-Identifier: Apache-2.0
"""When a claim holds, from its values and their standard errors, and the numbers that show why."""
import re


def outcome(test, v, e):
    """holds, fails or open: a value and its standard error against the threshold of a test of claims.json."""
    e = max(test.get("within", 0), 2 * e)
    if "at_least" in test:
        return "holds" if v - e >= test["at_least"] else "fails" if v + e < test["at_least"] else "open"
    return "holds" if v + e <= test["at_most"] else "fails" if v - e > test["at_most"] else "open"


def judge(test, values):
    """The verdict of a claim (see claims.json) and the outcome of each of its values: (label, value, standard error)."""
    all = [outcome(test, v, e) for _, v, e in values]
    holds, fails, n = all.count("holds"), all.count("fails"), len(all)
    of = test.get("of", "each")
    if of == "most":
        verdict = "yes" if 2 * holds > n else "no" if 2 * fails >= n else "undecided"
    elif of == "any":
        verdict = "yes" if holds else "no" if fails == n else "undecided"
    else:
        verdict = "yes" if holds == n else "no" if fails == n else "in part" if fails else "undecided"
    return verdict, all


def number(text):
    """A printed number; an error that is not printed is 0."""
    return float(text.replace(",", "") or 0)


def distance(test, v, e):
    """From a value to the threshold, in units of the margin that decides (an exact value: beyond any with an error)."""
    threshold = test.get("at_least", test.get("at_most"))
    margin = max(test.get("within", 0), 2 * e)
    return (margin == 0, abs(v - threshold) / (margin or 1))


def printed(test, values, form):
    """The values as text, with as many digits more as it takes that these digits alone have every value's outcome."""
    for more in range(6):
        wider = re.sub(r"\.(\d+)", lambda digits: f".{int(digits[1]) + more}", form)
        shown = [[label, wider.format(v), wider.replace("+", "").format(e) if e else ""] for label, v, e in values]
        if all(outcome(test, v, e) == outcome(test, number(a), number(b)) for (_, v, e), (_, a, b) in zip(values, shown)):
            break
    return shown
