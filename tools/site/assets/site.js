// SPDX-License-Identifier: Apache-2.0
// What the theme lacks for keyboards and screen readers: names of regions, and that one can scroll in them.
window.addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre, .md-typeset pre > code"))
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
  // The theme adds the buttons of code later, as landmarks without a name.
  const named = () => document.querySelectorAll(".md-code__nav").forEach((e, i) => e.setAttribute("aria-label", `Code ${i + 1}`));
  new MutationObserver(named).observe(document.body, {childList: true, subtree: true});
  named();
});
// The menu of a narrow screen has the table of contents, too. The page's file has it once.
{
  const contents = document.querySelector(".md-nav--secondary:not([data-contents])");
  if (contents) document.querySelector("[data-contents]")?.replaceWith(contents.cloneNode(true));
}
for (const heading of document.querySelectorAll(".md-content :is(h1, h2, h3, h4, h5)[id]"))
  heading.append(Object.assign(document.createElement("a"), {className: "headerlink", href: "#" + heading.id, textContent: "¶"}));
// The overview's picture, one stage more with each click. Without this script all of it is there.
(() => {
  const step = document.getElementById("step");
  if (!step) return;
  const stages = [...step.querySelectorAll(".stage")];
  const [back, next] = step.querySelectorAll("button");
  const status = step.querySelector("[role=status]");
  let shown = stages.length;
  const show = (n) => {
    shown = Math.max(1, Math.min(stages.length, n));
    stages.forEach((stage, i) => stage.classList.toggle("hidden", i >= shown));
    back.disabled = shown === 1;
    next.textContent = shown === stages.length ? "From the start" : "Next";
    status.textContent = `${shown} of ${stages.length}`;
  };
  back.addEventListener("click", () => show(shown - 1));
  next.addEventListener("click", () => show(shown === stages.length ? 1 : shown + 1));
  show(1);
})();
