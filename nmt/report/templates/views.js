"use strict";
// The views of attention.js: lines, a heat map, all layers; and the heads of a layer beside them.

const SHADES = 50;     // opacity levels of lines
const MOST = 5;        // maximum tokens in the readout
const FAINTEST = 0.02; // smallest weight that is drawn
const SPREAD = [2.5, 16];  // maximum pixels between the lines of adjacent heads, and of the first and the last head

// --- token selection

const chosen = () => state.hovered || state.kept;
const same = (one, other) => one && other && one.side === other.side && one.index === other.index;
let mark = () => {};  // highlights the selection in the current view

function keep(token) {
  Object.assign(state, {kept: token, hovered: null});
  mark();
  remember();
}

/** Returns the word that attends farthest from its own place in the sentence: the one that is worth a look first. */
function farthest(names, weights) {
  let token = null, most = 0;
  names[0].forEach((name, query) => names[1].forEach((other, key) => {
    if (!/[\p{L}\p{N}]/u.test(name) || /^<\/?s>$/.test(name) || /^<\/?s>$/.test(other)) return;
    const weight = weights.reduce((sum, head) => sum + head[query][key], 0);
    const far = weight * Math.abs(query / names[0].length - key / names[1].length);
    if (far > most) [token, most] = [{side: 0, index: query}, far];
  }));
  return token;
}

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
    button.addEventListener("click", () => keep(same(state.kept, here) ? null : here));
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
    byId("readout").textContent = weights.length ? "All tokens are shown." : "All heads are switched off.";
    return;
  }
  const beside = weightsBeside(weights, token);
  const others = names[1 - token.side];
  const best = beside.map((weight, index) => [weight, index]).filter(([weight]) => weight >= FAINTEST)
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

function showLines(names, weights) {
  const heads = shown();
  const height = ROW * Math.max(names[0].length, names[1].length);
  const drawing = () => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const attributes = {viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true", class: "lit"};
    for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
    return svg;
  };
  const [svg, small] = [drawing(), weights.map(drawing)];
  const [from, to] = SIDES[state.kind];
  const only = (head) => new Set(heads.length === 1 && heads[0] === head ? weights.keys() : [head]);
  byId("stage").replaceChildren(element("div", {className: "lines"},
    element("h3", {}, `${capital(NAMES[from])} attends`), element("h3", {}, `to ${NAMES[to]}`),
    tokenList(0, names[0]), svg, tokenList(1, names[1])), multiples(small, (head) => ({heads: only(head)})));
  mark = () => {
    const token = chosen();
    svg.replaceChildren(...heads.flatMap((head, place) => {
      const shift = (place - (heads.length - 1) / 2) * Math.min(SPREAD[0], SPREAD[1] / heads.length);
      return paths(weights[head], token, shift, colourOf(head));
    }));
    small.forEach((each, head) => each.replaceChildren(...paths(weights[head], token, 0, colourOf(head))));
    const ofHeads = heads.map((head) => weights[head]);
    press(token, token && heads.length ? weightsBeside(ofHeads, token) : null);
    readOut(names, ofHeads, token);
  };
}

/** Returns a small drawing of each head as a button, which shows the head that `choose` makes of it. */
function multiples(drawings, choose) {
  if (drawings.length < 2) return "";
  const [alone, ...others] = shown();
  const buttons = drawings.map((drawing, head) => {
    const label = `Head ${head + 1} alone`;
    const pressed = String(head === alone && !others.length);
    const button = element("button", {type: "button", title: label, "aria-label": label, "aria-pressed": pressed},
      element("span", {}, String(head + 1)), drawing);
    button.addEventListener("click", async () => {
      Object.assign(state, choose(head));
      await show();
      document.querySelectorAll(".multiples button")[head].focus();
    });
    return button;
  });
  return element("div", {className: "multiples"}, element("h3", {}, "Each head"), rove(element("div", {}, ...buttons)));
}

/** Returns a head's lines, merged into one path per opacity level. */
function paths(rows, token, shift, colour) {
  const shades = Array.from({length: SHADES + 1}, () => []);
  rows.forEach((row, query) => row.forEach((weight, key) => {
    if (weight < FAINTEST || (token && token.index !== (token.side ? key : query))) return;
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

function showMap(names, weights) {
  const rows = weights[state.head];
  const big = element("div");
  const small = multiples(weights.map(heatMap), (head) => ({head}));
  byId("stage").replaceChildren(big, small);
  if (small) small.style.setProperty("--shape", `${names[1].length} / ${names[0].length}`);
  const room = big.clientWidth - 110;
  const cell = Math.max(14, Math.min(ROW, Math.floor(room / names[1].length)));
  const canvas = heatMap(rows, state.head);
  canvas.setAttribute("aria-hidden", "true");
  const cursor = element("div", {className: "cursor", hidden: true});
  const columns = element("ol", {className: "columns", "aria-hidden": "true"},
    ...names[1].map((name) => element("li", {title: name}, name)));
  const cells = element("div", {className: "cells"}, canvas, cursor);
  cells.style.width = `${cell * names[1].length + 2}px`;
  cells.style.height = `${ROW * names[0].length + 2}px`;
  const [from, to] = SIDES[state.kind];
  big.replaceChildren(element("h3", {}, `${capital(NAMES[from])}, in rows, attends to ${NAMES[to]}, in columns`),
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

function showLayers(names, weights, bytes) {
  const [layers, heads, queries, keys] = page.sentences[state.sentence].shapes[state.kind];
  const grid = element("div", {className: "all", "--heads": heads, "--shape": `${keys} / ${queries}`},
    element("span"), ...range(heads).map((head) => element("span", {}, String(head + 1))));
  for (let layer = 0; layer < layers; layer += 1) {
    grid.append(element("span", {}, String(layer + 1)));
    for (let head = 0; head < heads; head += 1) {
      const label = `Layer ${layer + 1}, head ${head + 1}: open the heat map`;
      const button = element("button", {type: "button", title: label, "aria-label": label},
        heatMap(weightsOf(bytes, state.kind, layer, head), head));
      button.addEventListener("click", () => look({layer, head, view: "map"}));
      grid.append(button);
    }
  }
  byId("stage").replaceChildren(element("div", {}, element("h3", {}, "Layers in rows, heads in columns."), rove(grid)));
  mark = () => {};
  byId("readout").textContent = "Choose a head to enlarge its map.";
}

