// Shows checkpoints' outputs for dev sentences, from the JSON packed by nmt/report/dev_outputs.py. Only listed sentences
// are compared and drawn. Corpus text enters the page as text nodes, never as HTML.
(async () => {
  "use strict";
  const PAGE = 20, PAGE_OF_TREES = 8;
  const LEARNT = 0.9; // share of its best score that a sentence keeps once it is learnt
  const COLOURS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"]; // viridis
  const at = (name) => document.getElementById(`sentences-${name}`);

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(plain).json();
  }

  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const count = (number) => number.toLocaleString("en");
  const figure = (number, digits) => (number === null ? "–" : number.toFixed(digits));
  const signed = (number) => (Math.abs(number) < 0.05 ? "±" : number < 0 ? "−" : "+") + Math.abs(number).toFixed(1);

  // --- data ---

  const { sets, runs, unscored } = await unpack(at("packed").textContent);
  // A sentence stores its distinct outputs, their scores, and the index of each checkpoint's output.
  const given = ({ run, checkpoint }, number) => {
    const [texts, scores, places] = runs[run].sentences[number];
    return { text: texts[places[checkpoint]], score: scores[places[checkpoint]] };
  };
  const textOf = (where, number) => given(where, number).text;
  const scoreOf = (where, number) => given(where, number).score;
  const update = ({ run, checkpoint }) => `update ${count(runs[run].steps[checkpoint])}`;
  const name = (where) => (where.run === state.shown.run ? update(where) : `${runs[where.run].name}, ${update(where)}`);

  // `opened` is a sentence that was chosen on the map; `rows` and `cell` are the map's sentences and cursor.
  const state = {
    shown: { run: 0, checkpoint: 0 }, other: null, opened: null, numbers: [], drawn: 0, rows: [], cell: [0, 0],
  };
  const first = () => ({ run: state.shown.run, checkpoint: 0 });
  const gain = (number) => (scoreOf(state.shown, number) ?? 0) - (scoreOf(state.other ?? first(), number) ?? 0);

  // --- comparing words ---

  // The hidden words are for screen readers. Their own direction keeps them from affecting dir="auto".
  const mark = (kind, text) => make(kind > 0 ? "ins" : "del", {},
    make("span", { class: "hidden", dir: "ltr" }, kind > 0 ? "not in the reference: " : "missing: "), text);

  // Marks the words of an output, whose spacing stays as it is: words that are missing bring the space before them.
  function markedWords(reference, output) {
    if (!output.trim()) return [make("em", { dir: "ltr" }, "empty")];
    return Words.compare(reference, output).flatMap(([kind, text], place) => {
      const bare = text.trimStart();
      const space = text.slice(0, text.length - bare.length);
      if (kind === 0) return [text];
      if (kind > 0) return [space, mark(kind, bare)];
      const missing = place ? [space, mark(kind, bare)] : [mark(kind, bare), " "];
      return [make("span", { class: "sentences-missing" }, ...missing)];
    });
  }

  // --- comparing trees ---

  function markedTree(reference, output) {
    const [gold, tree] = [Brackets.read(reference, unscored), Brackets.read(output, unscored)];
    if (!tree) return [make("em", { dir: "ltr" }, "no tree")];
    Brackets.compare(tree, gold);
    Brackets.compare(gold, tree);
    const parts = [];
    const write = (node) => {
      parts.push("(", node.differs ? mark(1, node.label) : node.label);
      if (node.word !== null) parts.push(` ${node.word}`);
      for (const child of node.children) {
        parts.push(" ");
        write(child);
      }
      parts.push(")");
    };
    write(tree.root);
    for (const node of gold?.nodes.filter((node) => node.differs) ?? []) {
      const words = gold.words.slice(node.start, node.end);
      const shown = words.length > 3 ? [words[0], "…", words.at(-1)] : words;
      parts.push(" ", mark(-1, `(${node.label} ${shown.join(" ")})`));
    }
    return parts;
  }

  function drawnTree(line, other, caption) {
    const [tree, compared] = [Brackets.read(line, unscored), Brackets.read(other, unscored)];
    if (!tree) return make("p", {}, `${caption}: no tree`);
    Brackets.compare(tree, compared);
    return make("figure", { class: "sentences-tree" }, make("figcaption", {}, caption),
      make("div", { role: "group", "aria-label": caption }, Brackets.draw(tree, line)));
  }

  // --- a sentence ---

  const referenceOf = (number) => sets[runs[state.shown.run].set].references[number];

  function marked(number, text) {
    return (runs[state.shown.run].trees ? markedTree : markedWords)(referenceOf(number), text);
  }

  function row(list, label, language, ...text) {
    const attributes = { dir: "auto", ...(language ? { lang: language } : {}) };
    list.append(make("dt", {}, label), make("dd", attributes, ...text));
  }

  // Lists a run's outputs for a sentence, each with the updates that produced it.
  function history(number) {
    const run = runs[state.shown.run];
    const [texts, scores, places] = run.sentences[number];
    const list = make("dl", {});
    for (let start = 0, end; start < places.length; start = end) {
      for (end = start + 1; end < places.length && places[end] === places[start];) end++;
      const steps = [...new Set([start, end - 1])].map((place) => count(run.steps[place]));
      const label = `${steps.length > 1 ? "updates" : "update"} ${steps.join(" – ")}`;
      const score = `${run.measure} ${figure(scores[places[start]], 1)}`;
      row(list, `${label}, ${score}`, run.languages[1], ...marked(number, texts[places[start]]));
    }
    return list;
  }

  const displayed = () => [state.shown, state.other].filter(Boolean);

  // Appends rows of the reference and the marked outputs to a list.
  function compared(list, number) {
    const language = runs[state.shown.run].languages[1];
    row(list, "Reference", language, referenceOf(number));
    for (const where of displayed()) row(list, name(where), language, ...marked(number, textOf(where, number)));
    return list;
  }

  function drawings(number) {
    const reference = referenceOf(number);
    return make("div", { class: "sentences-trees" }, drawnTree(reference, textOf(state.shown, number), "Reference"),
      ...displayed().map((where) => drawnTree(textOf(where, number), reference, name(where))));
  }

  function opening(summary, content) {
    const details = make("details", {}, make("summary", {}, summary));
    details.addEventListener("toggle", () => details.append(content()), { once: true });
    return details;
  }

  function sentence(number) {
    const run = runs[state.shown.run];
    const score = `${run.measure} ${figure(scoreOf(state.shown, number), 1)}`;
    const since = state.other || run.steps.length > 1
      ? `, ${signed(gain(number))} ${state.other ? "against" : "since"} ${name(state.other ?? first())}` : "";
    const list = make("dl", {});
    row(list, "Source", run.languages[0], sets[run.set].sources[number]);
    if (!run.trees) compared(list, number);
    const spoken = make("span", { class: "hidden" }, "Sentence ");
    const heading = make("h3", {}, spoken, count(number + 1), make("span", {}, ` ${score}${since}`));
    const item = make("li", { value: number + 1, tabindex: "-1" }, heading, list);
    if (run.trees) item.append(drawings(number), opening("Brackets", () => compared(make("dl", {}), number)));
    if (run.steps.length > 1) item.append(opening(`All ${run.steps.length} checkpoints`, () => history(number)));
    return item;
  }

  // --- the list ---

  const ORDERS = {
    file: null,
    best: (one, other) => scoreOf(state.shown, other) - scoreOf(state.shown, one),
    worst: (one, other) => scoreOf(state.shown, one) - scoreOf(state.shown, other),
    improved: (one, other) => gain(other) - gain(one),
    worsened: (one, other) => gain(one) - gain(other),
  };

  function found(number, query) {
    const { sources, references } = sets[runs[state.shown.run].set];
    const texts = [sources[number], references[number], textOf(state.shown, number)];
    if (state.other) texts.push(textOf(state.other, number));
    return texts.some((text) => text.toLowerCase().includes(query));
  }

  // Highlights the matches of a search without changing elements, if the browser supports it.
  function highlight(query) {
    if (!CSS.highlights) return;
    const ranges = [];
    const walk = document.createTreeWalker(at("list"), NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); query && node; node = walk.nextNode()) {
      const text = node.parentElement.closest("dd") ? node.data.toLowerCase() : "";
      if (text.length !== node.length) continue; // lower case has changed its length, so indices differ
      for (let place = text.indexOf(query); place >= 0; place = text.indexOf(query, place + query.length)) {
        const range = new Range();
        range.setStart(node, place);
        range.setEnd(node, place + query.length);
        ranges.push(range);
      }
    }
    CSS.highlights.set("sentences-found", new Highlight(...ranges));
  }

  function drawMore() {
    const page = runs[state.shown.run].trees ? PAGE_OF_TREES : PAGE;
    const more = state.numbers.slice(state.drawn, state.drawn + page).map(sentence);
    at("list").append(...more);
    for (const box of more.flatMap((item) => [...item.querySelectorAll(".sentences-tree div")])) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      box.scrollLeft = box.querySelector("text:last-of-type").getAttribute("x") - box.clientWidth / 2; // the root
    }
    state.drawn += more.length;
    const left = state.numbers.length - state.drawn;
    at("more").hidden = left <= 0;
    at("more").textContent = `Show ${count(Math.min(page, left))} more of ${count(left)}`;
    highlight(query());
    return more[0];
  }

  const query = () => at("search").value.trim().toLowerCase();

  function refresh() {
    const run = runs[state.shown.run];
    const label = update(state.shown);
    const dev = run.devScores[state.shown.checkpoint];
    at("update").textContent = dev === null ? label : `${label}, ${run.metric} ${figure(dev, 2)}`;
    at("checkpoint").setAttribute("aria-valuetext", at("update").textContent);
    const all = run.sentences.map((_, number) => number);
    state.numbers = query() ? all.filter((number) => found(number, query())) : all;
    const order = ORDERS[at("order").value];
    if (order) state.numbers.sort(order);
    const { opened } = state;
    if (opened !== null) state.numbers = [opened, ...state.numbers.filter((number) => number !== opened)];
    at("count").textContent = query() ? `${count(state.numbers.length)} of ${count(all.length)} sentences match`
      : `${count(all.length)} sentences${opened === null ? "" : `, beginning with number ${count(opened + 1)}`}`;
    const { checkpoint } = state.shown;
    [...at("steps").children].forEach((step, place) => step.classList.toggle("shown", place === checkpoint));
    state.drawn = 0;
    at("list").replaceChildren();
    drawMore();
  }

  // --- the map of scores ---

  // Returns the index of the checkpoint from which on a sentence keeps `LEARNT` of its best score; the number of
  // checkpoints if there is none.
  function learntAt(number) {
    const [, scores, places] = runs[state.shown.run].sentences[number];
    const enough = LEARNT * Math.max(...scores);
    let place = places.length;
    while (place && enough && scores[places[place - 1]] >= enough) place--;
    return place;
  }

  function drawScale() {
    const { width } = at("scale"), pen = at("scale").getContext("2d");
    const fill = pen.createLinearGradient(0, 0, width, 0);
    COLOURS.forEach((colour, place) => fill.addColorStop(place / (COLOURS.length - 1), colour));
    pen.fillStyle = fill;
    pen.fillRect(0, 0, width, 1);
  }

  // Draws the chosen run's scores, a pixel each: sentences in the order of `state.rows`, by checkpoints.
  function drawMap() {
    const { run } = state.shown;
    const { steps, sentences, measure, name } = runs[run];
    const places = sentences.map((_, number) => learntAt(number));
    const last = (number) => scoreOf({ run, checkpoint: steps.length - 1 }, number);
    state.rows = [...places.keys()].sort((one, other) => places[one] - places[other] || last(other) - last(one));

    const canvas = Object.assign(at("canvas"), { width: steps.length, height: sentences.length });
    const pen = canvas.getContext("2d");
    state.rows.forEach((number, row) => steps.forEach((_, checkpoint) => {
      const score = scoreOf({ run, checkpoint }, number);
      if (score !== null) pen.drawImage(at("scale"), Math.round(score), 0, 1, 1, checkpoint, row, 1, 1);
    }));

    at("map").hidden = steps.length === 1;
    at("cells").style.setProperty("--rows", sentences.length);
    at("steps").replaceChildren(...steps.map((step) => make("span", {}, count(step))));
    at("steps").classList.toggle("many", steps.length > 12);
    at("measure").textContent = measure;
    at("caption").textContent = `${measure} of each sentence at each checkpoint${runs.length > 1 ? `, ${name}` : ""}`;
    const learnt = places.filter((place) => place < steps.length).sort((one, other) => one - other);
    const half = steps[learnt[Math.ceil(places.length / 2) - 1]];
    at("learnt").textContent = `A sentence is learnt at the update from which on its ${measure} stays at or above `
      + `${100 * LEARNT}% of its best. Rows run from the first learnt to the last, ties by the last ${measure}. `
      + `${half ? `Half of the ${count(places.length)} sentences are learnt by update ${count(half)}, and ` : ""}`
      + `${count(learnt.length)}${half ? "" : ` of ${count(places.length)} sentences are learnt`} by the last.`;
    at("cell").textContent = "Point at a cell, or move with the arrow keys; a click or Enter shows the sentence below.";
    at("cursor").hidden = true;
    state.cell = [0, 0];
  }

  // Moves the cursor to a row and column, as far as they exist, and describes the cell.
  function point(...cell) {
    const run = runs[state.shown.run];
    const sizes = [state.rows.length, run.steps.length];
    const [row, checkpoint] = state.cell = cell.map((index, side) => Math.max(0, Math.min(sizes[side] - 1, index)));
    const [height, width] = sizes.map((size) => 100 / size);
    at("cursor").style.inset = `${row * height}% auto auto ${checkpoint * width}%`;
    Object.assign(at("cursor").style, { width: `${width}%`, height: `${height}%` });
    at("cursor").hidden = false;
    const number = state.rows[row], learnt = run.steps[learntAt(number)];
    const where = { run: state.shown.run, checkpoint };
    at("cell").textContent = `Sentence ${count(number + 1)}, ${update(where)}: `
      + `${run.measure} ${figure(scoreOf(where, number), 1)}, ${learnt ? `learnt at update ${count(learnt)}` : "not learnt"}. `
      + sets[run.set].sources[number];
  }

  function pointAt({ clientX, clientY }) {
    const { left, top, width, height } = at("cells").getBoundingClientRect();
    const canvas = at("canvas");
    point(Math.floor((clientY - top) / height * canvas.height), Math.floor((clientX - left) / width * canvas.width));
  }

  // Shows the sentence under the cursor first in the list, at its checkpoint.
  function openCell() {
    const [row, checkpoint] = state.cell;
    state.shown = { ...state.shown, checkpoint };
    state.opened = state.rows[row];
    at("checkpoint").value = checkpoint;
    at("search").value = "";
    refresh();
    const item = at("list").firstElementChild;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest" });
  }

  const MOVES = { // rows, columns
    ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-20, 0], PageDown: [20, 0],
  };

  function press(event) {
    const move = MOVES[event.key];
    if (move) point(...state.cell.map((index, side) => index + move[side]));
    else if (event.key === "Enter") openCell();
    else return;
    event.preventDefault();
  }

  // --- the controls ---

  // Offers checkpoints to compare with: the run's, and those of runs with the same development set.
  function offerOthers() {
    at("other").replaceChildren(make("option", { value: "" }, "nothing"));
    const same = runs.map((_, run) => run).filter((run) => runs[run].set === runs[state.shown.run].set);
    for (const run of same) {
      const options = runs[run].steps.map((_, checkpoint) =>
        make("option", { value: `${run} ${checkpoint}` }, update({ run, checkpoint })));
      at("other").append(...(same.length > 1 ? [make("optgroup", { label: runs[run].name }, ...options)] : options));
    }
    state.other = null;
  }

  function chooseRun(run) {
    const last = runs[run].steps.length - 1;
    state.shown = { run, checkpoint: last };
    at("checkpoint").max = last;
    at("checkpoint").value = last;
    at("checkpoint").disabled = last === 0;
    state.opened = null;
    at("missing").parentElement.hidden = runs[run].trees;
    offerOthers();
    drawMap();
    refresh();
  }

  at("run").append(...runs.map((run, place) => make("option", { value: place }, run.name)));
  at("run").parentElement.hidden = runs.length === 1;
  at("run").addEventListener("change", () => chooseRun(Number(at("run").value)));
  at("checkpoint").addEventListener("input", () => {
    state.shown = { ...state.shown, checkpoint: Number(at("checkpoint").value) };
    refresh();
  });
  at("other").addEventListener("change", () => {
    const [run, checkpoint] = at("other").value.split(" ").map(Number);
    state.other = at("other").value ? { run, checkpoint } : null;
    refresh();
  });
  for (const control of ["order", "search"])
    at(control).addEventListener("input", () => {
      state.opened = null;
      refresh();
    });
  at("missing").addEventListener("change", () => {
    at("list").classList.toggle("without-missing", !at("missing").checked);
  });
  at("more").addEventListener("click", () => drawMore()?.focus());
  at("cells").addEventListener("focus", () => point(...state.cell));
  at("cells").addEventListener("pointermove", pointAt);
  at("cells").addEventListener("click", (event) => {
    pointAt(event);
    openCell();
  });
  at("cells").addEventListener("keydown", press);
  drawScale();
  chooseRun(0);
  // The last checkpoint is not kept as a number, so that the page goes on to newer ones.
  keep("sentences", () => {
    const { run, checkpoint } = state.shown, values = ["other", "order", "search"].map((name) => at(name).value);
    return [run, checkpoint === runs[run].steps.length - 1 ? null : checkpoint, ...values];
  }, ([run, checkpoint, ...values]) => {
    at("run").value = run;
    chooseRun(run);
    if (checkpoint !== null) at("checkpoint").value = checkpoint;
    ["other", "order", "search"].forEach((name, place) => { at(name).value = values[place]; });
    for (const [name, event] of [["checkpoint", "input"], ["other", "change"]]) at(name).dispatchEvent(new Event(event));
  });
})();
