// SPDX-License-Identifier: Apache-2.0
// The page: it shows state, asks the library (library.js, from explorer.cpp) and draws the answers.
"use strict";
const $ = (id) => document.getElementById(id);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const drawn = (name, attributes, ...children) => {  // of SVG
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

const EXAMPLES = {
  "the models agree": [[5, 3, 1, 0.5, 0.5], [5.5, 2.5, 1, 0.5, 0.5]],
  "only the target is sure": [[3, 3, 2, 1, 1], [0.5, 8, 0.5, 0.5, 0.5]],
  "both are unsure": [[2.2, 2, 2, 2, 1.8], [1.8, 2, 2.2, 2, 2]],
  "the draft has a tail": [[6, 1.5, 1, 0.8, 0.7], [8.5, 1.4, 0.1, 0, 0]],
};
const usual = {
  q: EXAMPLES["only the target is sure"][0], p: EXAMPLES["only the target is sure"][1],
  a: {name: "token-v3", parameters: {alpha: 0.3}}, b: {name: "lossy", parameters: {alpha: 0.3}},
  verify: "token", gamma: 4, seed: 1, shown: 0, shape: "2,2", propose: "greedy",
  equation: "r = p < (1 - alpha) * max(p);\neta = sum(r * q);\nq * (1 - r) + eta * p", alpha: 0.3, tokens: "",
  sites: {acceptance: 0.8, gamma: 4, vocabulary: 32000, bits: 16, up: 10, down: 50, delay: 10, t_slm: 10, t_llm: 50},
};
const SITES = {
  acceptance: "Acceptance", gamma: "Drafted tokens", vocabulary: "Vocabulary", bits: "Bits a probability",
  up: "Up, Mbit/s", down: "Down, Mbit/s", delay: "Delay, ms one way", t_slm: "Draft step, ms", t_llm: "Target step, ms",
};
let state = structuredClone(usual), library = null, catalogue = [];

function ask(question) {
  const found = JSON.parse(library.ccall("specagg_explore", "string", ["string"], [JSON.stringify(question)]));
  if (found && found.error) throw new Error(found.error);
  return found;
}
const normal = (row) => {
  const sum = row.reduce((a, b) => a + b, 0);
  return row.map((x) => x / sum);
};
const percent = (x) => (100 * x).toFixed(1) + "%";
const number = (x, digits = 4) => (x === null || x === undefined ? "infinite" : Number(x).toFixed(digits).replace(/^-(?=[0.]*$)/, ""));
// A policy with parameters worth trying: with some defaults a policy is lossless.
const to_try = (name) => ({name, parameters: Object.fromEntries(catalogue.find((line) => line.name === name).parameters
  .filter((one) => "worth" in one).map((one) => [one.name, one.worth]))});
const label = (policy) => ("equation" in policy ? "your equation" : policy.name);
const attempt = (where, f) => {  // what f throws is said there
  try {
    $(where).classList.remove("bad");
    return f();
  } catch (e) {
    $(where).textContent = e.message;
    $(where).classList.add("bad");
    return null;
  }
};

// What is said of a field that was just changed is seen without scrolling.
const in_view = (id) => $(id).classList.contains("bad") && $(id).scrollIntoView({block: "nearest"});

// ---- the address holds the state ------------------------------------------------------------
function remember() {  // what is not as usual; rows to 5 digits
  const round = (_, x) => (typeof x === "number" && !Number.isInteger(x) ? Number(x.toPrecision(5)) : x), short = {};
  for (const key in state)
    if (JSON.stringify(state[key], round) !== JSON.stringify(usual[key])) short[key] = state[key];
  history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(short, round)));
}
// What an address may say; anything else is as usual.
const is_row = (x) => Array.isArray(x) && x.length > 1 && x.length <= 32 && x.every((y) => Number.isFinite(y) && y >= 0) &&
  x.some((y) => y > 0) && Number.isFinite(x.reduce((a, b) => a + b));
const is_text = (x) => typeof x === "string";
const is_policy = (x) => {
  if (is_text(x?.equation)) return Number.isFinite(x.alpha);
  const line = catalogue.find((one) => one.name === x?.name);
  return line && x.parameters?.constructor === Object && Object.entries(x.parameters).every(([key, value]) =>
    ["number", "boolean"].includes(typeof value) && line.parameters.some((one) => one.name === key));
};
const is_whole = (low, high) => (x) => Number.isInteger(x) && x >= low && x <= high;
const is_of = (id) => (x) => [...$(id).options].some((one) => one.value === x);
const SOUND = {
  a: is_policy, b: is_policy, verify: is_of("verify"), gamma: is_whole(1, 16), seed: is_whole(0, 4294967295),
  shown: is_whole(0, 1000), shape: is_text, propose: is_of("propose"), equation: is_text, alpha: Number.isFinite, tokens: is_text,
};
function recall() {
  let given = null;
  try {
    given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
  } catch {
    // an empty or damaged address
  }
  const {q, p} = {...usual, ...given};
  if (given?.constructor !== Object || !is_row(q) || !is_row(p) || q.length !== p.length) return;
  state = {...structuredClone(usual), q: [...q], p: [...p]};
  for (const key in SOUND) if (SOUND[key](given[key])) state[key] = given[key];
  for (const key in SITES) if (Number.isFinite(given.sites?.[key])) state.sites[key] = given.sites[key];
}

// ---- rows -----------------------------------------------------------------------------------
function set_probability(key, token, value) {  // the others keep their proportions
  const row = normal(state[key]), rest = 1 - row[token];
  state[key] = row.map((x, v) => (v === token ? value : rest > 0 ? (x * (1 - value)) / rest : (1 - value) / (row.length - 1)));
}
function build_rows() {
  const head = element("div", {className: "token head"});
  head.append(...["token", "q, draft", "p, target", "", "residual", ""].map((text) => element("span", {textContent: text})));
  const lines = state.q.map((_, v) => {
    const slider = (key) => {
      const input = element("input", {type: "range", min: 0, max: 1, step: 0.001});
      input.setAttribute("aria-label", `${key} of token ${v}`);
      input.dataset.row = key;
      input.dataset.token = v;
      input.addEventListener("input", () => {
        set_probability(key, v, Number(input.value));
        changed();
      });
      return element("div", {className: `slider is-${key}`}, input, element("output", {ariaLive: "off"}));  // #summary says it
    };
    const bar = (which) => element("div", {className: `bar is-${which}`},
      element("div", {className: "track"}, element("i")), element("span"));
    return element("div", {className: "token"}, element("span", {textContent: v}), slider("q"), slider("p"), bar("a"), bar("residual"),
      bar("b"));
  });
  $("rows").replaceChildren(head, ...lines);
}
function show_rows(a, b) {
  if ($("rows").children.length !== state.q.length + 1) build_rows();
  for (const input of $("rows").querySelectorAll("input")) {
    const x = normal(state[input.dataset.row])[Number(input.dataset.token)];
    if (document.activeElement !== input || Math.abs(Number(input.value) - x) > 0.0006) input.value = x;
    input.nextSibling.textContent = percent(x);
  }
  for (const [which, law] of [["a", a?.pi], ["residual", a?.residual], ["b", b?.pi]])
    $("rows").querySelectorAll(`.bar.is-${which}`).forEach((bar, v) => {
      bar.querySelector("i").style.width = law ? 100 * law[v] + "%" : "0";
      bar.querySelector("span").textContent = law ? percent(law[v]) : "";
    });
  const head = $("rows").firstChild.children;
  [head[3].textContent, head[5].textContent] = [`pi: ${label(state.a)}`, `pi: ${label(state.b)}`];
  show_difference(a, b);
  $("size").value = state.q.length;
}
// In words: to which tokens the two laws give what.
function show_difference(a, b) {
  if (!a || !b) {
    $("summary").replaceChildren();
    return $("difference").replaceChildren();
  }
  const costs = (x, policy) => `${label(policy)} accepts ${percent(x.acceptance)}, TV(pi, p) ${number(x.distance)}`;
  $("summary").textContent = `${costs(a, state.a)}; ${costs(b, state.b)}; lossless would accept ${percent(1 - a.models_distance)}.`;
  const tokens = (f) => a.pi.map((x, v) => [x - b.pi[v], v]).filter(([d]) => f(d)).map(([d, v]) => `${v} (by ${(100 * Math.abs(d)).toFixed(1)} points)`);
  const said = [["more to", tokens((d) => d > 0.0005)], ["less to", tokens((d) => d < -0.0005)]].filter(([, list]) => list.length);
  $("difference").textContent = said.length
    ? `${label(state.a)} gives ${said.map(([word, list]) => `${word} ${list.join(", ")}`).join("; ")} than ${label(state.b)}.`
    : "Both have the same law on these rows.";
}
// A row from a field of text; a logit of -inf (a masked token) has probability 0. Probabilities that do not sum to 1 are
// divided by their sum, and $("paste-note") says so.
function pasted(id, field) {
  const words = $(id).value.match(/[^\s,;[\]]+/g) ?? [], logits = $("paste-kind").value === "logits";
  if (words.length < 2 || words.length > 32) throw new Error(`${field}: 2 to 32 numbers, separated by commas or spaces; here are ${words.length}.`);
  const row = words.map((word) => {
    const x = logits && /^["']?-inf(inity)?["']?$/i.test(word) ? -Infinity : Number(word);
    if (Number.isNaN(x) || x === Infinity || (!logits && x < 0))
      throw new Error(`${field}: "${word.slice(0, 40)}" is no ${logits ? "logit" : "probability"}.`);
    return x;
  });
  const top = Math.max(...row);
  if (top === (logits ? -Infinity : 0)) throw new Error(`${field}: no token has a probability above 0.`);
  if (logits) return row.map((x) => Math.exp(x - top));
  const sum = row.reduce((a, b) => a + b / top, 0) * top;
  if (Math.abs(sum - 1) > 1e-3) $("paste-note").append(`${field}: the probabilities sum to ${Number(sum.toPrecision(4))}, so each was divided by that. `);
  return row.map((x) => x / top);
}
function resize(size) {
  const fit = (row) => Array.from({length: size}, (_, v) => (v < row.length ? row[v] : 0.02));
  state.q = normal(fit(normal(state.q)));
  state.p = normal(fit(normal(state.p)));
}

// ---- policies -------------------------------------------------------------------------------
function build_policy(which) {
  const select = $("policy-" + which), chosen = state[which];
  select.replaceChildren(...catalogue.map((line) => element("option", {textContent: line.name})),
    element("option", {textContent: "your equation"}));
  select.value = label(chosen);
  const line = catalogue.find((one) => one.name === chosen.name);
  $("formula-" + which).textContent = "pi = " + (line ? line.law : chosen.equation);
  $("words-" + which).textContent = (line && specagg_words[line.name]) ?? "";  // of docs/policies.md, from tools/explorer/build
  $("parameters-" + which).replaceChildren(...(line ? line.parameters : [{name: "alpha", value: 0, low: 0, high: 1}]).map((one) => {
    const given = line ? chosen.parameters[one.name] : chosen.alpha;
    const set = (x) => {
      if (line) chosen.parameters[one.name] = x;
      else chosen.alpha = x;
      changed();
    };
    if ("flag" in one) {
      const box = element("input", {type: "checkbox", checked: given ?? one.flag});
      box.addEventListener("change", () => set(box.checked));
      return element("label", {}, box, " " + one.name);
    }
    const value = given ?? (one.word ? null : one.value);
    const exact = element("input", {type: "number", step: "any", value: value ?? "", placeholder: one.word ?? ""});
    exact.setAttribute("aria-label", one.name);
    const parts = [element("span", {textContent: one.name})];
    if (!one.word) {  // a parameter without bounds: what is usual, and any other number beside it
      const low = Math.max(one.low ?? -1, -1), high = Math.min(one.high ?? 1, Math.max(1, 2 * one.value)) - (one.open ? 0.001 : 0);
      const slider = element("input", {type: "range", min: low, max: high, step: (high - low) / 200, value});
      slider.setAttribute("aria-label", one.name + ", slider");
      slider.addEventListener("input", () => {
        exact.value = slider.value;
        set(Number(slider.value));
      });
      exact.addEventListener("input", () => (slider.value = exact.value));
      parts.push(slider);
    } else {
      parts.push(element("span"));
    }
    exact.addEventListener("input", () => {
      if (Number.isFinite(exact.valueAsNumber)) return set(exact.valueAsNumber);
      if (line) delete chosen.parameters[one.name];  // the usual value
      changed();
    });
    parts.push(exact);
    return element("div", {className: "parameter"}, ...parts);
  }));
}
function show_numbers(a, b) {
  const rows = [
    ["Accepted, of one drafted token", (x) => percent(x.acceptance)],
    ["Most that any verifier accepts", (x) => percent(x.best_acceptance)],
    [`Expected tokens a call, gamma ${state.gamma}`, (x) => number(x.tokens, 3)],
    ["TV(pi, p): distance from the target", (x) => number(x.distance)],
    ["KL(pi || p)", (x) => number(x.divergence)],
    ["TV(q, p): distance of the models", (x) => number(x.models_distance)],
    ["Enumerated law: largest difference from pi", (x) => x.worst_error.toExponential(1)],
  ];
  const head = element("tr", {}, element("th", {textContent: "on these rows"}), ...[state.a, state.b].map((x) => element("th", {textContent: label(x)})));
  $("numbers").replaceChildren(head, ...rows.map(([name, f]) => element("tr", {}, element("td", {textContent: name}),
    ...[a, b].map((x) => element("td", {textContent: x ? f(x) : ""})))));
}

// ---- the curve of all policies --------------------------------------------------------------
const ticks = (low, high) => {  // three to seven round numbers
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({length: Math.floor(high / step + 1e-9) - first + 1}, (_, i) => (first + i) * step);
};
let curves = {rows: "", found: []};  // of the rows that are shown; policies change nothing of it
function show_curve(a, b) {
  const asked = {ask: "curves", q: normal(state.q), p: normal(state.p)}, rows = JSON.stringify(asked);
  if (rows !== curves.rows) curves = {rows, found: ask(asked)};
  const found = curves.found;
  const all = found.flatMap((one) => one.points);
  const top = Math.max(0.05, ...all.map((x) => x[2])), least = Math.min(0.95, ...all.map((x) => x[1]));
  const x = (acceptance) => 50 + (570 * (acceptance - least)) / (1 - least), y = (distance) => 360 - (330 * distance) / top;
  const parts = [drawn("title", {}, "")];  // the name of the curve that a mouse is near to
  for (const at of ticks(least, 1))
    parts.push(drawn("text", {x: x(at), y: 378, "text-anchor": at > 0.98 ? "end" : "middle"}, percent(at).replace(".0", "")));
  for (const up of ticks(0, top))
    parts.push(drawn("text", {x: 44, y: y(up) + 4, "text-anchor": "end"}, Number(up.toFixed(3))),
      drawn("line", {x1: 50, x2: 620, y1: y(up), y2: y(up), stroke: "var(--line)"}));
  parts.push(drawn("text", {x: 335, y: 396, "text-anchor": "middle"}, "accepted"),
    drawn("text", {x: 6, y: 14}, "TV(pi, p)"));
  const order = (one) => (one.name === state.a.name ? 2 : one.name === state.b.name ? 1 : 0);
  for (const one of [...found].sort((s, t) => order(s) - order(t))) {
    const colour = ["var(--curve)", "var(--other)", "var(--pi)"][order(one)];
    const line = drawn("polyline", {points: one.points.map((t) => `${x(t[1])},${y(t[2])}`).join(" "), fill: "none",
      stroke: colour, "stroke-width": order(one) ? 2.5 : 1.5, "data-policy": one.name});
    parts.push(line);
    const only = one.points.length === 1 ? one.points[0] : null;
    if (only) parts.push(drawn("circle", {cx: x(only[1]), cy: y(only[2]), r: 4, fill: colour}));
  }
  for (const [point, colour, policy] of [[b, "var(--other)", state.b], [a, "var(--pi)", state.a]]) {
    if (!point) continue;
    const cx = x(point.best_acceptance), cy = y(point.distance), left = cx > 480;
    parts.push(drawn("circle", {cx, cy, r: 6, fill: colour}));
    const name = drawn("text", {x: cx + (left ? -10 : 10), y: cy - 8, "text-anchor": left ? "end" : "start"}, label(policy));
    name.style.fill = colour;
    parts.push(name);
  }
  $("curve").replaceChildren(...parts);
}

// The policy whose curve is nearest to a place on the screen, if a finger there can mean it.
function nearest_curve(x, y) {
  let name = null, least = 24;
  for (const line of $("curve").querySelectorAll("polyline")) {
    const points = [...line.points].map((point) => point.matrixTransform(line.getScreenCTM()));
    for (let i = 0; i < points.length; ++i) {
      const a = points[Math.max(i - 1, 0)], b = points[i], dx = b.x - a.x, dy = b.y - a.y;
      const part = ((x - a.x) * dx + (y - a.y) * dy) / (dx * dx + dy * dy) || 0, t = Math.min(1, Math.max(0, part));
      const far = Math.hypot(a.x + t * dx - x, a.y + t * dy - y);
      if (far < least) [name, least] = [line.dataset.policy, far];
    }
  }
  return name;
}

// ---- a step, a tree, an equation, an audit, two sites ------------------------------------------
let round = null;
function show_step() {
  round = attempt("step-result", () => ask({ask: "step", policy: state.a, verify: state.verify, q: normal(state.q),
    p: normal(state.p), gamma: state.gamma, seed: state.seed}));
  if (!round) return $("decisions").replaceChildren();
  const said = (one) => {
    if (one.what === "draft") return `Position ${one.position}: the draft model draws token ${one.token} from q.`;
    if (one.what === "coin")
      return `Position ${one.position}: accept with probability ${number(one.probability)}; the random number is ${
        number(one.number)}: ${one.accepted ? "accepted" : "rejected"}.`;
    if (one.what === "residual") return `Position ${one.position}: token ${one.token} is drawn from the residual.`;
    if (one.what === "bonus") return `Position ${one.position}: all were accepted; token ${one.token} is the bonus.`;
    return `Position ${one.position}: token ${one.token} is drawn.`;
  };
  const count = Math.min(state.shown, round.decisions.length);
  $("decisions").replaceChildren(...round.decisions.slice(0, count).map((one) => element("li", {textContent: said(one),
    className: one.what !== "coin" ? "" : one.accepted ? "good" : "bad"})));
  const whole = count === round.decisions.length;
  $("step-result").textContent = whole
    ? `Drafted ${round.drafted.join(" ")}. Accepted ${round.accepted}. Emitted ${round.emitted.join(" ")}.`
    : `${round.decisions.length - count} decisions are left.`;
  $("step-next").disabled = $("step-all").disabled = whole;
}
function show_tree() {
  const found = attempt("tree-result", () => {
    const shape = state.shape.split(/[\s,]+/).filter(Boolean), wrong = shape.find((word) => !/^[1-4]$/.test(word));
    if (wrong !== undefined || !shape.length)
      throw new Error(`Children at each level: ${wrong ? `"${wrong.slice(0, 40)}" is not 1 to 4` : "there are none"}. 2,2 is a tree of two levels.`);
    return ask({ask: "tree", policy: state.a, q: normal(state.q), p: normal(state.p), shape: shape.map(Number),
      propose: state.propose, seed: state.seed});
  });
  if (!found) {
    $("tree").setAttribute("viewBox", "0 0 400 1");
    return $("tree").replaceChildren();
  }
  const {nodes, last, token} = found.drawn, path = [];
  for (let n = last; n !== 0; n = nodes[n].parent) path.unshift(n);
  draw_tree(nodes, new Set([0, ...path]));
  const tokens = path.map((n) => nodes[n].token).join(" ");
  $("tree-result").textContent = `This tree: ${tokens ? `the path ${tokens} is accepted` : "no token is accepted"}, then token ${
    token} is drawn. Over all trees that can be drafted, the accepted tokens a call are ${number(found.traversal.accepted)} by traversal, ${
    number(found.recursive.accepted)} by recursive rejection, and the emitted law is pi: the largest difference is ${
    Math.max(found.traversal.worst_error, found.recursive.worst_error).toExponential(1)}.`;
}
// The root is at the left, and what is accepted is drawn in another colour and width.
function draw_tree(nodes, accepted) {
  const levels = Math.max(...nodes.map((n) => n.depth)), children = nodes.map(() => []);
  nodes.forEach((n, i) => i && children[n.parent].push(i));
  let leaves = 0;
  const y = [];
  for (let i = nodes.length - 1; i >= 0; --i)  // children have larger numbers than their parent
    y[i] = children[i].length ? (y[children[i][0]] + y[children[i].at(-1)]) / 2 : -44 * ++leaves;
  const height = 44 * (leaves + 1), x = (i) => 20 + (nodes[i].depth * 310) / levels;
  const lines = [], circles = [];
  nodes.forEach((node, i) => {
    const yes = accepted.has(i), colour = yes ? "var(--good)" : "var(--soft)", at = {cx: x(i), cy: height + y[i]};
    if (i) lines.push(drawn("line", {x1: x(node.parent), y1: height + y[node.parent], x2: at.cx, y2: at.cy, stroke: colour,
      "stroke-width": yes ? 3 : 1}));
    circles.push(drawn("circle", {...at, r: i ? 13 : 5, fill: "var(--back)", stroke: colour, "stroke-width": yes ? 3 : 1}));
    if (!i) return;
    circles.push(drawn("text", {x: at.cx, y: at.cy + 4.5, "text-anchor": "middle", class: "name"}, node.token),
      children[i].length ? drawn("text", {x: at.cx, y: at.cy + 26, "text-anchor": "middle"}, percent(node.accepted))
        : drawn("text", {x: at.cx + 18, y: at.cy + 4.5}, percent(node.accepted)));
  });
  $("tree").setAttribute("viewBox", `0 0 400 ${height}`);
  $("tree").replaceChildren(...lines, ...circles);
}
function check_equation() {  // whether it is a law
  return attempt("equation-result", () => {
    const found = ask({ask: "equation", equation: state.equation, alpha: state.alpha});
    const numbers = (row) => row.map((x) => number(x, 3)).join(", ");
    $("equation-result").className = found.passed ? "good" : "bad";
    $("equation-result").textContent = found.passed
      ? `A law: on all of ${found.pairs} pairs of rows (undefined on ${found.undefined}) the emitted tokens have it, to ${
        found.worst_error.toExponential(1)}.`
      : found.example
        ? `No law: for q = ${numbers(found.example.q)} and p = ${numbers(found.example.p)}, pi = ${
          numbers(found.example.pi)}, whose sum is ${number(found.example.sum, 3)}. (${found.no_law} of ${found.pairs} pairs.)`
        : `No law anywhere: undefined on ${found.undefined} of ${found.pairs} pairs.`;
    return found.passed;
  });
}
function run_audit() {
  attempt("audit-result", () => {
    const law = ask({ask: "law", policy: state.a, verify: "token", q: normal(state.q), p: normal(state.p)}).pi;
    const tokens = (state.tokens.match(/\S+/g) ?? []).map((word) => {
      if (!/^\d+,?$/.test(word)) throw new Error(`"${word.slice(0, 40)}" is no token`);
      return parseInt(word, 10);
    });
    if (!tokens.length) throw new Error("There are no tokens.");
    const found = ask({ask: "audit", law, tokens});
    $("audit-result").className = found.fits ? "good" : "bad";
    $("audit-result").textContent = `${found.fits ? "Fits" : "Does not fit"} pi of ${label(state.a)}: ${found.samples} tokens, ` +
      `distance ${number(found.distance)} (a correct sampler: ${number(found.expected_distance)}), p-value ${
        found.p_value.toPrecision(3)}. ` + (found.detectable_tv === null ? "Too few tokens to find any bias surely."
        : `A bias of ${number(found.detectable_tv)} or more would be found.`);
  });
}
// Tokens of law pi; or of a sampler that draws from p after a rejection, which doubles what p has beyond q.
function emit(biased) {
  const q = normal(state.q);
  const {pi} = ask({ask: "law", policy: state.a, verify: "token", q, p: normal(state.p)});
  const rejected = 1 - q.reduce((sum, x, v) => sum + Math.min(x, pi[v]), 0);
  const law = biased ? q.map((x, v) => Math.min(x, pi[v]) + rejected * pi[v]) : pi;
  state.tokens = Array.from({length: 2000}, () => {
    let u = Math.random(), v = 0;
    while (v + 1 < law.length && u >= law[v]) u -= law[v++];
    return v;
  }).join(" ");
  $("tokens").value = state.tokens;
  run_audit();
}
function show_sites() {
  const found = attempt("sites-error", () => {
    for (const [key, text] of Object.entries(SITES)) if (!Number.isFinite(state.sites[key])) throw new Error(`${text}: no number.`);
    try {
      return ask({ask: "sites", ...state.sites});
    } catch (e) {  // the library names its member
      throw new Error(e.message.replace(/^\w+(?=:)/, (key) => SITES[key] ?? key));
    }
  });
  if (!found) {
    $("sites").replaceChildren();
    return $("sides").replaceChildren();
  }
  $("sites-error").textContent = "";
  const best = Math.max(...found.map((x) => x.speedup));
  const cells = (x) => [x.protocol, number(x.speedup, 2), number(x.round_ms, 1), number(x.tokens, 2),
    x.bytes_up.toLocaleString("en"), x.bytes_down.toLocaleString("en")];
  $("sites").replaceChildren(
    element("tr", {}, ...["Protocol", "Speed-up", "Round, ms", "Tokens a round", "Bytes up", "Bytes down"].map(
      (text) => element("th", {textContent: text}))),
    ...found.map((x) => element("tr", {className: x.speedup === best && best > 1 ? "good" : ""},
      ...cells(x).map((text) => element("td", {textContent: text})))));
  const side = ask({ask: "sides", ...state.sites});
  const faster = side.device < side.server ? "device" : side.server < side.device ? "server" : "";
  $("sides").textContent = "If each has a model, and every token has the law of both (DRAGON), each draft accepted with this probability: " +
    `${number(side.device, 1)} ms a token if the device aggregates, ${number(side.server, 1)} ms if the server does. ` +
    (faster ? `The ${faster} should aggregate.` : "Either may aggregate.");
}

// ---- what happens when --------------------------------------------------------------------------
let soon = 0, later = 0;
function changed() {
  remember();
  const rows = {q: normal(state.q), p: normal(state.p), verify: state.verify, gamma: state.gamma};
  for (const id of ["error", "audit-result"]) $(id).textContent = "";  // of other rows or policies
  const found = ["a", "b"].map((which) => attempt("error", () => ask({ask: "law", policy: state[which], ...rows})));
  show_rows(...found);
  show_numbers(...found);
  clearTimeout(soon);
  clearTimeout(later);
  soon = setTimeout(() => show_curve(...found));  // after what is above was painted
  later = setTimeout(() => {  // a tree may take longer, so not while a bar moves
    show_step();
    show_tree();
  }, 60);
}
function listen() {
  const on = (id, event, f) => $(id).addEventListener(event, f);
  // A whole number of a field. For another one the nearest is used, and the field and the line beside it say so.
  const whole = (id, low, high, before) => {
    const x = $(id).valueAsNumber, used = Number.isFinite(x) ? Math.min(high, Math.max(low, Math.round(x))) : before;
    $(id + "-note").textContent = x === used ? "" : `${Number.isFinite(x) ? x : "That"} is no whole number from ${low} to ${high}: ${used} is used.`;
    if (x !== used) $(id + "-note").scrollIntoView({block: "nearest"});
    return ($(id).value = used);
  };
  $("example").append(element("option", {textContent: "choose…", value: ""}),
    ...Object.keys(EXAMPLES).map((name) => element("option", {textContent: name})));
  on("example", "change", () => {
    if ($("example").value) [state.q, state.p] = EXAMPLES[$("example").value].map((row) => [...row]);
    changed();
  });
  on("size", "change", () => (resize(whole("size", 2, 32, state.q.length)), changed()));
  on("paste-open", "click", () => {
    $("paste").hidden = !$("paste").hidden;
    $("paste-open").setAttribute("aria-expanded", String(!$("paste").hidden));
  });
  on("paste-use", "click", () => attempt("paste-error", () => {
    $("paste-note").replaceChildren();
    const q = pasted("paste-q", "Draft model"), p = pasted("paste-p", "Target model");
    if (q.length !== p.length) throw new Error(`${q.length} and ${p.length} numbers: both rows have one vocabulary.`);
    [state.q, state.p] = [q, p];
    $("paste-error").textContent = "";
    changed();
  }));
  on("curve", "pointermove", (event) => {
    $("curve").querySelector("title").textContent = nearest_curve(event.clientX, event.clientY) ?? "";
  });
  on("curve", "click", (event) => {
    const name = nearest_curve(event.clientX, event.clientY);
    if (!name) return;
    state.b = to_try(name);
    build_policy("b");
    changed();
  });
  for (const which of ["a", "b"])
    on("policy-" + which, "change", () => {
      const name = $("policy-" + which).value;
      state[which] = name === "your equation" ? {equation: state.equation, alpha: state.alpha} : to_try(name);
      build_policy(which);
      changed();
    });
  on("verify", "change", () => ((state.verify = $("verify").value), changed()));
  on("gamma", "change", () => ((state.gamma = whole("gamma", 1, 16, state.gamma)), changed()));
  on("seed", "change", () => ((state.seed = whole("seed", 0, 4294967295, state.seed)), (state.shown = 0), changed()));
  on("step-next", "click", () => (++state.shown, remember(), show_step()));
  on("step-all", "click", () => ((state.shown = 1000), remember(), show_step()));
  for (const id of ["step-new", "tree-new"])
    on(id, "click", () => {
      $("seed").value = ++state.seed;
      state.shown = 0;
      remember();
      show_step();
      show_tree();
    });
  on("shape", "change", () => ((state.shape = $("shape").value), remember(), show_tree(), in_view("tree-result")));
  on("propose", "change", () => ((state.propose = $("propose").value), remember(), show_tree()));
  const edited = () => ($("equation-result").replaceChildren(), remember());  // what was said is of another equation
  on("equation", "input", () => ((state.equation = $("equation").value), edited()));
  on("equation-alpha", "input", () => ((state.alpha = Number($("equation-alpha").value) || 0), edited()));
  on("equation-check", "click", check_equation);
  on("equation-use", "click", () => {
    if (!check_equation()) return;
    state.a = {equation: state.equation, alpha: state.alpha};
    build_policy("a");
    changed();
  });
  on("tokens", "input", () => (state.tokens = $("tokens").value));
  on("audit-run", "click", run_audit);
  on("audit-right", "click", () => attempt("audit-result", () => emit(false)));
  on("audit-biased", "click", () => attempt("audit-result", () => emit(true)));
  on("copy", "click", async () => {
    remember();
    try {
      await navigator.clipboard.writeText(location.href);
      $("copied").textContent = "Copied.";
    } catch {
      $("copied").textContent = "The address bar has the link.";
    }
  });
  for (const [key, text] of Object.entries(SITES)) {
    const input = element("input", {type: "number", step: "any", value: state.sites[key]});
    input.addEventListener("input", () => {
      state.sites[key] = input.valueAsNumber;  // also if it is none: the old table is not its answer
      remember();
      show_sites();
      in_view("sites-error");
    });
    $("sites-inputs").append(element("label", {}, text + " ", input));
  }
}
function show_all() {
  for (const [id, key] of [["verify", "verify"], ["gamma", "gamma"], ["seed", "seed"], ["shape", "shape"],
    ["propose", "propose"], ["equation", "equation"], ["equation-alpha", "alpha"], ["tokens", "tokens"]])
    $(id).value = state[key];
  build_policy("a");
  build_policy("b");
  changed();
  show_sites();
}

// The site's switch between light and dark, where it was used; else the system's.
function follow_site() {
  let chosen = null;
  try {
    chosen = JSON.parse(localStorage.getItem(new URL("..", location).pathname + ".__palette"))?.color?.scheme;
  } catch {
    // a browser that keeps nothing
  }
  if (chosen) document.documentElement.style.colorScheme = chosen === "slate" ? "dark" : "light";
}

async function load() {  // what tools/explorer/build appends to library.js: WebAssembly, compressed, as text
  const bytes = Uint8Array.from(atob(specagg_program), (c) => c.charCodeAt(0));
  const program = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  return specagg_module({wasmBinary: await program.arrayBuffer()});
}
follow_site();
load().then((made) => {
  library = made;
  catalogue = ask({ask: "catalogue"});
  $("verify").replaceChildren(...ask({ask: "verifiers"}).chains.map((name) => element("option", {textContent: name})));
  recall();
  listen();
  show_all();
  window.addEventListener("hashchange", () => (recall(), show_all()));
  $("parts").replaceChildren(...[...document.querySelectorAll("h2")].map((part) => {
    const to = element("button", {textContent: part.textContent});  // not a link: the address holds the state
    to.addEventListener("click", () => part.scrollIntoView());
    return to;
  }));
  $("loading").textContent = "";
  document.body.dataset.ready = "true";
}, (e) => ($("loading").textContent = "The library could not be loaded: " + e));
