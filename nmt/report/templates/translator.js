"use strict";
// The page of a translator: it shows what the worker of nmt/exchange/html/worker.js answers. All that comes from a text
// or a model is set as text, never as markup.

const text = {
  lines: [],      // {source, parts: [{text, start, ids, key, output}], drawn, isStale}: see begun
  direction: 0,   // of content.values.directions
  chosen: null,   // the part whose other translations are shown
};

// --- translating what is typed

function translate() {
  const lines = byId("text").value.split(/\r?\n/);
  newest = ask({kind: "lines", lines, direction: text.direction, terms: termsOf(byId("terms").value)}, (answer) => {
    if (answer.number !== newest) return;
    if (answer.parts) begun(lines, answer.parts);
    if (answer.output) translated(answer);
    if (answer.done) draw();
    if (answer.done || answer.parts) progress();
  });
}

/** Shows the parts of a new text. A line that the text before has, too, stays as it is drawn: a key changes one line. */
function begun(lines, parts) {
  const keyOf = ({source, parts}) => JSON.stringify([source, ...parts.map(({key, output}) => [key, output?.text])]);
  const before = new Map(text.lines.map((line) => [keyOf(line), line]));
  text.lines = lines.map((source, index) => {
    const key = keyOf({source, parts: parts[index]});
    const same = before.get(key);
    before.delete(key);
    return same ?? {source, parts: parts[index], drawn: element("div", {className: "line", dir: "auto"}), isStale: true};
  });
  if (!allParts().some((part) => part.key === text.chosen?.key)) choose(null);
  const focused = document.activeElement;
  byId("result").replaceChildren(...text.lines.map(({drawn}) => drawn));
  if (focused !== document.activeElement) focused.focus({preventScroll: true});  // of a line that stays
  draw();
}

function translated({key, output}) {
  setOutput(key, output);
  drawing ||= requestAnimationFrame(draw);
  progress();
}

/** Sets the translation of every part with this key. */
function setOutput(key, output) {
  for (const line of text.lines) {
    for (const part of line.parts) {
      if (part.key !== key) continue;
      part.output = output;
      line.isStale = true;
    }
  }
}

const allParts = () => text.lines.flatMap(({parts}) => parts);

function progress() {
  const parts = allParts();
  const done = parts.filter(({output}) => output).length;
  const isUnderWay = done < parts.length;
  byId("progress").hidden = !(isUnderWay && parts.length > 1);
  byId("progress").max = Math.max(1, parts.length);
  byId("progress").value = done;
  const sentences = `${parts.length} ${parts.length === 1 ? "sentence" : "sentences"}`;
  if (isUnderWay) tell(parts.length > 1 ? `${done} of ${sentences} …` : "…");
  else tell(parts.length ? `${sentences} translated.` : "Ready.");
}

/** Returns the terms of a table: [source, translation] per line, with a tab between them, or else the first “=”. */
function termsOf(table) {
  const lines = table.split(/\r?\n/).map((line) => {
    const end = line.indexOf(line.includes("\t") ? "\t" : "=");
    return [line.slice(0, Math.max(0, end)).trim(), line.slice(end + 1).trim()];
  });
  return lines.filter(([source, target]) => source && target);
}

// --- the translation

let drawing = 0;  // the frame that will be drawn

/** Draws the lines that have changed. */
function draw() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  for (const line of text.lines) {
    if (!line.isStale) continue;
    const focused = [...line.drawn.querySelectorAll("button")].indexOf(document.activeElement);
    const between = gaps(line.source, line.parts, textsOf(line));
    const end = line.parts.length ? between.at(-1) : element("br");  // which an empty line is copied by
    line.drawn.replaceChildren(...line.parts.flatMap((part, at) => [between[at], partElement(part)]), end);
    line.isStale = false;
    line.drawn.querySelectorAll("button")[focused]?.focus({preventScroll: true});
  }
  const stop = byId("result").querySelector("button[tabindex='0']") ?? byId("result").querySelector("button");
  if (stop) stop.tabIndex = 0;
}

const textsOf = ({parts}) => parts.map(({output}) => output?.text ?? "…");

/** Returns a part's translation as a row of words, which show what the model attended to while it wrote them. */
function partElement(part) {
  if (!part.output) return element("span", {className: "waiting"}, "…");
  const {words, text: whole, lacking = []} = part.output;
  const pieces = [];
  let end = 0;
  words.forEach((word, index) => {
    const start = whole.indexOf(word, end);
    if (start < 0) return;
    const button = element("button", {type: "button", tabIndex: -1}, word);
    button.addEventListener("pointerenter", () => attend(part, index));
    button.addEventListener("focus", () => attend(part, index));
    button.addEventListener("click", () => choose(part, true));
    pieces.push(whole.slice(end, start), button);
    end = start + word.length;
  });
  const rest = lacking.length ? element("span", {className: "lacks"}, ` (lacks: ${lacking.join(", ")})`) : "";
  const made = element("span", {className: part.key === text.chosen?.key ? "part chosen" : "part"}, ...pieces, whole.slice(end), rest);
  made.part = part;
  return made;
}

/** Returns the whole translation as text. */
const translation = () => text.lines.map((line) => {
  const texts = textsOf(line);
  const between = gaps(line.source, line.parts, texts);
  return texts.map((each, at) => between[at] + each).join("") + between.at(-1);
}).join("\n");

// --- one sentence

/** Shows a part's other translations, if `withOthers`, and what the model attends to; null shows nothing. */
function choose(part, withOthers = false) {
  const isOther = part?.key !== text.chosen?.key;
  text.chosen = part;
  byId("chosen").hidden = !part;
  byId("result").querySelectorAll(".part").forEach((each) => each.classList.toggle("chosen", each.part.key === part?.key));
  if (isOther) byId("others").replaceChildren();
  if (!part || !withOthers) return;
  tell("Searching for other translations …");
  const beam = Math.max(5, content.values.decoding.beam);
  ask({kind: "others", ids: part.ids, text: part.text, style: part.style, direction: text.direction, beam}, ({outputs}) => {
    if (part.key !== text.chosen?.key) return;
    byId("others").replaceChildren(...outputs.map((output) => other(part, output)));
    tell(`${outputs.length} translations of this sentence are listed.`);
  });
}

function other(part, output) {
  const button = element("button", {type: "button", "aria-pressed": String(output.text === part.output.text)}, output.text);
  button.addEventListener("click", () => {
    setOutput(part.key, output);
    ask({kind: "keep", key: part.key, output}, () => {});
    draw();
    for (const each of byId("others").querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button));
    attend(part, null);
  });
  return element("li", {dir: "auto"}, button);
}

let looked = "";  // what the picture shows

/** Shows what the model attended to while it wrote a part's translation, with one of its words chosen, if any. */
function attend(part, word) {
  choose(part);
  const key = `${part.key}\n${part.output.text}`;
  const pick = () => {
    const added = page.sentences[0].target_out.words.length - 1 - part.output.words.length;  // symbols of languages
    Object.assign(state, {kind: state.kind === "encoder" ? "cross" : state.kind, unit: "words", hovered: null});
    state.kept = word === null ? undefined : {side: 0, index: word + Math.max(0, added)};
    show();
  };
  if (key === looked) {
    pick();
    return;
  }
  ask({kind: "attention", ids: part.ids, output: part.output.ids, direction: text.direction}, ({described, bytes}) => {
    if (part.key !== text.chosen?.key) return;
    looked = key;
    page.sentences = [described];
    inflated.set(0, bytes);
    delete byId("output").dataset.sentence;
    const [layers, heads] = described.shapes.cross;
    Object.assign(state, {layer: Math.min(state.layer, layers - 1), heads: state.heads.size ? state.heads : new Set(range(heads))});
    pick();
  });
}

// --- the page

/** Returns the name of a language in English by its code, which is shown if it has none. */
function nameOf(code) {
  try {
    return new Intl.DisplayNames(["en"], {type: "language"}).of(code.replace("_", "-"));
  } catch {
    return code;
  }
}

/** Writes the names of languages in place of their codes, which the page has without scripts. */
function nameLanguages() {
  const {directions} = content.values;
  const namesOf = (codes) => new Intl.ListFormat("en").format([...new Set(codes)].map(nameOf));
  const names = `${namesOf(directions.map(({source}) => source))} to ${namesOf(directions.map(({target}) => target))}`;
  for (const place of document.querySelectorAll(".languages")) place.textContent = names;
  document.title = byId("title").textContent;
}

/** Fills the choices of languages, which are shown if there are several. */
function languages() {
  const {directions} = content.values;
  const from = byId("from"), to = byId("to");
  const fill = (select, codes) => {
    const kept = select.value;
    select.replaceChildren(...[...new Set(codes)].map((code) => element("option", {value: code}, nameOf(code))));
    if (codes.includes(kept)) select.value = kept;
    select.hidden = new Set(codes).size < 2;
  };
  const fillTargets = () => fill(to, directions.filter(({source}) => source === from.value).map(({target}) => target));
  const chosen = () => {
    text.direction = directions.findIndex(({source, target}) => source === from.value && target === to.value);
    const {source, target} = directions[text.direction];
    byId("text").lang = source;
    byId("result").lang = target;
    document.querySelector("label[for=text]").textContent = nameOf(source);
    byId("translation").textContent = nameOf(target);
  };
  fill(from, directions.map(({source}) => source));
  fillTargets();
  chosen();
  from.addEventListener("change", () => { fillTargets(); chosen(); changed(translate); });
  to.addEventListener("change", () => { chosen(); changed(translate); });
}

async function copy() {
  try {
    await navigator.clipboard.writeText(translation());
    tell("Copied.");
  } catch {  // pages from a disk may not be allowed to
    getSelection().selectAllChildren(byId("result"));
    tell(document.execCommand("copy") ? "Copied." : "Press Ctrl+C to copy what is selected.");
  }
}

nameLanguages();
languages();
rove(byId("result"));
listen();
byId("terms").addEventListener("input", () => changed(translate));
byId("copy").addEventListener("click", copy);
start(translate);
