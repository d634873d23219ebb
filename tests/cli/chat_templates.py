#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints tests/cli/chat_templates.json: what jinja2 makes of chat templates (tests/cli/chat_templates.test.cpp).

usage: chat_templates.py NAME FILE [NAME FILE ...] > chat_templates.json

Of the files, which hold published templates, hashes and prompts are recorded, not their texts. Beside them it renders
twenty templates written for the test: kinds that exist, most of them near the known ones.
"""
import importlib.machinery, importlib.util, json, pathlib, sys

loader = importlib.machinery.SourceFileLoader("chat_template", str(pathlib.Path(__file__).parents[2] / "scripts/chat-template"))
chat_template = importlib.util.module_from_spec(importlib.util.spec_from_loader("chat_template", loader))
loader.exec_module(chat_template)

TURNS = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"""
ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
SYSTEM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nSYSTEM<|im_end|>\n' }}{% endif %}"""
OWN_SYSTEM = SYSTEM + TURNS.replace("{% for message in messages %}", "") + ASK
OWN = {
    "ChatML": TURNS + ASK,
    "ChatML, a newline at its end": TURNS + ASK + "\n",
    "ChatML with a system text of its own": OWN_SYSTEM.replace("SYSTEM", "Answer as a pirate."),
    "ChatML with a system text of its own, spelled": OWN_SYSTEM.replace("SYSTEM", "Answer as a cook.").replace("\n", "\\n"),
    "a thought begun": TURNS + ASK.replace("assistant\n", "assistant\n<think>\n"),
    "a begin token": "{{ bos_token }}" + TURNS + ASK,
    "a begin token in the loop": TURNS.replace("{{'", "{% if loop.first %}{{ bos_token }}{% endif %}{{'", 1) + ASK,
    "no newline behind the end marker": TURNS.replace("'<|im_end|>' + '\n'", "'<|im_end|>'") + ASK,
    "other roles": TURNS.replace("message['role'] +", "('model' if message['role'] == 'assistant' else message['role']) +")
                   + ASK.replace("assistant", "model"),
    "thoughts cut": TURNS.replace("message['content']", "message['content'].split('</think>')[-1]") + ASK,
    "the last turn alone": TURNS.replace("in messages %}", "in messages[-1:] %}") + ASK,
    "roles that alternate": "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
                            "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + TURNS + ASK,
    "trimmed": TURNS.replace("message['content']", "message['content'] | trim") + ASK,
    "no question for an answer": TURNS,
    "a namespace": "{% set ns = namespace(first=true) %}{% for m in messages %}{% if ns.first %}{{ bos_token }}{% set ns.first = false %}"
                   "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
                   "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "headers": "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
               "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "instructions in brackets": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
                                "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
                                "{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}",
    "an end token behind each turn": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
                                     "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "the system's text as JSON, today's date": "{% if messages[0].role == 'system' %}{{ messages[0] | tojson }}{{ strftime_now('%Y') }}{% endif %}"
                                               + TURNS + ASK,
    "another marker between role and text": TURNS.replace("'\n' + message", "'<|im_sep|>' + message")
                                            + ASK.replace("assistant\n", "assistant<|im_sep|>"),
}
CONVERSATIONS = [(None, [" Hi \n"]), ("Be brief.", ["Hi"]), ("", ["x", " y ", "z"]),
                 (None, ["Hi", "<think>\nHm.\n</think>\n\n So. ", "And \u00e9?", "a\n", "\n?"])]


def cases(text):
    template = chat_template.compiled(text)
    all = []
    for system, texts in CONVERSATIONS:
        try:
            due = chat_template.outcome(chat_template.rendered, template, system, texts, "<s>", "</s>")
        except chat_template.Dated:
            due = None  # another prompt each day
        all.append({"system": system, "texts": texts, "due": due})
    return all


def main(words):
    known = []
    for name, path in zip(words[::2], words[1::2]):
        text = open(path, encoding="utf-8", newline="").read()
        rest, default = chat_template.general(text)
        known.append({"name": name, "hash": f"0x{chat_template.fnv_1a(rest):016x}", "default": default, "cases": cases(text)})
    known = list({one["hash"] + str(one["default"]): one for one in known}.values())
    own = [{"name": name, "template": text, "cases": cases(text)} for name, text in OWN.items()]
    lines = [json.dumps(one) for one in (*known, *own)]
    print("[" + ",\n ".join(lines) + "]")


if __name__ == "__main__":
    main(sys.argv[1:])
