"use strict";

const page = JSON.parse(document.getElementById("content").textContent);
const ROW = 26;        // token height in pixels; --row in attention.css
const SHADES = 50;     // opacity levels of lines
const MOST = 5;        // maximum tokens in the readout
const NAMES = {source: "source", target_in: "what has been read", target_out: "output"};

const state = {
  sentence: 0, kind: "encoder", view: "lines", unit: "subwords", layer: 0, head: 0,
  heads: new Set(),   // heads whose lines are shown
  hovered: null,      // {side, index} of a token; side 0 attends, side 1 is attended to
  kept: null,         // likewise, of a clicked token
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
  const [from, to] = page.sides[kind].map((side) => described[side]);
  const merged = from.words.map(() => to.words.map(() => 0));
  const sizes = from.words.map(() => 0);
  from.wordOf.forEach((word) => { sizes[word] += 1; });
  rows.forEach((row, query) => row.forEach((weight, key) => {
    merged[from.wordOf[query]][to.wordOf[key]] += weight / sizes[from.wordOf[query]];
  }));
  return merged;
}

const tokensOf = (side) => page.sentences[state.sentence][side][state.unit === "words" ? "words" : "tokens"];
const colourOf = (head) => page.colours[head % page.colours.length];

// --- elements

const byId = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("--")) made.style.setProperty(key, value);
    else if (key in made && !key.includes("-")) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function segments(id, options, chosen, choose) {
  byId(id).replaceChildren(...Object.entries(options).map(([value, label]) => {
    const input = element("input", {type: "radio", name: id, value, checked: value === String(chosen)});
    input.addEventListener("change", () => choose(value));
    return element("label", {}, input, label);
  }));
}

/** Makes a group of buttons a single tab stop; arrow keys move within it. */
function rove(group) {
  const buttons = [...group.querySelectorAll("button")];
  buttons.forEach((button, index) => { button.tabIndex = index ? -1 : 0; });
  group.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1}[event.key];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (!step) return;
    event.preventDefault();
    if (next) next.focus();
  });
  group.addEventListener("focusin", (event) => {
    buttons.forEach((button) => { button.tabIndex = button === event.target ? 0 : -1; });
  });
  return group;
}

// --- token selection

const chosen = () => state.kept || state.hovered;
const same = (one, other) => one && other && one.side === other.side && one.index === other.index;
let mark = () => {};  // highlights the selection in the current view

function tokenList(side, tokens) {
  const list = element("ol", {className: `tokens ${side ? "to" : "from"}`});
  tokens.forEach((token, index) => {
    const here = {side, index};
    const button = element("button", {type: "button", title: token, "aria-pressed": "false"}, token);
    button.dataset.side = side;
    const hover = (on) => () => { state.hovered = on ? here : null; mark(); };
    button.addEventListener("pointerenter", hover(true));
    button.addEventListener("pointerleave", hover(false));
    button.addEventListener("focus", hover(true));
    button.addEventListener("blur", hover(false));
    button.addEventListener("click", () => { state.kept = same(state.kept, here) ? null : here; mark(); });
    list.append(element("li", {}, button));
  });
  return rove(list);
}

/** Returns the weights between a token and those of the other side, averaged over heads. */
function weightsBeside(weights, {side, index}) {
  const sum = (values) => values.reduce((total, value) => total + value, 0) / weights.length;
  return side ? weights[0].map((_, row) => sum(weights.map((head) => head[row][index])))
              : weights[0][index].map((_, key) => sum(weights.map((head) => head[index][key])));
}

function readOut(names, weights, token) {
  if (!token || !weights.length) {
    byId("readout").textContent = weights.length ? "Hover over a token, or move to it with Tab and the arrow keys, to see "
      + "what it attends to. A click or Enter keeps it." : "All heads are switched off.";
    return;
  }
  const beside = weightsBeside(weights, token);
  const others = names[1 - token.side];
  const best = beside.map((weight, index) => [weight, index]).filter(([weight]) => weight >= page.faintest)
    .sort((one, other) => other[0] - one[0]).slice(0, MOST)
    .map(([weight, index]) => `“${others[index]}” ${weight.toFixed(2)}`);
  const verb = token.side ? "is attended to most by" : "most attended";
  byId("readout").textContent = `“${names[token.side][token.index]}” – ${verb}: ${best.join(", ") || "nothing"}`;
}

function press(token, beside) {
  for (const button of document.querySelectorAll(".tokens button")) {
    const [side, index] = [Number(button.dataset.side), [...button.closest("ol").children].indexOf(button.parentNode)];
    button.setAttribute("aria-pressed", String(Boolean(same(state.kept, {side, index}))));
    button.style.setProperty("--weight", token && beside && side !== token.side ? Math.sqrt(beside[index]) : 0);
  }
}

// --- views

function showLines(bytes, names) {
  const heads = [...state.heads].sort((one, other) => one - other);
  const weights = heads.map((head) => weightsOf(bytes, state.kind, state.layer, head));
  const height = ROW * Math.max(names[0].length, names[1].length);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({
    viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true", class: "lit"})) {
    svg.setAttribute(key, value);
  }
  const [from, to] = page.sides[state.kind];
  byId("stage").replaceChildren(element("div", {className: "lines"},
    element("h3", {}, `${capital(NAMES[from])} attends`), element("h3", {}, `to ${NAMES[to]}`),
    tokenList(0, names[0]), svg, tokenList(1, names[1])));
  mark = () => {
    const token = chosen();
    svg.replaceChildren(...heads.flatMap((head, place) => {
      const shift = (place - (heads.length - 1) / 2) * Math.min(page.spread[0], page.spread[1] / heads.length);
      return paths(weights[place], token, shift, colourOf(head));
    }));
    press(token, token && weights.length ? weightsBeside(weights, token) : null);
    readOut(names, weights, token);
  };
}

/** Returns a head's lines, merged into one path per opacity level. */
function paths(rows, token, shift, colour) {
  const shades = Array.from({length: SHADES + 1}, () => []);
  rows.forEach((row, query) => row.forEach((weight, key) => {
    if (weight < page.faintest || (token && token.index !== (token.side ? key : query))) return;
    const [y, end] = [query, key].map((index) => ((index + 0.5) * ROW + shift).toFixed(1));
    shades[Math.max(1, Math.round((token ? Math.sqrt(weight) : weight) * SHADES))].push(`M0 ${y}L100 ${end}`);
  }));
  return shades.map((lines, shade) => [lines, shade]).filter(([lines]) => lines.length).map(([lines, shade]) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", lines.join(""));
    path.style.setProperty("--colour", colour);
    path.style.strokeOpacity = shade / SHADES;
    return path;
  });
}

function heatMap(rows, head) {
  const canvas = element("canvas", {width: rows[0].length, height: rows.length, className: "lit"});
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colourOf(head).slice(at, at + 2), 16));
  const image = new ImageData(canvas.width, canvas.height);
  rows.flat().forEach((weight, index) => {
    image.data.set([red, green, blue, Math.round(255 * Math.sqrt(weight))], 4 * index);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function showMap(bytes, names) {
  const rows = weightsOf(bytes, state.kind, state.layer, state.head);
  const room = byId("stage").clientWidth - 110;
  const cell = Math.max(14, Math.min(ROW, Math.floor(room / names[1].length)));
  const canvas = heatMap(rows, state.head);
  canvas.setAttribute("aria-hidden", "true");
  const cursor = element("div", {className: "cursor", hidden: true});
  const columns = element("ol", {className: "columns", "aria-hidden": "true"},
    ...names[1].map((name) => element("li", {title: name}, name)));
  const cells = element("div", {className: "cells"}, canvas, cursor);
  cells.style.width = `${cell * names[1].length + 2}px`;
  cells.style.height = `${ROW * names[0].length + 2}px`;
  const [from, to] = page.sides[state.kind];
  byId("stage").replaceChildren(element("h3", {}, `${capital(NAMES[from])}, in rows, attends to ${NAMES[to]}, in columns`),
    element("div", {className: "map", "--cell": `${cell}px`},
      element("div", {}, element("span"), columns, tokenList(0, names[0]), cells)),
    element("p", {className: "scale lit", "--colour": colourOf(state.head)}, ...["0", "0.25", "1"].map((tick) => element("span", {}, tick))));
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = [Math.floor(event.offsetY / ROW), Math.floor(event.offsetX / cell)];
    if (!(rows[row] && column in rows[row])) return;
    state.hovered = {side: 0, index: row, column};
    mark();
  });
  canvas.addEventListener("pointerleave", () => { state.hovered = null; mark(); });
  mark = () => {
    const token = chosen();
    cursor.hidden = !token;
    if (token) cursor.style.top = `${ROW * token.index - 1}px`;
    const column = token && state.hovered && same(token, state.hovered) ? state.hovered.column : undefined;
    [...columns.children].forEach((item, index) => item.classList.toggle("chosen", index === column));
    press(token, null);
    readOut(names, [rows], token);
    if (column !== undefined) {
      const pair = `“${names[0][token.index]}” → “${names[1][column]}”: ${rows[token.index][column].toFixed(2)}. `;
      byId("readout").prepend(pair);
    }
  };
}

function showAll(bytes) {
  const [layers, heads, queries, keys] = page.sentences[state.sentence].shapes[state.kind];
  const grid = element("div", {className: "all", "--heads": heads, "--shape": `${keys} / ${queries}`},
    element("span"), ...Array.from({length: heads}, (_, head) => element("span", {}, String(head + 1))));
  for (let layer = 0; layer < layers; layer += 1) {
    grid.append(element("span", {}, String(layer + 1)));
    for (let head = 0; head < heads; head += 1) {
      const label = `Layer ${layer + 1}, head ${head + 1}: open the heat map`;
      const button = element("button", {type: "button", title: label, "aria-label": label},
        heatMap(weightsOf(bytes, state.kind, layer, head), head));
      button.addEventListener("click", () => { Object.assign(state, {layer, head, view: "map"}); show(); });
      grid.append(button);
    }
  }
  byId("stage").replaceChildren(element("h3", {}, "Layers in rows, heads in columns."), rove(grid));
  mark = () => {};
  byId("readout").textContent = "Choose a head to enlarge its map.";
}

// --- the page

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const numbered = (count) => Object.fromEntries(Array.from({length: count}, (_, index) => [index, String(index + 1)]));

function change(values) {
  Object.assign(state, values, {hovered: null, kept: null});
  show();
}

function controls() {
  const shape = page.sentences[state.sentence].shapes[state.kind];
  state.layer = Math.min(state.layer, shape[0] - 1);
  byId("sentence").value = state.sentence;
  byId("previous").disabled = state.sentence === 0;
  byId("next").disabled = state.sentence === page.sentences.length - 1;
  const focused = document.activeElement && document.activeElement.name;
  segments("kind", {encoder: "Encoder", decoder: "Decoder", cross: "Cross"}, state.kind, (kind) => change({kind}));
  segments("view", {lines: "Lines", map: "Heat map", all: "All heads"}, state.view, (view) => change({view}));
  segments("unit", {subwords: "Subwords", words: "Words"}, state.unit, (unit) => change({unit}));
  segments("layer", numbered(shape[0]), state.layer, (layer) => change({layer: Number(layer)}));
  if (focused) document.querySelector(`input[name="${focused}"]:checked`)?.focus();
  byId("layers").hidden = byId("choice").hidden = state.view === "all";
  legend(shape[1]);
}

function legend(count) {
  const single = state.view === "map";
  const held = [...byId("heads").children].indexOf(document.activeElement);
  const buttons = Array.from({length: count}, (_, head) => {
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
      state.heads = new Set(state.heads.size === count ? [] : Object.keys(numbered(count)).map(Number));
      show();
    });
    buttons.push(every);
  }
  byId("heads").replaceChildren(...buttons);
  if (held >= 0) buttons[Math.min(held, buttons.length - 1)].focus();
}

function caption() {
  const heads = state.view === "map" ? [state.head] : [...state.heads].sort((one, other) => one - other);
  const named = `, layer ${state.layer + 1}, ${heads.length === 1 ? "head" : "heads"} ${heads.map((head) => head + 1).join(", ") || "none"}`;
  byId("caption").textContent = page.titles[state.kind] + (state.view === "all" ? ", all layers and heads" : named);
}

async function show() {
  const {sentence} = state;
  const bytes = await bytesOf(sentence);
  if (sentence !== state.sentence) return;  // another sentence was chosen in the meantime
  controls();
  caption();
  byId("source").textContent = page.sentences[sentence].source.text;
  byId("output").textContent = page.sentences[sentence].target_out.text;
  const names = page.sides[state.kind].map(tokensOf);
  ({lines: showLines, map: showMap, all: showAll})[state.view](bytes, names);
  mark();
}

function begin() {
  const {shapes} = page.sentences[0];
  state.layer = Math.max(0, shapes.encoder[0] - 2);  // the penultimate, as in the paper's figures
  state.heads = new Set(Object.keys(numbered(shapes.encoder[1])).map(Number));
  byId("sentence").replaceChildren(...page.sentences.map(({source}, index) =>
    element("option", {value: index}, `${index + 1}. ${source.text}`)));
  byId("sentence").addEventListener("change", (event) => change({sentence: Number(event.target.value)}));
  byId("previous").addEventListener("click", () => change({sentence: state.sentence - 1}));
  byId("next").addEventListener("click", () => change({sentence: state.sentence + 1}));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { state.kept = null; mark(); }
  });
  let room = window.innerWidth;
  window.addEventListener("resize", () => {
    if (state.view === "map" && room !== window.innerWidth) show();
    room = window.innerWidth;
  });
  if (typeof DecompressionStream === "undefined") byId("readout").textContent = "This browser is too old for this page.";
  else show();
}

document.addEventListener("DOMContentLoaded", begin);
