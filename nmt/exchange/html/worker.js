"use strict";
// The translator, in a thread of its own so that the page never waits: it answers messages of the page.

class Translator {
  /** Unpacks a translator; throws an error if it is damaged. */
  static async load(values, packed, code) {
    const {block, model, isCompiled} = await unpack(values, packed, code);
    const found = Object.assign(new Translator(), {values, model, isCompiled});
    const vocabulary = ({at, size, symbols, textless}) => new Vocabulary(block.slice(at, at + size), symbols, textless);
    const {source, target} = values.vocabularies;
    found.kept = new Kept(values.kept);
    found.copied = new Kept([NOTHING, ...values.copied]);
    found.plainNumber = expression(values.plain_number, "g");
    found.numberAlone = expression(`^${values.number}$`, "");
    const isShared = source.at === target.at && !source.symbols && !target.symbols;
    found.source = vocabulary(source);
    found.target = isShared ? found.source : vocabulary(target);
    found.splitters = values.directions.map(({source, ofSource}) =>
      new LineSplitter(found.source, values.decoding, values.lengths, values.sentences[source], values.frames[source], ofSource));
    return found;
  }

  /** Splits a line into parts {text, start, ids, style}: what has words beside what is copied, but for a number alone. */
  split(line, direction) {
    if (this.values.decoding.keep && this.numberAlone.test(line)) return [];
    const {source, languages: [language]} = this.values.directions[direction];
    const settings = {language, kept: this.kept, ...this.values.sentences[source]};
    const splitter = this.splitters[direction];
    const starts = splitter.startsAroundOthers(line, (text) => isInCapitals(text, this.kept));
    const pieces = cut(line, starts).map((text) => ({text, usual: asUsual(text, this.source, settings)}));
    const style = styleOf(line, pieces.map(({usual}) => usual).join(""), this.kept);
    const words = line.includes("\t") ? HAS_LETTERS : HAS_WORDS;  // numbers between tabs are copied
    const hasWords = (text) => words.test(this.values.decoding.keep ? this.copied.bare(text) : text);
    const cells = pieces.flatMap(({text, usual}, index) => cellsOf(text).map((cell) => ({
      text: cell.text,
      usual: usual.slice(cell.start, cell.start + cell.text.length),
      at: starts[index] + cell.start,
    })));
    return cells.flatMap(({text, usual, at}) => (hasWords(text) ? splitter.split(usual) : []).map((part) => ({
      ...part,
      start: part.start + at,
      style: style || styleOf(text, usual, this.kept).replace("title", "")
        || (splitter.goesOnSmall(part.text, line.slice(0, part.start + at)) ? "small" : ""),
      text: text.slice(part.start, part.start + part.text.length),
    })));
  }

  /** Returns the best translations {text, ids, score, finished} of a part of a line; `beam` hypotheses are searched. */
  translate(ids, direction, {nBest = 1, beam = this.values.decoding.beam} = {}) {
    const {alpha, max_extra, min_length, no_repeat} = this.values.decoding;
    const {ofSource, ofTarget} = this.values.directions[direction];
    const cap = Math.min(ofSource.length + ids.length + max_extra + ofTarget.length, this.values.positions ?? Infinity);
    const settings = {beam, nBest, alpha, cap, first: ofTarget, minLength: min_length, noRepeat: no_repeat};
    const found = new Map();  // by text: hypotheses may differ in their subwords alone
    for (const output of search(this.model, [...ofSource, ...ids], settings)) {
      const text = this.target.decode(output.ids);
      if (!found.has(text)) found.set(text, {text, words: this.target.words(output.ids).words, lacking: [], ...output});
    }
    return [...found.values()];
  }

  /**
   * Returns the best translation of a part that has its terms and what is copied: another one of the model, else with
   * them written in.
   */
  translateWithTerms({text, ids}, direction, given) {
    const copies = this.values.decoding.keep ? this.copied.spans(text).map(([start, end]) => text.slice(start, end)) : [];
    const isOfTerm = (copy) => given.some(([source]) => findTerm(source, text) && findTerm(copy, source));
    const terms = [...given, ...copies.filter((copy) => !isOfTerm(copy)).map((copy) => [copy, copy])];
    const {sentences, directions, ends, decoding: {keep}} = this.values;
    const mended = (output) => {
      if (!keep) return output;
      const own = withEndOf(
        text, withNumbersOf(text, output.text, this.plainNumber), sentences[directions[direction].source], ends);
      return own === output.text ? output : {...output, text: own, words: own.split(" ")};
    };
    const best = this.translate(ids, direction).map(mended)[0] ?? {text: "", words: [], lacking: [], ids: [], finished: false};
    const lacking = (output) => lackingTerms(terms, text, output.text);
    if (!lacking(best).length) return best;
    const beam = 2 * Math.max(4, this.values.decoding.beam);
    const others = this.translate(ids, direction, {nBest: beam, beam}).map(mended);
    const found = [best, ...others].reduce((one, other) => lacking(other).length < lacking(one).length ? other : one);
    if (!lacking(found).length) return found;
    const placed = placeTerms(lacking(found), this.attention(ids, found.ids, direction));
    const output = {...found, text: placed, words: placed.split(" ")};
    return {...output, lacking: lacking(output).map(([, target]) => target)};
  }

  /** Returns what the model attends to while it writes an output, as attention.js shows it, and its weights as bytes. */
  attention(ids, output, direction) {
    const {ofSource, ofTarget} = this.values.directions[direction];
    const source = [...ofSource, ...ids, EOS], read = [BOS, ...ofTarget, ...output], written = [...read.slice(1), EOS];
    const {layers, decoder_layers, heads} = this.values.config;
    const shapes = {
      encoder: [layers, heads, source.length, source.length],
      decoder: [decoder_layers, heads, read.length, read.length],
      cross: [decoder_layers, heads, read.length, source.length],
    };
    const starts = {encoder: 0, decoder: product(shapes.encoder)};
    starts.cross = starts.decoder + product(shapes.decoder);
    const bytes = new Uint8Array(starts.cross + product(shapes.cross));
    let row = 0;  // of the step
    const record = (kind, layer) => (query, head, weights) => {
      const [, , queries, keys] = shapes[kind];
      const at = starts[kind] + ((layer * heads + head) * queries + row + query) * keys;
      weights.forEach((weight, key) => { bytes[at + key] = Math.round(LEVELS * weight); });
    };
    const states = this.model.encode(source, record);
    const past = this.model.begin(states, read.length, 1);
    const probabilities = [];
    let words = 0;
    for (; row < read.length; row++) {
      words += this.model.beginsWord(read[row], "target");
      const places = Array.from({length: row + 1}, (_, place) => place);
      const logits = this.model.step(past, [{symbol: read[row], places, words}], record);
      probabilities.push(Number(Math.exp(logits[written[row]] - logSumExp(logits)).toFixed(3)));
    }
    const described = {
      shapes, probabilities,
      source: this.source.words(source), target_in: this.target.words(read), target_out: this.target.words(written),
    };
    return {described, bytes};
  }
}

/** Returns what stands between a text's tabs, each of which ends a sentence. */
const cellsOf = (text) => [...text.matchAll(/[^\t]+/g)].map((cell) => ({text: cell[0], start: cell.index}));

const LEVELS = 255;  // weights are shown in so many steps
const product = (shape) => shape.reduce((total, size) => total * size, 1);

// --- messages

let translator = null;
let newest = 0;  // number of the request that is being worked on; older ones are given up
const known = new Map();  // translations of parts, by all that they depend on

const breathe = () => new Promise((resolve) => { setTimeout(resolve); });  // so that a newer request may come

async function answer({kind, number, ...asked}) {
  const reply = (message) => self.postMessage({kind, number, ...message});
  if (kind === "load") {
    translator = await Translator.load(asked.values, asked.packed, asked.code);
    reply({isCompiled: translator.isCompiled});
  } else if (kind === "lines") {
    await translateLines(number, asked, reply);
  } else if (kind === "others") {
    const outputs = translator.translate(asked.ids, asked.direction, {nBest: asked.beam, beam: asked.beam});
    reply({outputs: outputs.map((output) => dressed(output, asked))});
  } else if (kind === "keep") {
    known.set(asked.key, asked.output);
  } else {
    reply(translator.attention(asked.ids, asked.output, asked.direction));
  }
}

/** Returns a translation in the capitals of its source, or beginning in a small letter as this does. */
function dressed(output, {style, direction}) {
  if (!style || (style === "title" && !translator.values.titles)) return output;
  const {target, languages: [, language]} = translator.values.directions[direction];
  const write = (each) => inStyle(each, style, language, translator.kept);
  if (style === "small") {
    const text = insideSentence(output.text, translator.target, new Set(translator.values.starters[target]), language);
    return {...output, text, words: output.words.map((word, at) => at ? word : text[0] + word.slice(1))};
  }
  return {...output, text: write(output.text), words: output.words.map(write)};
}

/** Splits lines, tells their parts, and then tells the translation of each part that has not come before. */
async function translateLines(number, {lines, direction, terms}, reply) {
  newest = number;
  const keyOf = ({text, style, ids}) =>
    JSON.stringify([direction, style, ids, terms.filter(([source]) => findTerm(source, text))]);
  const parts = lines.map((line) => translator.split(line, direction));
  reply({parts: parts.map((ofLine) => ofLine.map((part) => ({...part, key: keyOf(part), output: known.get(keyOf(part))})))});
  for (const part of parts.flat()) {
    const key = keyOf(part);
    if (known.has(key)) continue;
    await breathe();
    if (number !== newest) return;
    known.set(key, dressed(translator.translateWithTerms(part, direction, terms), {...part, direction}));
    reply({key, output: known.get(key)});
  }
  reply({done: true});
}

self.onmessage = async ({data}) => {
  try {
    await answer(data);
  } catch (error) {
    self.postMessage({kind: data.kind, number: data.number, problem: String(error.message ?? error)});
  }
};
