// SPDX-License-Identifier: Apache-2.0
// The page under /: a conversation, or a text that goes on, with the origin of each token.
#pragma once
#include <string>

// way: "chat" or "completions", the one that the model has.
inline std::string page_of(const std::string& way) {
  static const std::string before = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>specagg</title>
<style>
  body { font: 16px/1.5 sans-serif; max-width: 50em; margin: 1em auto; padding: 0 1em }
  #texts p { white-space: pre-wrap; margin: .5em 0 }
  .user { color: #555 }
  .draft { background: #c8f0c8 }
  .target { background: #ffd9b0 }
  .failed { color: #b00 }
  textarea { width: 100%; height: 4em; box-sizing: border-box; font: inherit }
  input { width: 6em }
  #usage { color: #555 }
</style>
<h1>specagg</h1>
<p><span class="draft">drafted and accepted</span> <span class="target">from the target</span>
(point at a token for its log-probability under pi and p)</p>
<div id="texts"></div>
<form id="form">
  <textarea id="prompt" autofocus></textarea>
  <label>temperature <input id="temperature" type="number" value="0.7" min="0" step="0.1"></label>
  <label>tokens <input id="max_tokens" type="number" value="128" min="1"></label>
  <label>seed <input id="seed" type="number" value="0" min="0"></label>
  <label>drafts <select id="draft"><option>default<option>none<option>lookup<option>counts
    <option>model<option>head</select></label>
  <button id="send">Send</button> <button id="stop" type="button" disabled>Stop</button>
</form>
<p id="usage"></p>
<script>
const way = ")html";
  static const std::string after = R"html(";
const $ = id => document.getElementById(id);
let messages = [], key = "", going = null;

function paragraph(kind, text) {
  const p = document.createElement("p");
  p.className = kind;
  p.textContent = text;
  $("texts").append(p);
  return p;
}
function asked(prompt) {
  const body = {stream: true, stream_options: {include_usage: true}, origins: true,
                temperature: +$("temperature").value, max_tokens: +$("max_tokens").value,
                seed: +$("seed").value};
  if ($("draft").value != "default") body.draft = $("draft").value;
  if (way == "chat") {
    body.messages = messages.concat({role: "user", content: prompt});
    body.logprobs = true;
  } else {
    body.prompt = prompt;
    body.logprobs = 0;
  }
  return body;
}
// The tokens of a part of the answer: their text, which may end inside a character, and numbers.
function tokens_of(choice, decode) {
  const l = choice.logprobs, text = bytes => decode.decode(new Uint8Array(bytes), {stream: true});
  const bytes_of = token => token.startsWith("bytes:")  // bytes:\xE2\x80, a part of a character
      ? token.split("\\x").slice(1).map(b => parseInt(b, 16)) : new TextEncoder().encode(token);
  if (way != "chat")
    return l.tokens.map((t, i) => [text(bytes_of(t)), l.pi_logprobs[i], l.target_logprobs[i]]);
  return l.content.map(c => [text(c.bytes), c.pi_logprob, c.target_logprob]);
}
async function ask(prompt) {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = "Bearer " + key;
  going = new AbortController();
  const path = way == "chat" ? "v1/chat/completions" : "v1/completions";
  const reply = await fetch(path, {method: "POST", headers, body: JSON.stringify(asked(prompt)),
                                   signal: going.signal});
  if (reply.status == 401) {
    key = window.prompt("The server's key") || "";
    return key ? ask(prompt) : "";
  }
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  paragraph("user", prompt);
  const p = paragraph("answer", ""), decode = new TextDecoder(), bytes = new TextDecoder();
  const reader = reply.body.getReader();
  let left = "", text = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return text;
    left += bytes.decode(value, {stream: true});
    const lines = left.split("\n");
    left = lines.pop();
    for (const line of lines) {
      if (line.startsWith(": read")) $("usage").textContent = line.slice(2) + " of the prompt";
      if (!line.startsWith("data: {")) continue;
      const part = JSON.parse(line.slice(6));
      if (part.error) throw new Error(part.error.message);
      if (part.usage) {
        const a = part.usage.acceptance;
        $("usage").textContent = `${part.usage.completion_tokens} tokens in ${part.usage.steps} ` +
            "steps" + (a === null ? "" : `; ${(100 * a).toFixed(0)} % of drafted tokens accepted`);
      }
      if (part.choices.length > 0) $("usage").textContent = "";  // the prompt is read
      for (const choice of part.choices) {
        text += way == "chat" ? choice.delta.content : choice.text;
        tokens_of(choice, decode).forEach(([piece, pi, p_], i) => {
          const span = document.createElement("span");
          span.className = choice.origins[i];
          span.textContent = piece;
          span.title = `pi ${pi.toFixed(3)}, p ${p_ === null ? "-inf" : p_.toFixed(3)}`;
          p.append(span);
        });
      }
    }
  }
}
$("form").addEventListener("submit", async event => {
  event.preventDefault();
  const prompt = $("prompt").value;
  if (!prompt) return;
  $("send").disabled = true;
  $("stop").disabled = false;
  $("usage").textContent = "";
  try {
    const text = await ask(prompt);
    messages.push({role: "user", content: prompt}, {role: "assistant", content: text});
    $("prompt").value = way == "chat" ? "" : prompt + text;
  } catch (e) {
    paragraph("failed", e.name == "AbortError" ? "stopped" : e.message);
  }
  $("send").disabled = false;
  $("stop").disabled = true;
});
$("stop").addEventListener("click", () => going.abort());
$("prompt").addEventListener("keydown", event => {
  if (event.key == "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
</script>
</html>
)html";
  return before + way + after;
}
