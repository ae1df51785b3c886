// The search of the site: it finds sections by their headings and text (texts.js), recipe keys and commands first.
const REFERENCE = ["docs/reference/recipes", "docs/reference/commands"];
const LATER = ["CHANGELOG", "CONTRIBUTING", "README", "benchmarks/", "docs/architecture", "docs/decisions", "docs/testing"];

const plain = (text) => text.toLowerCase().replaceAll("-", ""); // warm-up is warmup

Search._performSearch = (query) => {
  const asked = plain(query).trim();
  const words = splitQuery(asked).filter((word) => !stopwords.has(word));
  const stemmer = new Stemmer();
  const patterns = words.map((word) => new RegExp(`(?<![a-z0-9])(?:${word}|${stemmer.stemWord(word)})`, "g"));
  const count = (pattern, text) => (plain(text).match(pattern) ?? []).length;
  const found = [];
  for (const [page, sections] of Object.entries(patterns.length ? TEXTS : {})) {
    const [[, pageTitle]] = sections;
    const isReference = REFERENCE.includes(page);
    const rank = LATER.some((name) => page.startsWith(name)) ? -10 : 0;
    for (const [anchor, title, text] of sections) {
      const scores = patterns.map((pattern) => {
        const hits = Math.min(count(pattern, text), 5) + (count(pattern, pageTitle) ? 1 : 0);
        return count(pattern, title) ? 10 + hits : hits;
      });
      if (scores.includes(0)) continue;
      let score = rank + scores.reduce((sum, each) => sum + each) / scores.length;
      if (plain(title).includes(asked)) score += (10 * asked.length) / title.length;
      if (isReference && plain(title).split(/[. ]/).pop() === asked.split(".").pop()) score += 10;
      const name = title === pageTitle ? title : `${pageTitle} > ${title}`;
      found.push([page, name, `#${anchor}`, null, Math.round(score), "", SearchResultKind.text]);
    }
  }
  return found.sort(_orderResultsByScoreThenName).slice(-50); // the best is the last
};

// Excerpts without requests, which browsers refuse for pages from disk.
window.fetch = async (address) => ({ text: async () => address.replace(/^\.\/|\.html$/g, "") });
Search.htmlToText = (page, anchor) => TEXTS[page].find(([name]) => `#${name}` === anchor)[2].replace(/\s+/g, " ");
