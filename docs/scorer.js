// How the search of the site orders pages: what people do and what goes wrong before what was decided and measured.
const LATER = ["CHANGELOG", "CONTRIBUTING", "benchmarks/", "docs/architecture", "docs/decisions", "docs/results"];

var Scorer = {
  score: ([page, , , , score]) =>
    score + (page === "docs/troubleshooting" ? 4 : LATER.some((name) => page.startsWith(name)) ? -4 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
