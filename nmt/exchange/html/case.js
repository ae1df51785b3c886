"use strict";
// Lines in capitals and in title case, which the model translates as they would be written otherwise: the rules of
// nmt/formats/letter_case.py.

const FEWEST_LETTERS = 4, UNUSUAL = 1.6, FEWEST_SPELLED = 3, FREQUENT = 0.25, COMMON = 0.5, FEWEST_WORDS = 3, FEWEST_UNUSUAL = 2, LONGEST_SMALL = 4;
const IN_CASED_WORD = "[\\p{L}\\p{N}_]";
const CASED_WORD = new RegExp(
  `(?<!${IN_CASED_WORD})\\p{L}(?:[\\p{L}\\p{N}\\p{M}_\\u00ad]|['’·](?=${IN_CASED_WORD}))*`, "gu");

const isInCapitals = (text) => !/(?!ß)\p{Lowercase}/u.test(text) && (text.match(/\p{Uppercase}/gu) ?? []).length >= FEWEST_LETTERS;

function isInTitleCase(text) {
  const words = casedWords(text);
  return words.length >= FEWEST_WORDS && words.every((word) => /^\p{Uppercase}/u.test(word));
}

const casedWords = (text) => (text.match(CASED_WORD) ?? []).filter((word) => !/\p{N}/u.test(word));

/** Tells how the translation of a line is to be written, which was changed to `usual`: "capitals", "title" or "". */
function styleOf(text, usual) {
  if (isInCapitals(text)) return usual === text ? "" : "capitals";
  return isInTitleCase(text) ? "title" : "";
}

/** Writes a translation in a style. */
function inStyle(text, style, language) {
  if (style === "capitals") return text.toLocaleUpperCase(language);
  return text.replace(CASED_WORD, (word) => {
    if (/\p{N}/u.test(word) || word !== word.toLocaleLowerCase(language)) return word;
    return word[0].toLocaleUpperCase(language) + word.slice(1);
  });
}

/** Reads the words of a text: {at, text, small, withCapital, begins, hasCapital, isInitial}. */
function* readWords(text, {language, stops, closing}) {
  const ended = new RegExp(`[${escaped(stops)}][${escaped(closing)}]*\\s[^\\p{L}\\p{N}_]*$`, "u");
  let last = 0;  // offset behind the word before
  for (const {0: word, index: at} of text.matchAll(CASED_WORD)) {
    if (/\p{N}/u.test(word)) continue;
    const gap = text.slice(last, at), begins = last ? ended.test(gap) : !HAS_WORDS.test(gap);
    last = at + word.length;
    const small = word.toLocaleLowerCase(language);
    yield {
      at, text: word, small, withCapital: word[0] + small.slice(1), begins,
      hasCapital: language === "en" && /^[Ii](?![\p{L}\p{N}_])/u.test(word),
      isInitial: word.length === 1 && text[last] === ".",
    };
  }
}

/** Writes words in small letters and in capitals as they would usually be. */
function asUsual(text, vocabulary, settings) {
  const rules = new CaseRules(vocabulary, settings);
  if (isInCapitals(text)) return rules.withoutCapitals(text);
  return rules.withCapitals(rules.withoutTitleCase(rules.withoutEmphasis(text)));
}

class CaseRules {
  constructor(vocabulary, settings) { Object.assign(this, {vocabulary, settings, size: vocabulary.symbols.length}); }

  count(form) { return this.vocabulary.encode(form).length; }

  /** Returns a number that is larger for more subwords and, of one, for a later place in the vocabulary. */
  rareness(form) {
    const ids = this.vocabulary.encode(form), place = ids.length === 1 ? ids[0] : 0;
    return ids.length * 2 * this.size + place * (/^\p{Uppercase}/u.test(form) ? 2 : 1);
  }

  /** Returns a word in capitals as the vocabulary has it with the fewest subwords. */
  usual({text, small, withCapital, begins, hasCapital, isInitial}) {
    if (isInitial || small.length !== text.length) return text;
    const forms = [small, withCapital, text];
    if (this.settings.language === "de") {
      forms.push(...forms.slice(0, 2).map((form) => form.replaceAll("ss", "ß\u00ad")));  // STRASSE
      if (this.count(small) > 1) forms.unshift(withCapital);  // of rare words, most are nouns
    }
    const best = forms.reduce((best, other) => this.rareness(other) < this.rareness(best) ? other : best);
    return begins || hasCapital ? text[0] + best.slice(1) : best;
  }

  withoutCapitals(text) {
    let before = 0, after = 0;  // subwords
    const edits = [...readWords(text, this.settings)].map((word) => {
      const usual = this.usual(word);
      before += this.count(word.text);
      after += this.count(usual);
      return [word, usual];
    });
    return before >= UNUSUAL * after ? rewritten(text, edits) : text;
  }

  withoutEmphasis(text) {
    if (!text.split(/\s+/).some((word) => word.length >= FEWEST_SPELLED && isUpper(word))) return text;
    const edits = [];
    let run = [];
    const end = () => {
      const spelled = run.filter((word) => this.count(word.text) >= FEWEST_SPELLED);
      const ids = spelled.map(({small, withCapital}) => [small, withCapital].map((form) => this.vocabulary.encode(form)));
      const places = ids.map(([one, other]) => other.length < one.length ? other : one).filter(({length}) => length === 1).flat();
      if (places.length && (run.length > 1 || Math.min(...places) < FREQUENT * this.size))
        edits.push(...run.map((word) => [word, this.usual(word)]));
      run = [];
    };
    for (const word of readWords(text, this.settings)) {
      if (isUpper(word.text)) run.push(word);
      else end();
    }
    end();
    return rewritten(text, edits);
  }

  withoutTitleCase(text) {
    const edits = [];
    let unusual = 0;  // words that the vocabulary has in small letters alone
    for (const word of readWords(text, this.settings)) {
      if (word.text === word.small) {
        if (word.text.length > LONGEST_SMALL) return text;
      } else if (word.text === word.withCapital && !word.begins && !word.hasCapital && word.small.length === word.text.length) {
        if (this.rareness(word.small) <= this.rareness(word.text)) edits.push([word, word.small]);
        unusual += Number(this.count(word.small) < this.count(word.text));
      }
    }
    return unusual >= FEWEST_UNUSUAL ? rewritten(text, edits) : text;
  }

  withCapitals(text) {
    const words = [...readWords(text, this.settings)];
    if (/\p{Uppercase}/u.test(text) || words.length < FEWEST_WORDS) return text;
    const {language} = this.settings;
    const edits = [];
    for (const word of words) {
      const capital = word.text[0].toLocaleUpperCase(language) + word.text.slice(1);
      if (capital.length !== word.text.length) continue;
      const ids = this.vocabulary.encode(capital), spelled = this.count(word.text);
      const isClear = spelled >= FEWEST_SPELLED || ids[0] < COMMON * this.size;
      const isName = ids.length === 1 && spelled > 1 && isClear;
      const isNoun = language === "de" && ids.length < spelled;
      if (word.hasCapital || (!word.begins && (isName || isNoun))) edits.push([word, capital]);
    }
    return rewritten(text, edits);
  }
}

/** Writes words of a text in another way, of the same length each. */
function rewritten(text, edits) {
  for (const [{at}, usual] of edits) text = text.slice(0, at) + usual + text.slice(at + usual.length);
  return text;
}
