"use strict";
// Subwords, as SentencePiece encodes and decodes them, from its own model file: BPE and unigram, with byte fallback and
// the file's rules of normalisation.

const PAD = 0, UNK = 1;
const SPACE_MARK = "\u2581";  // SentencePiece writes a space so; a real one becomes STAND_IN
const STAND_IN = "\ufdd0";
const TYPES = {NORMAL: 1, UNKNOWN: 2, CONTROL: 3, USER_DEFINED: 4, UNUSED: 5, BYTE: 6};
const UNIGRAM = 1, BPE = 2;
const UTF8 = new TextDecoder("utf-8", {ignoreBOM: true});
const UNKNOWN_PENALTY = 10;  // by which an unknown character scores less than the worst piece of a unigram model

/** Calls `take` with the number and the value, a number or bytes, of each field of a protocol buffer. */
function readFields(bytes, take) {
  let at = 0;
  const varint = () => {
    let value = 0, factor = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    return value;
  };
  while (at < bytes.length) {
    const key = varint();
    const number = key >> 3, kind = key & 7;
    if (kind === 0) {
      take(number, varint());
      continue;
    }
    const length = kind === 2 ? varint() : kind === 5 ? 4 : 8;
    const value = bytes.subarray(at, at + length);
    at += length;
    if (kind === 2) take(number, value);
    else if (kind === 5) take(number, new DataView(value.buffer, value.byteOffset).getFloat32(0, true));
  }
}

/** Returns the values of fields by their numbers. */
function fieldsOf(bytes) {
  const found = {};
  readFields(bytes, (number, value) => { found[number] = value; });
  return found;
}

/** A vocabulary: SentencePiece's file, and the model's symbols by id where these are others than its pieces. */
class Vocabulary {
  constructor(file, symbols = null, textless = []) {
    this.pieces = [];  // {text, score, type} by SentencePiece's id
    this.kind = UNIGRAM;
    this.hasBytes = false;
    this.normalizer = new Normalizer(new Uint8Array());
    readFields(file, (number, value) => {
      if (number === 1) {
        const {1: piece, 2: score = 0, 3: type = TYPES.NORMAL} = fieldsOf(value);
        this.pieces.push({text: UTF8.decode(piece), score, type});
      } else if (number === 2) {
        const trainer = fieldsOf(value);
        this.kind = trainer[3] ?? UNIGRAM;
        this.hasBytes = Boolean(trainer[35]);
      } else if (number === 3) {
        this.normalizer = new Normalizer(value);
      }
    });
    this.ids = new Map();  // of the pieces that texts are made of
    this.pieces.forEach(({text: piece, type}, id) => {
      if (type === TYPES.NORMAL || type === TYPES.USER_DEFINED) this.ids.set(piece, id);
    });
    this.longest = Math.max(0, ...this.pieces.map(({text: piece}) => piece.length));
    this.bytes = new Map(this.pieces.flatMap(({text: piece, type}, id) => type === TYPES.BYTE ? [[parseInt(piece.slice(1, -1), 16), id]] : []));
    this.worst = Math.min(...this.pieces.filter(({type}) => type === TYPES.NORMAL).map(({score}) => score));
    this.symbols = symbols ?? this.pieces.map(({text: piece}) => piece);
    this.textless = new Set(textless);  // ids of symbols that are no text
    this.ownIds = null;  // the model's id for SentencePiece's
    if (symbols) {
      const known = new Map(symbols.map((symbol, id) => [symbol, id]));
      this.ownIds = this.pieces.map(({text: piece}) => known.get(piece) ?? UNK);
    }
    this.joinsWords = [...this.ids.keys()].some((piece) => /[^\u2581]\u2581/.test(piece));
    this.cache = new Map();  // ids of words, in BPE
  }

  /** Encodes a text, without </s>. */
  encode(text) {
    const normalized = this.normalizer.apply(text.replaceAll(SPACE_MARK, STAND_IN));
    const ids = this.kind === BPE ? this.encodeWords(normalized) : this.encodeUnigram([...normalized]);
    const own = ids.map((id) => this.ownIds ? this.ownIds[id] : id);
    return this.hasBytes ? own : own.filter((id, index) => id !== UNK || own[index - 1] !== UNK);
  }

  /** Decodes ids; control symbols, and those of languages, are no text. */
  decode(ids) { return this.decodeAll(ids).replace(/^ +| +$/g, ""); }

  decodeAll(ids) {
    let found = "", bytes = [];
    const spellBytes = () => {
      found += UTF8.decode(new Uint8Array(bytes));
      bytes = [];
    };
    for (const id of ids) {
      const byte = this.ownIds ? null : /^<0x([0-9A-F]{2})>$/.exec(this.symbols[id]);
      if (byte && this.pieces[id].type === TYPES.BYTE) {
        bytes.push(parseInt(byte[1], 16));
        continue;
      }
      spellBytes();
      if (this.hasText(id)) found += this.symbols[id];
    }
    spellBytes();
    return found.replaceAll(SPACE_MARK, " ").replaceAll(STAND_IN, SPACE_MARK);
  }

  /** Returns where each subword of an encoded text ends in it; roughly, where the text was normalised. */
  ends(text, ids) {
    const spelled = [...ids.keys()].map((index) => this.decodeAll(ids.slice(0, index + 1)));
    const added = spelled.at(-1).length - text.length;  // the space before the first word, and what normalising changed
    const factor = added === 0 || added === 1 ? 1 : text.length / spelled.at(-1).length;
    return spelled.map((beginning) => Math.max(0, Math.round(factor * beginning.length) - (factor === 1 ? added : 0)));
  }

  hasText(id) {
    if (this.ownIds) return !this.textless.has(id);
    return id > EOS && this.pieces[id].type !== TYPES.CONTROL;
  }

  /** Groups ids into words: {tokens, words, wordOf, text}; punctuation at a word's edge is a word of its own. */
  words(ids) {
    const tokens = ids.map((id) => this.symbols[id]);
    const isControl = (id) => id === BOS || id === EOS;
    const starts = ids.map((id, i) => tokens[i].startsWith(SPACE_MARK) || isControl(id) || i === 0 || isControl(ids[i - 1]));
    const marks = tokens.map((token) => token !== SPACE_MARK && !/[\p{L}\p{N}\p{M}_]/u.test(token.replace(SPACE_MARK, "")));
    for (let i = 1; i < ids.length; i++) starts[i] ||= marks[i - 1] && starts[i - 1];
    for (let i = ids.length - 1; i >= 0; i--) starts[i] ||= marks[i] && (starts[i + 1] ?? true);
    let count = -1;
    const wordOf = starts.map((isStart) => count += Number(isStart));
    const words = Array.from({length: count + 1}, (_, word) => {
      const own = ids.filter((_, i) => wordOf[i] === word);
      return this.decode(own).trim() || own.map((id) => this.symbols[id]).join("");
    });
    return {tokens, words, wordOf, text: this.decode(ids)};
  }

  // --- BPE

  /** Encodes words one by one, if no piece goes on in the next word; most have come before. */
  encodeWords(text) {
    const words = this.joinsWords ? [text] : text.split(/(?<=[^\u2581])(?=\u2581)/);
    return words.flatMap((word) => {
      let ids = this.cache.get(word);
      if (!ids) {
        ids = this.encodeBPE([...word]);
        if (this.cache.size < 50000) this.cache.set(word, ids);
      }
      return ids;
    });
  }

  /** Merges neighbours again and again: those whose piece has the highest score, the first of equal ones. */
  encodeBPE(parts) {
    for (;;) {
      let best = -1, most = -Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        const id = this.ids.get(parts[i] + parts[i + 1]);
        if (id !== undefined && this.pieces[id].score > most) [best, most] = [i, this.pieces[id].score];
      }
      if (best < 0) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
    return parts.flatMap((part) => this.ids.has(part) ? [this.ids.get(part)] : this.spell(part));
  }

  /** Returns the bytes of a character without a piece, or <unk>. */
  spell(character) {
    if (!this.hasBytes) return [this.pieces.findIndex(({type}) => type === TYPES.UNKNOWN)];
    return [...new TextEncoder().encode(character)].map((byte) => this.bytes.get(byte) ?? UNK);
  }

  // --- unigram

  /** Returns the most probable pieces of the characters (Viterbi), with sums in fp32 as SentencePiece has them. */
  encodeUnigram(characters) {
    const unknown = Math.fround(Math.fround(this.worst) - UNKNOWN_PENALTY);
    const scores = new Float32Array(characters.length + 1);  // of the best pieces up to each character
    const starts = new Int32Array(scores.length).fill(-1);  // where the last of these begins
    const last = new Int32Array(scores.length).fill(-1);  // its id, or -1 for an unknown character
    const reach = (end, start, id, score) => {
      if (starts[end] === -1 || score > scores[end]) [scores[end], starts[end], last[end]] = [score, start, id];
    };
    for (let start = 0; start < characters.length; start++) {
      let isSpelled = false;
      let piece = characters[start];
      for (let end = start + 1; piece.length <= this.longest; piece += characters[end++]) {
        const id = this.ids.get(piece);
        if (id !== undefined) {
          reach(end, start, id, this.pieces[id].score + scores[start]);
          isSpelled ||= end === start + 1;
        }
        if (end === characters.length) break;
      }
      if (!isSpelled) reach(start + 1, start, -1, Math.fround(unknown + scores[start]));
    }
    const found = [];
    for (let end = characters.length; end > 0; end = starts[end])
      found.push(last[end] < 0 ? this.spell(characters[starts[end]]) : [last[end]]);
    return found.reverse().flat();
  }
}

/** SentencePiece's rules of normalisation: a double-array trie of texts, each with the text that it becomes. */
class Normalizer {
  constructor(file) {
    const {2: rules, 3: addsSpace = 1, 4: removesSpaces = 1, 5: escapes = 1} = fieldsOf(file);
    Object.assign(this, {addsSpace, removesSpaces, space: escapes ? SPACE_MARK : " ", trie: new Uint32Array(), texts: new Uint8Array()});
    if (!rules?.length) return;
    const size = new DataView(rules.buffer, rules.byteOffset).getUint32(0, true);
    this.trie = new Uint32Array(rules.slice(4, 4 + size).buffer);
    this.texts = rules.subarray(4 + size);
  }

  /** Returns a normalised text, with spaces as SentencePiece writes them. */
  apply(text) {
    const bytes = new TextEncoder().encode(text);
    const spelled = (part) => UTF8.decode(part);
    let found = "", kept = 0;  // where what stays as it is begins
    for (let at = 0; at < bytes.length;) {
      const [length, to] = this.longestRule(bytes, at);
      if (length) {
        found += spelled(bytes.subarray(kept, at)) + spelled(this.texts.subarray(to, this.texts.indexOf(0, to)));
        kept = at + length;
      }
      at += length || sizeOfCharacter(bytes[at]);
    }
    found += spelled(bytes.subarray(kept));
    if (this.removesSpaces) found = found.replace(/^ +| +$/g, "").replace(/ {2,}/g, " ");
    if (!found) return "";
    return ((this.addsSpace ? " " : "") + found).replaceAll(" ", this.space);
  }

  /** Returns how many bytes the longest rule matches here, 0 for none, and where its result is among the texts. */
  longestRule(bytes, start) {
    const offsetOf = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let found = [0, 0];
    if (!this.trie.length) return found;
    let node = offsetOf(this.trie[0]);
    for (let at = start; at < bytes.length; at++) {
      node ^= bytes[at];
      const unit = this.trie[node];
      if ((unit & 0x800000ff) >>> 0 !== bytes[at]) break;
      node ^= offsetOf(unit);
      if (unit >>> 8 & 1) found = [at + 1 - start, this.trie[node] & 0x7fffffff];
    }
    return found;
  }
}

/** Returns how many bytes a character has in UTF-8 that begins with this one. */
function sizeOfCharacter(first) {
  if (first < 0x80) return 1;
  if (first < 0xe0) return 2;
  return first < 0xf0 ? 3 : 4;
}
