"use strict";
// The attention page: begins attention.js with the sentences that the page holds, and lists these.

function begin() {
  Object.assign(page, JSON.parse(byId("content").textContent), {hasAddress: true});
  recall();
  window.addEventListener("hashchange", () => { recall(); show(); });
  byId("sentence").replaceChildren(...page.sentences.map(({source}, index) =>
    element("option", {value: index}, `${index + 1}. ${source.text}`)));
  byId("sentence").addEventListener("change", (event) => change({sentence: Number(event.target.value)}));
  byId("previous").addEventListener("click", () => change({sentence: state.sentence - 1}));
  byId("next").addEventListener("click", () => change({sentence: state.sentence + 1}));
  listen();
  if (typeof DecompressionStream === "undefined") byId("readout").textContent = "This browser is too old for this page.";
  else show();
}

// After the first paint, which the weights would delay.
document.addEventListener("DOMContentLoaded", () => requestAnimationFrame(() => setTimeout(begin)));
