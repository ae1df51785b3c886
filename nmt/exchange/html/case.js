"use strict";
// Lines as people type them and as the model knows them: the rules of nmt/formats/letter_case.py.

const FEWEST_LETTERS = 4, UNUSUAL = 1.6, FEWEST_SPELLED = 3, FEWEST_WORDS = 3, FEWEST_UNUSUAL = 2, LONGEST_SMALL = 4;
const IN_CASED_WORD = "[\\p{L}\\p{N}_]";
const CASED_WORD = new RegExp(
  `(?<!${IN_CASED_WORD})\\p{L}(?:[\\p{L}\\p{N}\\p{M}_\\u00ad]|['’·\\u055b-\\u055e](?=${IN_CASED_WORD}))*`, "gu");
const ENGLISH_I = /(?<=^|[\s"“‘(])[Ii](?=['’][\p{L}]|,?\s|[,.!?]?$)(?!\s+in\b)/yu;  // not i.e., (i) or a loop's index
const NUMERAL = /^(?:X{0,3}(?:IX|IV|V?I{2,3})|X{1,3}(?:VI?|I)|X{2,3})(?![\p{L}\p{N}_])/u;  // of the Roman ones, those that are no words
const CONSONANTS = /^(?!MRS$)[B-DF-HJ-NP-TV-XZ]{3,}$/;
const MIXED = /(?<![\p{L}\p{N}_])[\p{L}\p{N}_]*(?:[a-zà-ÿ][A-ZÀ-Þ]|[A-Z]{2}[a-z])[\p{L}\p{N}_]*/u;  // iPHONE, McDONALD, DVDs, tÚ
const STYLED = /(?<!\p{Nd})(?<!(?<!%)\p{Nd}\s)%(?:[A-KM-Z]\p{Nd}{1,2}(?!\p{Nd})|[A-Z](?=[A-Z][a-z]))/u;  // %C18, %BBold
const STYLES = /%[A-Z]\p{Nd}{0,2}|\$(?:\p{Nd}{1,2}|[a-z](?![a-z]))/gu, NUMBERED = /\$[1-9](?!\p{Nd}|[.,]\p{Nd})/gu;
const KEYS = {"“": "\"", "”": "\"", "„": "\"", "«": "\"", "»": "\"", "‘": "'", "’": "'", "‚": "'", "‑": "-", "–": "-", "—": "-", "…": "."};
const NOTHING = "(?!)";  // an expression that matches nothing
const BEGINS_MIXED = new RegExp(`^${MIXED.source}`, "u");
const isUpperWord = (word) => isUpper(word) && !/\p{Lowercase}/u.test(word);

/** Returns a regular expression that nmt has as text: with letters of all scripts, and nothing possessive. */
function expression(pattern, flags) {
  const ofAllScripts = (part) => part.replaceAll("\\w", "\\p{L}\\p{N}_").replaceAll("\\d", "\\p{Nd}");
  const inAnyCase = (part) => part.replace(/\\.|a-z|[a-z]/g, (each) =>  // browsers of before 2025 lack (?i:…)
    each[0] === "\\" ? each : each === "a-z" ? "a-zA-Z" : `[${each}${each.toUpperCase()}]`);
  const translated = pattern
    .replace(/\(\?i(:(?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))/g, (_, part) => `(?${inAnyCase(part)}`)
    .replaceAll("(?P<", "(?<").replace(/\(\?P=(\w+)\)/g, "\\k<$1>").replace(/(?<=[*+?}])\+/g, "")
    .replaceAll("[^\\W\\d_]", `[${LETTER}]`).replaceAll("[^\\W\\d]", `[${LETTER}_]`).replaceAll("[^\\W_]", "[\\p{L}\\p{N}]")
    .replace(/\[(?:\\.|[^\]\\])*\]|\\./g, (part) => part === "\\w" ? `[${WORD}]` : ofAllScripts(part))
    .replace(/\\(["#'<])/g, "$1").replace(/\\U000(\w{5})/g, "\\u{$1}");
  return new RegExp(translated, `${flags}u`);
}

/** What is to keep in every text: tags, placeholders, URLs, names of files and the like, by the patterns of nmt. */
class Kept {
  constructor([tags, ...patterns]) {
    this.tags = expression(tags, "gs");
    this.patterns = patterns.map((pattern) => [expression(pattern, "g"), /(?:)/]);
    this.patterns.push([STYLES, STYLED], [NUMBERED, /\$1(?!\p{Nd}|[.,]\p{Nd})/u]);
  }

  /** Returns the spans to keep as [start, end], in order: of overlapping ones the leftmost, then the longest. */
  spans(text) {
    const found = [...text.matchAll(this.tags)].map(({0: tag, index}) => [index, index + tag.length]);
    const edges = [...new Set([0, text.length, ...found.flat()])].sort((one, other) => one - other);
    for (const [pattern, condition] of this.patterns) {
      if (!condition.test(text)) continue;
      for (let each = 1; each < edges.length; each++) {  // none crosses the edge of a tag
        pattern.lastIndex = edges[each - 1];
        for (const {0: kept, index} of text.slice(0, edges[each]).matchAll(pattern)) {
          const inside = kept.trim(), start = text.indexOf(inside, index);
          if (inside) found.push([start, start + inside.length]);
        }
      }
    }
    found.sort((one, other) => one[0] - other[0] || other[1] - one[1]);
    const kept = [];
    for (const span of found) {
      if (!kept.length || span[0] >= kept.at(-1)[1]) kept.push(span);
    }
    return kept;
  }

  /** Calls `change` with what of a text is not to keep, and puts what it returns in its place. */
  outside(text, change) {
    let last = 0, found = "";
    for (const [start, end] of this.spans(text)) {
      found += change(text.slice(last, start)) + text.slice(start, end);
      last = end;
    }
    return found + change(text.slice(last));
  }

  /** Returns what of a text is not to keep, with spaces between. */
  bare(text) {
    let found = "";
    this.outside(text, (part) => found += `${part} `);
    return found;
  }

  /** Returns the words outside of what is to keep that touch at most tags, as `matchAll` does. */
  words(text) {
    const taken = this.spans(text).map(([start, end]) => {
      const edge = Number(!"<&".includes(text[start]));
      return [start - edge, end + edge];
    });
    const isFree = ({0: word, index}) => !taken.some(([start, end]) => start < index + word.length && index < end);
    return [...text.matchAll(CASED_WORD)].filter(isFree);
  }
}

function isInCapitals(text, kept) {
  const bare = kept.bare(text);
  const plain = bare.replace(new RegExp(MIXED, "gu"), "");
  const capitals = (plain.match(/\p{Uppercase}/gu) ?? []).length;
  return !/(?![ßªº])\p{Lowercase}/u.test(plain) && capitals >= Math.max(FEWEST_LETTERS, bare.length - plain.length);
}

function isInTitleCase(text, kept) {
  const words = kept.words(text);
  return words.length >= FEWEST_WORDS && words.every(([word]) => /^\p{Uppercase}/u.test(word));
}

/** Tells how the translation of a line is to be written, which was changed to `usual`: "capitals", "title" or "". */
function styleOf(text, usual, kept) {
  if (isInCapitals(text, kept)) return usual === text ? "" : "capitals";
  return isInTitleCase(text, kept) ? "title" : "";
}

/** Writes a translation in a style. */
function inStyle(text, style, language, kept) {
  if (style === "capitals")
    return kept.outside(text, (part) => part.replace(/[^\u10d0-\u10ff]+/g, (letters) => letters.toLocaleUpperCase(language)));
  const capital = language.startsWith("nl") ? /^(?:ij|.)/u : /^./u;  // IJsland
  let last = 0, found = "";
  for (const {0: word, index} of kept.words(text)) {
    if (word !== word.toLocaleLowerCase(language)) continue;
    found += text.slice(last, index) + word.replace(capital, (first) => first.toLocaleUpperCase(language));
    last = index + word.length;
  }
  return found + text.slice(last);
}

const POLITE = new Set(["sie", "ihr", "ihre", "ihren", "ihrem", "ihrer", "ihnen"]);  // with a capital, German for you

/** Returns a text that begins a sentence as it goes on in one: in a small letter, unless its word has a capital. */
function insideSentence(text, vocabulary, starters, language) {
  const [word] = /^[\p{L}\p{Nl}\p{No}]+/u.exec(text) ?? [""], small = text.slice(0, 1).toLowerCase() + word.slice(1);
  if (!word || word === "I" || small.length !== word.length || (language === "de" && POLITE.has(small))) return text;
  const rules = new CaseRules(vocabulary, {});
  const isName = rules.rareness(small) >= rules.rareness(word);
  return isName && !starters.has(small) ? text : small + text.slice(word.length);
}

/** Reads the words of a text: {at, text, small, withCapital, begins, isPronoun, isAbbreviation, isFunctionWord, follows}. */
function* readWords(text, {language, stops, closing, kept, abbreviations, functionWords}) {
  const ended = new RegExp(`[${escaped(stops)}][${escaped(closing)}]*\\s[^\\p{L}\\p{N}_]*$`, "u");
  let last = 0;  // offset behind the word before
  for (const {0: word, index: at} of kept.words(text)) {
    const gap = text.slice(last, at), bare = gap.replace(kept.tags, " ");
    const begins = ended.test(bare) || !(last || HAS_WORDS.test(bare));
    last = at + word.length;
    const small = word.toLocaleLowerCase(language), isInitial = word.length === 1 && text[last] === ".";
    yield {
      at, text: word, small, withCapital: word[0] + small.slice(1), begins,
      isPronoun: language === "en" && matchAt(ENGLISH_I, text, at) !== null,
      isAbbreviation: isInitial || abbreviations.includes(small) || NUMERAL.test(word) || BEGINS_MIXED.test(word),
      isFunctionWord: functionWords.includes(small),
      follows: /^\s+$/.test(gap),
    };
  }
}

/** Writes a line as it would usually be written, in as many characters. */
function asUsual(text, vocabulary, settings) {
  const rules = new CaseRules(vocabulary, settings);
  text = rules.withKnownSigns(text);
  if (isInCapitals(text, settings.kept)) return rules.withoutCapitals(text);
  return rules.withCapitals(rules.withoutTitleCase(rules.withoutEmphasis(text)));
}

class CaseRules {
  constructor(vocabulary, settings) {
    Object.assign(this, {vocabulary, settings, size: vocabulary.symbols.length, emphasised: new Set(settings.emphasised)});
  }

  count(form) { return this.vocabulary.encode(form).length; }

  /** Returns a number that is larger for more subwords and, of one, for a later place in the vocabulary. */
  rareness(form) {
    const ids = this.vocabulary.encode(form), place = ids.length === 1 ? ids[0] : 0;
    return ids.length * 2 * this.size + place * (/^\p{Uppercase}/u.test(form) ? 2 : 1);
  }

  /** Returns a word in capitals as the vocabulary has it with the fewest subwords. */
  usual({text, small, withCapital, begins, isPronoun, isAbbreviation, isFunctionWord}) {
    if (isAbbreviation || small.length !== text.length) return text;
    const plain = isFunctionWord ? [small] : [small, withCapital];
    const elided = plain.map((form) => form.replace(/(?<=['’])\p{L}(?=\p{L})/gu, (letter) => letter.toUpperCase()));
    const forms = [...plain, text, ...elided];  // l'Italie, O'Brien
    if (this.settings.language === "de") {
      forms.push(...plain.map((form) => form.replaceAll("ss", "ß\u00ad")));  // STRASSE
      if (!isFunctionWord && this.count(small) > 1) forms.unshift(withCapital);  // of rare words, most are nouns
    }
    const best = forms.reduce((best, other) => this.rareness(other) < this.rareness(best) ? other : best);
    if (CONSONANTS.test(text) && 2 * this.count(best) > text.length) return text;  // PDF
    return begins || isPronoun ? text[0] + best.slice(1) : best;
  }

  /** Returns whether a word in capitals usually has others, and is one subword then. */
  isWhole(word) {
    const usual = this.usual(word);
    return usual !== word.text && this.count(usual) === 1;
  }

  /** Returns a text with signs of the keyboard in place of typographic ones that the vocabulary spells as bytes. */
  withKnownSigns(text) {
    const key = (sign) => this.count(sign) >= FEWEST_SPELLED ? KEYS[sign] : sign;
    return this.settings.kept.outside(text, (part) => part.replace(/[“”„«»‘’‚‑–—…]/gu, key));
  }

  withoutCapitals(text) {
    let before = 0, after = 0;  // subwords
    const edits = [...readWords(text, this.settings)].map((word) => {
      const usual = this.usual(word);
      if (usual !== word.text) {
        before += this.count(word.text);
        after += this.count(usual);
      }
      return [word, usual];
    });
    return before >= UNUSUAL * after ? rewritten(text, edits) : text;
  }

  withoutEmphasis(text) {
    const clear = [];  // words of runs with one that the vocabulary has in small letters alone
    let run = [], isEmphasised = false;
    const end = () => {
      const whole = run.filter(({text, small}) => this.count(text) >= FEWEST_SPELLED && this.count(small) === 1);
      if (whole.length) clear.push(...run);
      const isPhrase = run.length > 1 && whole.length > 0 && run.every((word) => this.isWhole(word));
      isEmphasised ||= isPhrase || whole.some(({small}) => this.emphasised.has(small));
      run = [];
    };
    for (const word of readWords(text, this.settings)) {
      const isCapital = isUpperWord(word.text);
      if (!isCapital || !word.follows) end();
      if (isCapital) run.push(word);
    }
    end();
    if (!isEmphasised) return text;
    const edits = clear.map((word) => [word, this.usual(word)]);
    const isWanted = ([word, usual]) => word.begins || word.isPronoun || this.count(usual) < this.count(word.text);
    return rewritten(text, edits.filter(isWanted));
  }

  withoutTitleCase(text) {
    const edits = [];
    let withCapital = 0, small = 0, unusual = 0;  // words
    for (const word of readWords(text, this.settings)) {
      if (word.text === word.small) {
        small += 1;
        if (word.text.length > LONGEST_SMALL) return text;
      } else if (word.text === word.withCapital && !word.begins && !word.isPronoun) {
        withCapital += 1;
        if (word.small.length !== word.text.length) continue;
        const isNoName = word.isFunctionWord && !(this.settings.language === "de" && POLITE.has(word.small));
        if (isNoName || this.rareness(word.small) <= this.rareness(word.text)) edits.push([word, word.small]);
        if (isNoName) unusual += FEWEST_UNUSUAL;
        else unusual += Number(this.count(word.small) < this.count(word.text));
      }
    }
    const mayBeSentence = small > 0 && (small >= withCapital || /[.?][^\p{L}\p{N}_]*$/u.test(text));
    return mayBeSentence || unusual < FEWEST_UNUSUAL ? text : rewritten(text, edits);
  }

  withCapitals(text) {
    const words = [...readWords(text, this.settings)];
    if (/\p{Uppercase}/u.test(text) || words.length < FEWEST_WORDS) return text;
    const edits = [];
    for (const word of words) {
      const capital = word.text[0].toLocaleUpperCase(this.settings.language) + word.text.slice(1);
      if (capital.length !== word.text.length) continue;
      const size = this.count(capital), spelled = this.count(word.text);
      const isName = size === 1 && spelled >= FEWEST_SPELLED;
      const isNoun = this.settings.language === "de" && size < spelled;
      if (word.isPronoun || (!word.begins && !word.isFunctionWord && (isName || isNoun))) edits.push([word, capital]);
    }
    return rewritten(text, edits);
  }
}

/** Writes words of a text in another way, of the same length each. */
function rewritten(text, edits) {
  for (const [{at}, usual] of edits) text = text.slice(0, at) + usual + text.slice(at + usual.length);
  return text;
}
