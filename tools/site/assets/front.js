// SPDX-License-Identifier: Apache-2.0
// The front page's two sliders: the library itself, from the explorer's program, says what they do.
(() => {
  const box = document.getElementById("try");
  if (!box) return;
  const $ = (id) => document.getElementById(id);
  const TARGET = [0.46, 0.27, 0.15, 0.08, 0.04], OTHER = [0.06, 0.1, 0.14, 0.3, 0.4], WORDS = ["sat", "lay", "slept", "ran", "flew"];
  const percent = (x) => (100 * x).toFixed(0) + " %";
  const bars = WORDS.map((word) => {
    const line = document.createElement("div"), name = document.createElement("span");
    name.textContent = word;
    line.append(name, ...["q", "p", "pi"].map((kind) => Object.assign(document.createElement("i"), {className: kind})));
    return line;
  });
  $("bars").replaceChildren(...bars);
  function show(library) {
    const agree = Number($("agree").value), lambda = Number($("weight").value);
    const q = TARGET.map((x, v) => agree * x + (1 - agree) * OTHER[v]);
    const question = {ask: "law", policy: {name: "ensemble", parameters: {lambda}}, q, p: TARGET};
    const found = JSON.parse(library.ccall("specagg_explore", "string", ["string"], [JSON.stringify(question)]));
    bars.forEach((line, v) => [q[v], TARGET[v], found.pi[v]].forEach((x, k) => (line.children[k + 1].style.width = `${140 * x}%`)));
    const law = lambda === 0 ? "The text has exactly the target's distribution"
      : `The text is ${percent(found.distance)} away from the target's distribution (total variation)`;
    $("said").textContent = `${percent(found.acceptance)} of drafted tokens are accepted: ${found.tokens.toFixed(2)} tokens a call of the target, with 4 drafted. ${law}.`;
  }
  const script = document.createElement("script");
  script.src = "explorer/library.js";
  script.addEventListener("load", async () => {
    const bytes = Uint8Array.from(atob(specagg_program), (c) => c.charCodeAt(0));
    const program = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
    const library = await specagg_module({wasmBinary: await program.arrayBuffer()});
    for (const id of ["agree", "weight"]) $(id).addEventListener("input", () => show(library));
    show(library);
    box.hidden = false;
  });
  document.body.append(script);
})();
