"use strict";
// What a model attends to: what is shown, its controls and its address. views.js draws; attention_page.js and
// translator.js begin, with the sentences that their pages have.

const page = {
  sentences: [],      // as nmt/report/attention.py describes them
  levels: 255,        // of weights
  hasAddress: false,  // whether the address says what is shown
};
const ROW = 26;        // token height in pixels; --row in attention.css
const NAMES = {source: "source", target_in: "what has been read", target_out: "output"};

const KINDS = {encoder: "Encoder", decoder: "Decoder", cross: "Cross"};
const TITLES = {
  encoder: "Encoder self-attention", decoder: "Decoder self-attention", cross: "Encoder-decoder attention",
};
const SIDES = {  // of queries and keys
  encoder: ["source", "source"], decoder: ["target_out", "target_in"], cross: ["target_out", "source"],
};
// Of heads, for a white background; further heads reuse them
const COLOURS = ["#1f68bc", "#c26300", "#05893e", "#a34f9e", "#b94642", "#0099a3", "#9d7d00", "#6b4cae"];
const VIEWS = {lines: "Lines", map: "Heat map", layers: "All layers"};
const UNITS = {subwords: "Subwords", words: "Words"};

const state = {
  sentence: 0, kind: "cross", view: "lines", unit: "words", layer: 0,
  head: 0,            // of the heat map
  heads: new Set(),   // heads whose lines are shown
  hovered: null,      // {side, index} of a token; side 0 attends, side 1 is attended to
  kept: undefined,    // likewise, of the chosen token; null for none, undefined where the page is to choose
};

// --- weights

const inflated = new Map();

async function bytesOf(sentence) {
  if (!inflated.has(sentence)) {
    const packed = Uint8Array.from(atob(byId(`weights-${sentence}`).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    inflated.set(sentence, new Uint8Array(await new Response(stream).arrayBuffer()));
  }
  return inflated.get(sentence);
}

/** Returns a head's weights, a row per query. A word's subwords are summed over keys and averaged over queries. */
function weightsOf(bytes, kind, layer, head) {
  const described = page.sentences[state.sentence];
  let start = 0;
  for (const [name, shape] of Object.entries(described.shapes)) {
    if (name === kind) break;
    start += shape.reduce((product, size) => product * size, 1);
  }
  const [, heads, queries, keys] = described.shapes[kind];
  start += (layer * heads + head) * queries * keys;
  const rows = Array.from({length: queries}, (_, row) =>
    Array.from(bytes.subarray(start + row * keys, start + (row + 1) * keys), (value) => value / page.levels));
  if (state.unit === "subwords") return rows;
  const [from, to] = SIDES[kind].map((side) => described[side]);
  const merged = from.words.map(() => to.words.map(() => 0));
  const sizes = from.words.map(() => 0);
  from.wordOf.forEach((word) => { sizes[word] += 1; });
  rows.forEach((row, query) => row.forEach((weight, key) => {
    merged[from.wordOf[query]][to.wordOf[key]] += weight / sizes[from.wordOf[query]];
  }));
  return merged;
}

const tokensOf = (side) => page.sentences[state.sentence][side][state.unit === "words" ? "words" : "tokens"];
const colourOf = (head) => COLOURS[head % COLOURS.length];
const range = (count) => [...Array(count).keys()];

/** Returns the heads of the current layer that are shown. */
const shown = () => state.view === "map" ? [state.head] : [...state.heads].sort((one, other) => one - other);

// --- elements

function segments(id, options, chosen, choose) {
  byId(id).replaceChildren(...Object.entries(options).map(([value, label]) => {
    const input = element("input", {type: "radio", name: id, value, checked: value === String(chosen)});
    input.addEventListener("change", () => choose(value));
    return element("label", {}, input, label);
  }));
}

/** Makes a group of buttons a single tab stop; arrow keys move within it. */
function rove(group) {
  const buttons = () => [...group.querySelectorAll("button")];
  buttons().forEach((button, index) => { button.tabIndex = index ? -1 : 0; });
  group.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    const all = buttons();
    all[all.indexOf(document.activeElement) + step]?.focus();
  });
  group.addEventListener("focusin", ({target}) => {
    for (const button of group.querySelectorAll("button[tabindex='0']")) button.tabIndex = -1;
    target.tabIndex = 0;
  });
  return group;
}

// --- the output and the model's confidence

/** Shows the source, and the output with each word shaded by how improbable it was to the model. */
function texts({source, target_out: {text, words, wordOf, tokens}, probabilities}) {
  const parts = [];
  const sure = words.map(() => 1);
  wordOf.forEach((word, index) => { sure[word] *= probabilities[index]; });
  const spelled = (word) => `“${words[word]}” ${sure[word].toFixed(2)}`;
  const product = (word) => {
    const factors = range(tokens.length).filter((index) => wordOf[index] === word)
      .map((index) => `“${tokens[index].replace("\u2581", "")}” ${probabilities[index].toFixed(2)}`);
    return factors.length > 1 ? ` = ${factors.join(" × ")}` : "";
  };
  let end = 0, least = null;
  words.forEach((word, index) => {
    const start = text.indexOf(word, end);
    if (start < 0) return;  // </s>
    const button = element("button", {type: "button", "--doubt": Math.min(1, 2 * (1 - sure[index]))}, word);
    const tell = () => { byId("confidence").textContent = `${spelled(index)}${product(index)}.`; };
    button.addEventListener("pointerenter", tell);
    button.addEventListener("focus", tell);
    button.addEventListener("click", () => {
      const kind = state.kind === "encoder" ? "cross" : state.kind;
      look({kind, unit: "words", view: state.view === "layers" ? "lines" : state.view, kept: {side: 0, index}});
    });
    parts.push(text.slice(end, start), button);
    end = start + word.length;
    if (least === null || sure[index] < sure[least]) least = index;
  });
  byId("source").textContent = source.text;
  byId("output").replaceChildren(rove(element("span", {className: "doubts"}, ...parts, text.slice(end))));
  byId("confidence").textContent = least === null ? "" : `Least sure: ${spelled(least)}.`;
}

// --- the address, which a reload or a link restores

function remember() {
  if (!page.hasAddress) return;
  const {kept} = state;
  const heads = shown().map((head) => head + 1).join(",") || "none";
  const token = {[kept && kept.side ? "attended" : "token"]: kept ? kept.index + 1 : "none"};
  const {sentence, kind: attention, view, unit, layer} = state;
  const fields = {sentence: sentence + 1, attention, view, unit, layer: layer + 1, heads, ...token};
  history.replaceState(null, "", "#" + Object.entries(fields).map((field) => field.join("=")).join("&"));
}

/** Sets what is shown from the address; what that lacks, or has wrong, is as at first. */
function recall() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const one = (name, options, otherwise) => options.includes(fields.get(name)) ? fields.get(name) : otherwise;
  const index = (text, count) => /^[1-9]\d*$/.test(text) && text <= count ? text - 1 : undefined;
  const sentence = index(fields.get("sentence"), page.sentences.length) ?? 0;
  const described = page.sentences[sentence];
  const kind = one("attention", Object.keys(KINDS), "cross");
  const unit = one("unit", Object.keys(UNITS), "words");
  const [layers, count] = described.shapes[kind];
  const named = (fields.get("heads") ?? "").split(",").map((text) => index(text, count)).filter((head) => head !== undefined);
  const heads = new Set(named.length || fields.get("heads") === "none" ? named : range(count));
  const layer = index(fields.get("layer"), layers) ?? layers - 1;
  let kept = fields.get("token") === "none" ? null : undefined;
  ["token", "attended"].forEach((name, side) => {
    const token = index(fields.get(name), described[SIDES[kind][side]][unit === "words" ? "words" : "tokens"].length);
    if (token !== undefined) kept = {side, index: token};
  });
  const view = one("view", Object.keys(VIEWS), "lines");
  Object.assign(state, {sentence, kind, view, unit, layer, heads, head: named[0] ?? 0, kept, hovered: null});
}

// --- the page

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const numbered = (count) => Object.fromEntries(range(count).map((index) => [index, String(index + 1)]));

/** Shows other tokens; the page chooses one of them if one was chosen before. */
function change(values) {
  Object.assign(state, values, {hovered: null, kept: state.kept && undefined});
  show();
}

/** Shows the same tokens in another way. */
function look(values) {
  Object.assign(state, values, {hovered: null});
  show();
}

function controls() {
  const shape = page.sentences[state.sentence].shapes[state.kind];
  state.layer = Math.min(state.layer, shape[0] - 1);
  byId("sentence").value = state.sentence;
  byId("previous").disabled = state.sentence === 0;
  byId("next").disabled = state.sentence === page.sentences.length - 1;
  const focused = document.activeElement && document.activeElement.name;
  segments("kind", KINDS, state.kind, (kind) => change({kind}));
  segments("view", VIEWS, state.view, (view) => look({view}));
  segments("unit", UNITS, state.unit, (unit) => change({unit}));
  segments("layer", numbered(shape[0]), state.layer, (layer) => look({layer: Number(layer)}));
  if (focused) document.querySelector(`input[name="${focused}"]:checked`)?.focus();
  byId("layers").hidden = byId("choice").hidden = state.view === "layers";
  legend(shape[1]);
}

function legend(count) {
  const single = state.view === "map";
  const held = [...byId("heads").children].indexOf(document.activeElement);
  const buttons = range(count).map((head) => {
    const on = single ? head === state.head : state.heads.has(head);
    const swatch = element("i", {className: "lit", "--colour": colourOf(head)});
    const button = element("button", {type: "button", "aria-label": `Head ${head + 1}`, "aria-pressed": String(on)}, swatch, String(head + 1));
    button.addEventListener("click", () => {
      if (single) state.head = head;
      else if (!state.heads.delete(head)) state.heads.add(head);
      show();
    });
    return button;
  });
  if (!single && count > 1) {
    const every = element("button", {type: "button", className: "every"}, state.heads.size === count ? "None" : "All");
    every.addEventListener("click", () => {
      state.heads = new Set(state.heads.size === count ? [] : range(count));
      show();
    });
    buttons.push(every);
  }
  byId("heads").replaceChildren(...buttons);
  if (held >= 0) buttons[Math.min(held, buttons.length - 1)].focus();
}

function caption() {
  const heads = shown();
  const all = heads.length > 1 && heads.length === page.sentences[state.sentence].shapes[state.kind][1];
  const numbers = heads.map((head) => head + 1).join(", ");
  const some = heads.length ? `${heads.length === 1 ? "head" : "heads"} ${numbers}` : "no heads";
  const named = `, layer ${state.layer + 1}, ${all ? "all heads" : some}`;
  byId("caption").textContent = TITLES[state.kind] + (state.view === "layers" ? ", all layers and heads" : named);
}

async function show() {
  const {sentence} = state;
  const bytes = await bytesOf(sentence);
  if (sentence !== state.sentence) return;  // another sentence was chosen in the meantime
  controls();
  caption();
  if (byId("output").dataset.sentence !== String(sentence)) {
    byId("output").dataset.sentence = sentence;
    texts(page.sentences[sentence]);
  }
  const names = SIDES[state.kind].map(tokensOf);
  const heads = range(page.sentences[sentence].shapes[state.kind][1]);
  const weights = heads.map((head) => weightsOf(bytes, state.kind, state.layer, head));
  if (state.kept === undefined) state.kept = farthest(names, weights);
  if (state.view === "map" && state.kept && state.kept.side) state.kept = null;  // a map has tokens that attend
  ({lines: showLines, map: showMap, layers: showLayers})[state.view](names, weights, bytes);
  mark();
  remember();
}

/** Has keys and the size of the window change what is shown. */
function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") keep(null);
  });
  let room = window.innerWidth;
  window.addEventListener("resize", () => {
    if (state.view === "map" && room !== window.innerWidth) show();
    room = window.innerWidth;
  });
}
