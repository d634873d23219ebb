// SPDX-License-Identifier: Apache-2.0
// The page under /: a conversation, or texts that go on, with the origin of each token.
#pragma once
#include <string>

#include "members.hpp"

namespace detail {

inline constexpr char page_begin[] = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>specagg</title>
<style>
  :root { color-scheme: light dark; --accepted: #d7efdc; --faint: #57606a; --line: #d0d7de }
  @media (prefers-color-scheme: dark) {
    :root { --accepted: #1f4a2c; --faint: #9da7b1; --line: #3d444d }
  }
  html { background: Canvas; color: CanvasText }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 0 auto; padding: 0 1em }
  h1 { font-size: 1.3em; margin: .5em 0 0 }
  .faint, label { color: var(--faint); font-size: .9em }
  .user { white-space: pre-wrap; margin: 1em 0 .5em; color: var(--faint) }
  .answers { display: grid; gap: 1em; grid-template-columns: repeat(auto-fit, minmax(16em, 1fr)) }
  .answers > div { min-width: 0 }
  .answer p { white-space: pre-wrap; margin: .5em 0; overflow-wrap: anywhere }
  .answer h2, .answer h3, .answer h4, .answer h5 { margin: .6em 0 .2em; font-size: 1.1em }
  pre, code { font: .9em ui-monospace, monospace }
  pre { overflow-x: auto; border: 1px solid var(--line); padding: .5em }
  .draft { background: var(--accepted); color: CanvasText }
  .marked { outline: 2px solid }
  .failed { color: light-dark(#b3261e, #ff8a80) }
  form { position: sticky; bottom: 0; background: Canvas; border-top: 1px solid var(--line);
         padding: .5em 0 }
  textarea { width: 100%; height: 3.5em; box-sizing: border-box; font: inherit }
  input, select, button { font: inherit; max-width: 100% }
  input[type=number] { width: 5em }
  #token { min-height: 1.5em }
  #law { font: .9em ui-monospace, monospace; overflow-wrap: anywhere }
  details label { margin-right: .6em }
</style>
<header><h1>specagg</h1>
<p class="faint">Model <b id="model"></b>. <span class="draft">Drafted and accepted</span>, others
from the target. Point at a token, or click it, for its probabilities.</p></header>
<main id="texts"><div id="first"><p>Write a prompt below, or begin with one of these:</p>
<p id="examples"></p></div></main>
<form id="form" aria-label="A request">
  <div id="token" class="faint" role="status"></div>
  <textarea id="prompt" aria-label="Prompt" autofocus></textarea>
  <details id="options" open><summary>Options</summary>
  <div>
    <label>temperature
      <input id="temperature" type="number" value="0.7" min="0" step="0.1"></label>
    <label>tokens <input id="max_tokens" type="number" value="128" min="1"></label>
    <label>seed <input id="seed" type="number" value="0" min="0"></label>
  </div>
  <div id="left"></div>
  <label><input id="compare" type="checkbox"> compare with</label>
  <div id="right" hidden></div>
  </details>
  <button id="send">Send</button> <button id="stop" type="button" disabled>Stop</button>
</form>
<script>
const about = )html";

inline constexpr char page_end[] = R"html(;
const $ = id => document.getElementById(id);
let messages = [], key = window.server_key || "", going = null, pinned = null;

function add(parent, tag, kind, text) {
  const e = parent.appendChild(document.createElement(tag));
  if (kind) e.className = kind;
  if (text) e.textContent = text;
  return e;
}
// Selectors of what this server has. A policy that reads the draft's rows needs the draft model.
function way_of(place) {
  const drafts = add(add(place, "label", "", "drafts "), "select");
  for (const name of about.drafts) add(drafts, "option", "", name);
  drafts.value = about.drafts[0];
  drafts.className = "drafts";
  if (about.policies.length == 0) return () => ({draft: drafts.value});
  const policy = add(add(place, "label", "", "policy "), "select", "policy");
  const box = add(place, "label", "", "its parameters "), given = add(box, "input", "parameters");
  const law = add(place, "div", "faint law");
  for (const one of about.policies) add(policy, "option", "", one.name);
  const chosen = () => about.policies.find(one => one.name == policy.value);
  const show = () => {
    given.value = chosen().example;
    box.hidden = !chosen().keys;
    law.textContent = "pi = " + chosen().law + (chosen().keys ? "; usual: " + chosen().keys : "");
  };
  policy.addEventListener("change", () => {
    show();
    if (policy.value != "lossless") drafts.value = "model";
  });
  policy.value = "lossless";
  show();
  return () => {
    const values = given.value.replace(/\s/g, "");
    return {draft: drafts.value, policy: policy.value + (values && ":" + values)};
  };
}
$("model").textContent = about.model;
const left = way_of($("left")), right = way_of($("right"));
if (window.innerWidth < 600) $("options").open = false;  // half of the screen
$("prompt").placeholder = about.way == "chat" ? "Ask something" : "The beginning of a text";
for (const text of about.way == "chat"
    ? ["List ten fruits, one a line.", "What is a prime number?", "Write a poem about rain."]
    : ["Once upon a time", "In the beginning", "One, two, three, four,"]) {
  const example = add($("examples"), "button", "", text);
  example.type = "button";
  example.addEventListener("click", () => {
    $("prompt").value = text;
    $("prompt").focus();
  });
  $("examples").append(" ");
}
if (about.policies.length > 0)
  add($("first"), "p", "faint", "Lossless: the text has the distribution of the model alone. " +
      "The other policies accept more drafted tokens, and the text has another distribution, pi.");
$("compare").addEventListener("change", () => $("right").hidden = !$("compare").checked);

// ---- a text in Markdown, of tokens that remain spans -------------------------------------------
function render(box, a) {
  let at = 0, block = null, from = 0;
  const put = (parent, begin, end) => {
    while (at < a.tokens.length && a.tokens[at].to <= begin) ++at;
    for (let i = at; i < a.tokens.length && a.tokens[i].from < end; ++i) {
      const t = a.tokens[i];
      const piece = a.text.slice(Math.max(t.from, begin), Math.min(t.to, end));
      add(parent, "span", t.kind, piece).says = t.says;
    }
  };
  const inline = (parent, begin, end) => {
    const marks = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;
    let last = begin;
    for (const m of a.text.slice(begin, end).matchAll(marks)) {
      const i = m[1] ? 1 : m[2] ? 2 : 3, wide = i == 2 ? 2 : 1, start = begin + m.index;
      put(parent, last, start);
      put(add(parent, [, "code", "strong", "em"][i]), start + wide, start + m[0].length - wide);
      last = start + m[0].length;
    }
    put(parent, last, end);
  };
  const within = tag => block && block.tagName == tag;
  box.textContent = "";
  for (const line of a.text.split("\n")) {
    const to = from + line.length, next = Math.min(to + 1, a.text.length);
    const mark = line.match(/^(?:(#{1,4}) |\s*(?:[-*]|(\d+)\.) )/);
    if (/^\s*```/.test(line)) block = within("PRE") ? null : add(box, "pre");
    else if (within("PRE")) put(block, from, next);
    else if (!line.trim()) block = null;
    else if (mark && mark[1]) {
      inline(add(box, "h" + (mark[1].length + 1)), from + mark[0].length, to);
      block = null;
    } else if (mark) {
      const list = mark[2] ? "OL" : "UL";
      if (!within(list)) block = add(box, list);
      if (mark[2] && !block.firstChild) block.start = +mark[2];
      inline(add(block, "li"), from + mark[0].length, to);
    } else {
      if (!within("P")) block = add(box, "p");
      inline(block, from, next);
    }
    from = to + 1;
  }
}
// Writes what changes; scrolls along if the end was in sight.
function follow(change) {
  const page = document.documentElement;
  const seen = page.scrollHeight - page.scrollTop - page.clientHeight < 40;
  change();
  if (seen) page.scrollTop = page.scrollHeight;
}

// ---- a request ----------------------------------------------------------------------------------
function body_of(prompt, way, before) {
  const body = {stream: true, stream_options: {include_usage: true}, origins: true,
                temperature: +$("temperature").value, max_tokens: +$("max_tokens").value,
                seed: +$("seed").value, ...way};
  if (about.way == "chat") {
    body.messages = before.concat({role: "user", content: prompt});
    body.logprobs = true;
  } else {
    body.prompt = prompt;
    body.logprobs = 0;
  }
  return JSON.stringify(body);
}
// The tokens of a part of the answer: their text, which may end inside a character, and numbers.
function tokens_of(choice, decode) {
  const l = choice.logprobs, text = bytes => decode.decode(new Uint8Array(bytes), {stream: true});
  const bytes_of = token => token.startsWith("bytes:")  // bytes:\xE2\x80, a part of a character
      ? token.split("\\x").slice(1).map(b => parseInt(b, 16)) : new TextEncoder().encode(token);
  if (about.way != "chat")
    return l.tokens.map((t, i) => [text(bytes_of(t)), l.pi_logprobs[i], l.target_logprobs[i]]);
  return l.content.map(c => [text(c.bytes), c.pi_logprob, c.target_logprob]);
}
function take(choice, decode, a) {
  const number = x => x === null ? "0" : Math.exp(x).toPrecision(3);
  tokens_of(choice, decode).forEach(([piece, pi, p], i) => {
    const kind = choice.origins[i], from = a.text.length;
    const origin = kind == "draft" ? "drafted and accepted" : "from the target";
    a.text += piece;
    a.tokens.push({from, to: a.text.length, kind, says: `${JSON.stringify(piece)}: ${origin}; ` +
        `probability ${number(pi)} under pi, ${number(p)} under p`});
  });
  a.cut ||= choice.finish_reason == "length";
}
const rates = {};  // tokens a second of the last answer with drafts, and of the last without
function summary(usage, a, seconds, way) {
  const n = usage.completion_tokens, short = x => x >= 100 ? x.toFixed(0) : x.toPrecision(2);
  const each = x => x > 0 && isFinite(x) ? short(x) : "-";
  rates[way.draft == "none" ? "plain" : "drafted"] = n / seconds;
  return `${n} tokens, ${each(n / seconds)} a second, ${each(n / usage.steps)} a call` +
      (usage.acceptance === null ? ""
          : `; ${(100 * usage.acceptance).toFixed(0)} % of drafted tokens accepted`) +
      (rates.plain && rates.drafted
          ? `; with drafts ${each(rates.drafted / rates.plain)} times as fast as without` : "") +
      (a.cut ? `; cut after ${n} tokens, the most that were asked for` : "");
}
async function ask(prompt, way, before, place) {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = "Bearer " + key;
  const path = about.way == "chat" ? "v1/chat/completions" : "v1/completions";
  const begin = performance.now();
  const reply = await fetch(path, {method: "POST", headers, body: body_of(prompt, way, before),
                                   signal: going.signal});
  if (reply.status == 401) {
    key = window.prompt("The server's key") || "";
    if (key) return ask(prompt, way, before, place);
  }
  const refused = () => `${reply.status} ${reply.statusText}`;  // a proxy may answer without JSON
  if (!reply.ok) throw new Error(await reply.json().then(r => r.error.message, refused));
  follow(() => add(place, "div", "faint", Object.values(way).reverse().join(", drafts: ")));
  const box = add(place, "div", "answer"), usage = add(place, "div", "faint usage");
  const decode = new TextDecoder(), bytes = new TextDecoder(), a = {text: "", tokens: []};
  const reader = reply.body.getReader();
  for (let left = "";;) {
    const {done, value} = await reader.read();
    if (done && a.whole) return a.text;
    if (done) throw new Error("the server broke off");
    left += bytes.decode(value, {stream: true});
    const lines = left.split("\n");
    left = lines.pop();
    follow(() => {
      for (const line of lines) {
        if (line.startsWith(": read")) usage.textContent = line.slice(2) + " of the prompt";
        a.whole ||= line.startsWith("data: [DONE]");
        if (!line.startsWith("data: {")) continue;
        const part = JSON.parse(line.slice(6));
        if (part.error) throw new Error(part.error.message);
        for (const choice of part.choices) take(choice, decode, a);
        const seconds = (performance.now() - begin) / 1000;
        usage.textContent = part.usage ? summary(part.usage, a, seconds, way) : "";
      }
      render(box, a);
    });
  }
}
// What may come after an answer: the same without drafts, and more of a text.
function offer(prompt, ways, before, answer) {
  const place = add($("texts"), "p", "offers");
  if (!ways.some(way => way.draft == "none"))
    add(place, "button", "plain", "Without drafts, to compare the speed")
        .addEventListener("click", event => {
          if (going) return;
          event.target.remove();
          const policy = about.policies.length > 0 ? {policy: "lossless"} : {};
          send(prompt, [{draft: "none", ...policy}], before);
        });
  place.append(" ");
  if (about.way != "chat")
    add(place, "button", "", "Go on").addEventListener("click", () => {
      $("prompt").value = prompt + answer;
      $("prompt").focus();
    });
}
// Sends a prompt. `again`: the conversation before it, if it was answered before; else null.
async function send(prompt, ways, again) {
  const before = again || messages;
  if (!prompt || going) return;
  going = new AbortController();
  if ($("first")) $("first").remove();
  $("send").disabled = true;
  $("stop").disabled = false;
  const answers = [];
  add($("texts"), "div", "user", prompt);
  const places = add($("texts"), "div", "answers");
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
  if (!again) $("prompt").value = "";
  try {  // one after the other: neither takes the other's time
    for (const way of ways) {
      follow(() => add(places, "div"));
      answers.push(await ask(prompt, way, before, places.lastElementChild));
    }
    const turns = [{role: "user", content: prompt}, {role: "assistant", content: answers[0]}];
    if (!again) messages = messages.concat(turns);
    if (!again) follow(() => offer(prompt, ways, before, answers[0]));
  } catch (e) {
    const says = e.name == "AbortError" ? "stopped" : e.message;
    const failed = add(places.lastElementChild || places, "div", "failed", says);
    failed.setAttribute("role", "alert");
    failed.scrollIntoView({block: "start"});
    if (!$("prompt").value && answers.length == 0) $("prompt").value = prompt;
  }
  going = null;
  $("send").disabled = false;
  $("stop").disabled = true;
}
$("form").addEventListener("submit", event => {
  event.preventDefault();
  send($("prompt").value, $("compare").checked ? [left(), right()] : [left()], null);
});
$("stop").addEventListener("click", () => going.abort());
$("prompt").addEventListener("keydown", event => {
  if (event.key == "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("texts").addEventListener("mouseover", event => {
  if (event.target.says && !pinned) $("token").textContent = event.target.says;
});
$("texts").addEventListener("click", event => {
  if (pinned) pinned.classList.remove("marked");
  pinned = event.target.says && event.target != pinned ? event.target : null;
  if (pinned) pinned.classList.add("marked");
  $("token").textContent = event.target.says || "";
});
</script>
</html>
)html";

}  // namespace detail

// Where there is a key, and none was given: says nothing of the server, and becomes the other page.
inline constexpr char page_that_asks_for_key[] = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>specagg</title>
<p>This server asks for a key. Load the page again to give it.</p>
<script>
(async () => {
  for (let says = "The server's key";; says = "That key is wrong. The server's key") {
    const key = window.prompt(says);
    if (!key) return;
    const reply = await fetch("", {headers: {Authorization: "Bearer " + key}});
    if (reply.status == 401) continue;
    const page = await reply.text();
    document.open();
    window.server_key = key;
    document.write(page);
    document.close();
    return;
  }
})();
</script>
</html>
)html";

// about: "way" ("chat" or "completions", the one that the model has), "model", "drafts" (the
// default first) and "policies" (empty where only lossless works): "name", "keys" and "law" as the
// command line's help has them, and "example", the parameters to begin with.
inline std::string page_of(const json& about) {
  std::string facts;
  for (const char c : about.dump(-1, ' ', false, json::error_handler_t::replace))
    facts += c == '<' ? std::string("\\u003c") : std::string(1, c);  // no name ends the script
  return detail::page_begin + facts + detail::page_end;
}
