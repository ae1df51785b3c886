"use strict";
// How a line is split into parts, which are translated one by one: the rules of nmt/formats/sentences.py and
// nmt/decoding/splitter.py, by the same tables of marks and abbreviations.

const WORD = "\\p{L}\\p{N}_";  // characters of words, for a class; JavaScript's \w has those of English alone
const LETTER = "\\p{L}\\p{Nl}\\p{No}";  // the same without digits, as Python has them
const WHITE = "\\s\\x1c-\\x1f\\x85";
const LONGEST_WORD = 40;  // characters that are looked at before a full stop
const IS_LETTER = new RegExp(`^[${LETTER}]$`, "u");
const LETTER_AND_STOP = new RegExp(`[${LETTER}]\\.`, "uy");
const INITIALS = new RegExp(`^(?:[${LETTER}]\\.-?)*[${LETTER}]$`, "u");  // J, J.-P, U.S
const HAS_WORDS = /[\p{L}\p{N}]/u;
const HAS_LETTERS = /\p{L}|(?![0-9])\p{Nd}/u;  // or digits of another script, which change

const escaped = (marks) => marks.replace(/[\\\]^[-]/g, "\\$&");  // in a class
const matchAt = (expression, text, at) => {
  expression.lastIndex = at;
  return expression.exec(text);
};
const isLower = (text) => text === text.toLowerCase() && text !== text.toUpperCase();
const isUpper = (text) => text === text.toUpperCase() && text !== text.toLowerCase();

class SentenceSplitter {
  constructor(table) {
    for (const [name, value] of Object.entries(table)) this[name] = Array.isArray(value) ? new Set(value) : value;
    const stops = escaped(this.stops), wide = escaped(this.wide), closing = escaped(this.closing), opening = escaped(this.opening);
    const once = (name, pattern) => `(?=(?<${name}>${pattern}))\\k<${name}>`;  // does not give back what it has matched
    const tail = once("tail", `(?:[${closing}${this.symbols}¹²³⁰-⁹]|\\[\\p{Nd}{1,3}\\]|</[${WORD}]{1,20}>)*`);
    this.end = new RegExp(
      `(?<![${wide}${stops}])(?:(?<wide>[${stops}]*[${wide}][${wide}${stops}]*)${once("closed", `[${closing}]*`)}[${WHITE}]*`
      + `|${once("stop", `[${stops}]+`)}(?:[${WHITE}]»(?=[${WHITE}]|$)|${tail})(?:[${WHITE}]+|$|(?<glued>)(?=[${LETTER}])))`
      + `|(?:(?<=[\\p{L}\\p{N}])|(?<=[\\p{L}\\p{N}][${WHITE}]))${once("emojis", `[${this.emoji}]+`)}[${WHITE}]+`
      + `|[\\u2028\\u2029][${WHITE}]*`, "gu");
    this.begins = new RegExp(
      `[${opening}]*(?:[@#\`][${WORD}]|%[${WORD}(]|\\{+[${WORD}]|\\$[${LETTER}_]|\\$\\{|\\(?[a-z]\\)[${WHITE}]|https?://|www\\.|[${this.symbols}])`, "uy");
    this.next = new RegExp(
      `(?:<[^<>${WHITE}][^<>]{0,200}>|&#?[${WORD}]{1,8};|[^${WORD}${stops}${wide}\\u2028\\u2029]|\\.(?=[${WORD}]))*(?<word>[${WORD}]+(?:['’][${WORD}]+)?)`, "uy");
    this.caseless = new RegExp(this.caseless, "uy");
    this.inside = new RegExp(this.inside, "uy");
    this.last = new RegExp(`[${WORD}.&'’\\-]*$`, "u");
    this.smallWord = new RegExp(`(?<![${WORD}'’\\-])['’\\-]*(?<small>[${WORD}][${WORD}'’\\-]*)[${WHITE}]+(?=(?<word>[${WORD}]+))`, "gu");
  }

  /** Returns a line's sentences, each with the space behind it. */
  split(text) {
    const starts = [0];
    const hasCase = text.toLowerCase() !== text;  // without capitals, a lower-case word may start a sentence
    for (const end of text.matchAll(this.end)) {
      const behind = end.index + end[0].length;
      const following = matchAt(this.next, text, behind);
      if (following && this.ends(text, starts.at(-1), end, behind, following.groups.word, hasCase)) starts.push(behind);
    }
    return cut(text, starts);
  }

  /** Splits where another sentence seems to begin without punctuation: A man sings A dog barks. */
  splitUnmarked(sentence) {
    const starts = [0];
    for (const found of sentence.matchAll(this.smallWord)) {
      const {small, word} = found.groups;
      if (isLower(small[0]) && !this.neverLast.has(small) && isUpper(word[0]) && this.openers.has(word.toLowerCase()))
        starts.push(found.index + found[0].length);
    }
    return cut(sentence, starts);
  }

  /** Tells whether the sentence from `start` on ends at the punctuation `end`, before `word`. */
  ends(text, start, end, behind, word, hasCase) {
    const {wide, closed, stop, tail, glued, emojis} = end.groups;
    if (wide) {
      const isApart = !closed || this.opening.includes(text[behind]) || /\s/.test(text[behind - 1]);
      return isApart && !matchAt(this.inside, text, end.index);
    }
    if (emojis) return isUpper(word[0]) && this.starters.has(word.toLowerCase());
    if (!stop) return true;  // a line or paragraph separator
    if (glued !== undefined && !this.endsWithoutSpace(text, end.index, stop, tail, word)) return false;
    const isCased = !(end.index && matchAt(this.caseless, text, end.index - 1)) && !matchAt(this.caseless, word, 0);
    if (hasCase && isLower(word) && isCased && !matchAt(this.begins, text, behind)) return false;
    const last = this.wordBefore(text, end.index, start);
    if (stop === "..." || stop === "…") return word !== last;  // I... I do not know
    if (stop !== ".") return !this.beforeEither.has(word.toLowerCase());  // Yahoo! Inc
    if (IS_LETTER.test(last) && matchAt(LETTER_AND_STOP, text, behind)) return false;  // A. B. Cole; z. B.
    return this.endsAtFullStop(last, text.startsWith(`${last}.`, start), word);
  }

  /** Tells whether punctuation with no space behind it may end a sentence: The cat.The dog, but not os.Path. */
  endsWithoutSpace(text, at, stop, tail, word) {
    const mark = stop.at(-1);
    if (!".!?…".includes(mark)) return true;
    if (!(isUpper(word[0]) && (word.length === 1 || isLower(word.slice(1))))) return false;
    const last = this.wordBefore(text, at, 0);
    const before = text[at - 1] ?? "";
    const isBehindBracket = before !== "" && this.behind.includes(before);
    if (mark !== ".") return isBehindBracket || HAS_WORDS.test(last.slice(-1));
    const isPlaceholder = ["$", ")", "%"].includes(text[at - last.length - 1]) || (before !== "" && "}–—".includes(before));
    const isWord = last.length > 1 && isLower(last) && /^\p{L}+$/u.test(last);
    if (!(isBehindBracket || isPlaceholder || isWord)) return false;
    return Boolean(tail) || this.starters.has(word.toLowerCase());
  }

  /** Tells whether a full stop between the words `last` and `word` ends a sentence, of which `last` may be the first. */
  endsAtFullStop(last, isFirst, word) {
    const lower = last.toLowerCase();
    const starts = this.starters.has(word.toLowerCase());
    if (isFirst && /^\p{Nd}+$/u.test(last)) return false;  // 1. First of a list
    if (this.beforeMore.has(lower) || [...this.suffixes].some((suffix) => lower.endsWith(suffix))) return false;
    if (INITIALS.test(last) && !(last.length === 1 && isLower(last))) return starts;
    if (this.beforeNumbers.has(lower)) return !/^\p{N}/u.test(word);
    const mayGoOn = this.beforeEither.has(lower) || (this.ordinals && /^(?:\p{Nd}{1,2}|[IVXLC]+)$/u.test(last));
    return starts || !mayGoOn;
  }

  wordBefore(text, end, start) { return this.last.exec(text.slice(Math.max(start, end - LONGEST_WORD), end))[0]; }
}

const ELLIPSES = ["...", "…"];
const ABBREVIATION = /^(?=[^A-Z]*[A-Z])[!-`{-~]{0,4}[A-Z0-9]$/;  // FAQ, N/A, A1
const EMPHATIC = /[!?！？]{2,}$/;
const SPACES = " \\t\\u00a0\\u2009\\u202f\\u3000";

/** Returns a text without the brackets, quotation marks and spaces at its end. */
const bareOf = (text, closing) => text.replace(new RegExp(`[${escaped(closing)}${SPACES}]+$`, "u"), "");

/** Returns what ends the translation of a bare text in place of a full stop; null if it may have one. */
function endOf(bare, {stops, wide}) {
  const last = [...bare].at(-1), ellipsis = ELLIPSES.find((each) => bare.endsWith(each));
  if (ellipsis) return ellipsis;
  const emphatic = EMPHATIC.exec(bare);
  if (emphatic) return emphatic[0];
  if (!last || `${stops}${wide};`.includes(last) || UNSPACED.test(last)) return null;  // ; asks in Greek
  return ",:".includes(last) ? last : "";
}

/**
 * Returns a text that ends as a sentence does: in the full stop if it has none, or a comma or colon; in one mark of several,
 * a question mark if it has one.
 */
function endedAsSentence(text, fullStop, marks) {
  const bare = bareOf(text, marks.closing), end = endOf(bare, marks);
  if (end === "" && JOINS.test([...bare].at(-1))) return text + fullStop;
  if (!end || !text.endsWith(end)) return text;
  const rest = text.slice(0, -end.length);
  if (EMPHATIC.test(end)) return rest + (/[?？]/.exec(end)?.[0] ?? end[0]);
  return [",", ":"].includes(end) ? rest.trimEnd() + fullStop : text;
}

/**
 * Returns an output that ends in no full stop or exclamation mark if its source has none, and in its ellipsis; the rules
 * are those of nmt/formats/sentences.py.
 */
function withEndOf(source, output, {stops, wide, closing}, {fullStops, abbreviations}) {
  const bare = bareOf(source, closing), mark = endOf(bare, {stops, wide}), ellipsis = ELLIPSES.includes(mark) ? mark : null;
  if (mark === null) return output;
  const whole = output.trimEnd(), mayExclaim = /[!！]/.test(source) || whole.includes("¡");
  const text = mayExclaim ? whole : whole.replace(/(?<=\S)\s*[!！]+$/, ""), tail = output.slice(whole.length);
  if (EMPHATIC.test(mark)) {
    const bare = text.replace(new RegExp(`[${escaped(stops)}]+$`, "u"), "");
    return HAS_WORDS.test(bare) && !`${closing}${wide}`.includes([...bare].at(-1)) ? bare + mark + tail : output;
  }
  const [stop, before] = [...text].reverse();
  const isStopped = stop && fullStops.includes(stop) && !stops.includes(before);
  if (ellipsis && stop && (JOINS.test(stop) || (stop === "." && isStopped))) {
    return text.replace(/\.$/, "") + ellipsis + tail;
  }
  if (text !== whole) return text + (/[,:]$/.test(text) ? "" : mark) + tail;
  if (!isStopped) return output;
  const word = new RegExp(`[${WORD}.&'’\\-]*$`, "u").exec(text.slice(0, -stop.length).slice(-LONGEST_WORD))[0];
  const isOrdinal = /^\p{Nd}+$/u.test(word) && !bare.endsWith(word);
  const isInitial = JOINS.test(word) && !/^[\p{Nd}\p{Lowercase}]/u.test(word);
  if (isOrdinal || isInitial || word.includes(".") || abbreviations.includes(word.toLowerCase())) return output;
  const rest = text.slice(0, -stop.length).trimEnd();
  return rest + (!ellipsis && /[,:]$/.test(rest) ? "" : mark) + tail;
}

const cut = (text, starts) => starts.map((start, index) => text.slice(start, starts[index + 1])).filter(Boolean);

const MOST_FRAMES = 9;  // no text has more around it, and each takes a look at all of it

/** Finder of what stands around a sentence: the rules of nmt/formats/frames.py. */
class Frames {
  constructor({item, pairs, behind, noSentence, beforeQuotation, asideBefore, asideBehind}) {
    Object.assign(this, {item: expression(item, "y"), pairs, noSentence: expression(`^${noSentence}`, "s")});
    this.laterItem = expression(`\\s(?:${item})`, "");
    this.behind = new RegExp(`^[${escaped(behind)}]*$`, "u");
    this.beforeQuotation = expression(beforeQuotation, "g");
    Object.assign(this, {asideBefore: expression(asideBefore, "y"), asideBehind: expression(asideBehind, "")});
  }

  /** Returns the sentence {text, start} that a text has within marks and brackets; all of it if there are none. */
  inside(text) {
    let start = 0, inside = text;
    for (let frames = 0; frames < MOST_FRAMES; frames++) {
      const item = matchAt(this.item, inside, 0), closing = this.closing(inside);
      if (!item && !closing) break;
      const inner = item ? inside.slice(item[0].length) : inside.slice(1, closing);
      start += (item ? item[0].length : 1) + inner.length - inner.trimStart().length;
      inside = inner.trim();
    }
    return !inside || this.noSentence.test(inside) ? {text, start: 0} : {text: inside, start};
  }

  /** Returns where a sentence is to be cut from what is in brackets before and behind it: (laughs) I see. [sighs] */
  asides(sentence) {
    const cuts = [], before = matchAt(this.asideBefore, sentence, 0), behind = this.asideBehind.exec(sentence);
    if (before && !this.isItem(sentence)) {
      const isPlain = [before[0].toLowerCase(), before[0].toUpperCase()].includes(before[0]);
      if (isPlain && isUpper(sentence[before[0].length] ?? "")) cuts.push(before[0].length);
    }
    if (behind) cuts.push(behind.index + behind[0].length);
    return cuts;
  }

  /** Tells whether a text has a bracket or mark that opens, or may have an item that does not begin it. */
  mayBeInside(text) {
    return Object.keys(this.pairs).some((opening) => text.includes(opening)) || this.laterItem.test(text);
  }

  isItem(sentence) { return matchAt(this.item, sentence, 0) !== null; }

  /** Returns where a quotation begins that is a sentence and ends this one: He said, "I see." Returns 0 without one. */
  quotation(sentence, marks) {
    for (const {0: before, index} of sentence.matchAll(this.beforeQuotation)) {
      const rest = sentence.slice(index + before.length).trimEnd(), at = this.closing(rest);
      if (at && at === rest.length - 1 && marks.includes(rest[at - 1])) return index + before.length;
    }
    return 0;
  }

  /** Returns where that closes at the end of a text, before marks at most, which opens at its start; 0 if nothing does. */
  closing(text) {
    const opening = text[0], closing = this.pairs[opening] ?? "";
    const isApostrophe = (at) => JOINS.test(text[at - 1]) && JOINS.test(text[at + 1] ?? "");
    let depth = 1;
    for (let at = 1; at < text.length; at++) {
      if (isApostrophe(at)) continue;
      if (closing.includes(text[at])) {
        depth -= 1;
        if (!depth) return this.behind.test(text.slice(at + 1)) ? at : 0;
      } else if (text[at] === opening) depth += 1;
    }
    return 0;
  }
}

/** Splits lines into parts {text, start, ids}, as the model was trained to translate them. */
class LineSplitter {
  constructor(vocabulary, decoding, lengths, table, frames, symbols) {
    Object.assign(this, {vocabulary, lengths, how: decoding.split});
    this.frames = new Frames(frames);
    this.hasFrames = decoding.keep && this.how !== "none";
    this.sentences = new SentenceSplitter(table);
    this.fullStop = this.hasFrames && lengths ? lengths.full_stop : "";
    const clauses = this.fullStop ? lengths.clauses : {};
    this.clauseMarks = Object.entries(clauses).map(([mark, pattern]) => [mark, expression(pattern, "g")]);
    this.longest = this.limit = Math.max(1, decoding.max_source - symbols.length);
    if (!lengths && this.how === "auto") this.how = "sentences";
    if (lengths && ["auto", "sentences"].includes(this.how)) this.longest = Math.min(this.longest, Math.max(1, lengths.longest_source));
  }

  split(line) {
    const whole = line.trim();
    const {text, start: inside} = this.inside(whole);
    if (!(text === whole ? HAS_WORDS : HAS_LETTERS).test(text) || this.stays(text)) return [];
    const start = line.indexOf(whole) + inside;
    const isWhole = ["length", "none"].includes(this.how) || (this.how === "auto" && this.isUsual(text));
    const parts = [];
    let at = start;
    for (const group of isWhole ? [text] : this.groups(text)) {
      const sentence = isWhole ? {text, start: 0} : this.inside(group.trimEnd());
      parts.push(...this.cut(sentence.text, at + sentence.start));
      at += group.length;
    }
    return parts.map((part) => this.asSentence(part));
  }

  /** Returns a part as a model of whole sentences knows it. */
  asSentence(part) {
    if (!this.fullStop) return part;
    const text = endedAsSentence(part.text, this.fullStop, this.sentences);
    if (text === part.text) return part;
    const ids = this.vocabulary.encode(text);
    return ids.length <= this.limit ? {...part, ids} : part;
  }

  inside(text) { return this.hasFrames ? this.frames.inside(text) : {text, start: 0}; }

  /** Returns where a line's sentences begin if some of them are in brackets or quotation marks, or in capitals; else 0. */
  startsAroundOthers(line, isInCapitals) {
    const mayBeFramed = this.hasFrames && this.frames.mayBeInside(line);
    const mayHaveClauses = this.clauseMarks.some(([, pattern]) => line.search(pattern) >= 0);
    if (!mayBeFramed && !mayHaveClauses && !/\p{Uppercase}{2}/u.test(line)) return [0];  // at once, like most lines
    if (["none", "length"].includes(this.how) || (isInCapitals(line) && !mayHaveClauses)) return [0];
    const marks = this.sentences.stops + this.sentences.wide, starts = [0];
    let at = 0, isOther = false;
    for (const sentence of this.sentences.split(line)) {
      const cuts = mayHaveClauses ? this.clauses(sentence) : [];
      if (mayBeFramed) cuts.push(...this.frames.asides(sentence), this.frames.quotation(sentence, marks));
      const inner = cuts.filter(Boolean).sort((one, other) => one - other);
      starts.push(...inner.map((each) => at + each));
      isOther ||= inner.length > 0 || isInCapitals(sentence);
      isOther ||= mayBeFramed && ((at > 0 && this.frames.isItem(sentence)) || this.frames.closing(sentence.trimEnd()));
      at += sentence.length;
      starts.push(at);
    }
    return isOther ? starts.slice(0, -1) : [0];
  }

  /** Returns where clauses of a sentence end and begin: around each mark between them that the model has not seen. */
  clauses(sentence) {
    return this.clauseMarks.flatMap(([mark, pattern]) => {
      const found = [...sentence.matchAll(pattern)];
      return mark === "–" && found.length > 1 ? [] : found.flatMap(({0: {length}, index}) => [index, index + length]);
    });
  }

  /** Tells whether a text has no letters or only one, or is an abbreviation that the vocabulary lacks. */
  stays(text) {
    if (!this.fullStop) return false;
    return !/\p{L}/u.test(text) || (ABBREVIATION.test(text) && (text.length === 1 || this.size(text) > 1));
  }

  /** Tells whether the translation of a part begins in a small letter, as it does itself; `before` is the line before. */
  goesOnSmall(text, before) {
    const isClause = text.startsWith("I ") && /[\p{L}\p{N}](?:\s?;|\s[–—-]{1,2})\s*$/u.test(before);
    return Boolean(this.fullStop) && (isClause || /^\p{Lowercase}/u.test(text));
  }

  size(text) { return this.vocabulary.encode(text.trimEnd()).length; }

  isUsual(text) {
    const fits = this.size(text) <= Math.min(this.longest, this.lengths.source);
    return fits && this.sentences.split(text).length <= this.lengths.sentences;
  }

  /** Returns groups of as many sentences as the training lines usually had. */
  groups(text) {
    const together = this.how === "auto" && this.lengths ? this.lengths.usual_sentences : 1;
    const isShort = (sentence) => !this.lengths || 2 * this.size(sentence) <= this.lengths.source;
    const sentences = this.sentences.split(text).flatMap((each) => isShort(each) ? [each] : this.sentences.splitUnmarked(each));
    const groups = [];
    let count = 0, size = 0;
    for (const sentence of sentences) {
      const subwords = this.size(sentence);
      if (!groups.length || count >= Math.max(1, together) || size + subwords > this.longest) {
        groups.push("");
        count = size = 0;
      }
      groups[groups.length - 1] += sentence;
      count += 1;
      size += subwords;
    }
    return groups;
  }

  /** Cuts a text that is too long into parts of similar length. */
  cut(text, start) {
    const ids = this.vocabulary.encode(text);
    if (ids.length <= this.longest) return [{text, start, ids}];
    const ends = this.vocabulary.ends(text, ids);
    const parts = [];
    for (let first = 0, last; first < ids.length; first = last) {
      const rest = ids.length - first;
      last = ids.length;
      if (rest > this.longest) last = this.bestCut(ids, first, first + Math.ceil(rest / Math.ceil(rest / this.longest)));
      const from = first ? ends[first - 1] : 0;
      const own = text.slice(from, ends[last - 1]).trim();
      parts.push({text: own, start: start + text.indexOf(own, from), ids: ids.slice(first, last)});
    }
    return parts;
  }

  /** Returns the best cut near `ideal`: behind a sentence, else a clause, else before a word, else at the limit. */
  bestCut(ids, start, ideal) {
    const last = start + this.longest;
    const cuts = [];
    for (let at = start + Math.max(1, Math.floor(this.longest / 2)); at <= last; at++) cuts.push(at);
    cuts.sort((one, other) => Math.abs(one - ideal) - Math.abs(other - ideal));
    const piece = (at) => this.vocabulary.symbols[ids[at]];
    const words = cuts.filter((at) => piece(at).startsWith("\u2581"));
    for (const marks of [this.sentences.stops + this.sentences.wide, ",;:–—،؛、，；："])
      for (const at of words.length ? words : cuts) if (marks.includes(piece(at - 1).at(-1))) return at;
    return words[0] ?? last;
  }
}
