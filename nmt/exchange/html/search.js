"use strict";
// Beam search (section 6.1 of the paper). It sees a model only through `encode`, `begin` and `step`.
//
// Each step takes the 2 · beam best extensions of the hypotheses that are alive. Those that end join the finished ones
// if they are among the best `beam`; the best `beam` of the others stay alive. A finished hypothesis scores its
// log-probability over lp(|Y|) = ((5 + |Y|) / 6)^α, where |Y| counts </s>. The search is over once no alive hypothesis
// can enter the list of the best; at the cap, all end. A beam of 1 is greedy search, which stops at the first </s>.

const BOS = 2, EOS = 3;  // <s>, </s>; the ids below are never output: <pad>, <unk>, <s>

/**
 * Returns up to `nBest` outputs {ids, score, finished} of source ids, best first, without </s>.
 * They begin with the symbols `first`, which are no part of them, and have at most `cap` symbols with </s>.
 * A `rule` says which symbols may follow by the state of a hypothesis, as TreeRule does.
 */
function search(model, ids, {beam, nBest, alpha, cap, first = [], minLength = 0, noRepeat = null, rule = null}) {
  const penalty = (length) => ((5 + Math.max(0, length - first.length)) / 6) ** alpha;
  const past = model.begin(model.encode([...ids, EOS]), cap, beam);
  let alive = [{ids: [], total: 0, places: [], symbol: BOS, words: 0, state: rule?.begin()}];
  let finished = [];
  for (let length = 1; alive.length; length++) {
    for (const hypothesis of alive) {
      hypothesis.places = [...hypothesis.places, past.used++];
      hypothesis.words += model.beginsWord(hypothesis.symbol, "target");
    }
    const logits = model.step(past, alive);
    const candidates = bestExtensions(alive, logits, beam > 1 ? 2 * beam : 1, (hypothesis, row) => {
      if (length <= first.length) allowOnly(row, first[length - 1]);
      else if (length <= first.length + minLength) row[EOS] = -Infinity;
      if (noRepeat) forbidRepetitions(hypothesis.ids, noRepeat, row);
      rule?.restrict(hypothesis.state, row);
    });
    const ends = ({symbol}) => symbol === EOS || length === cap;
    for (const {parent, symbol, total} of candidates.slice(0, beam).filter(ends)) {
      const isComplete = symbol === EOS;
      const whole = isComplete ? parent.ids : [...parent.ids, symbol];
      finished.push({ids: whole.slice(first.length), score: total / penalty(length), finished: isComplete});
    }
    finished = finished.sort((one, other) => other.score - one.score).slice(0, beam);
    const worst = finished[nBest - 1]?.score ?? -Infinity;
    alive = candidates.filter((each) => !ends(each)).slice(0, beam)
      .filter(({total}) => total / penalty(cap) > worst)
      .map(({parent, symbol, total}) =>
        ({...parent, ids: [...parent.ids, symbol], symbol, total, state: rule?.advance(parent.state, symbol)}));
  }
  return finished.slice(0, nBest);
}

/** Returns the best extensions {parent, symbol, total} of hypotheses by the logits of their next symbols, best first. */
function bestExtensions(alive, logits, count, restrict) {
  const size = logits.length / alive.length;
  const best = [];
  alive.forEach((parent, index) => {
    const row = logits.subarray(index * size, (index + 1) * size);
    const normaliser = logSumExp(row);  // over all symbols, also those that are not allowed
    restrict(parent, row);
    for (let symbol = EOS; symbol < size; symbol++) {
      const total = parent.total + row[symbol] - normaliser;
      if (total === -Infinity || (best.length === count && total <= best[count - 1].total)) continue;
      let rank = Math.min(best.length, count - 1);
      for (; rank > 0 && best[rank - 1].total < total; rank--) best[rank] = best[rank - 1];
      best[rank] = {parent, symbol, total};
    }
  });
  return best;
}

function logSumExp(row) {
  let most = -Infinity, sum = 0;
  for (let i = 0; i < row.length; i++) if (row[i] > most) most = row[i];
  for (let i = 0; i < row.length; i++) sum += Math.exp(row[i] - most);
  return most + Math.log(sum);
}

function allowOnly(row, symbol) {
  const kept = row[symbol];
  row.fill(-Infinity);
  row[symbol] = kept;
}

/** Forbids the symbols by which a sequence of n symbols would occur twice, unless there is no other choice. */
function forbidRepetitions(ids, n, row) {
  const newest = ids.slice(ids.length - n + 1);
  const forbidden = new Map();
  for (let start = 0; start + n <= ids.length; start++)
    if (newest.every((symbol, index) => symbol === ids[start + index])) forbidden.set(ids[start + n - 1], 0);
  for (const symbol of forbidden.keys()) {
    forbidden.set(symbol, row[symbol]);
    row[symbol] = -Infinity;
  }
  if (row.subarray(EOS).every((logit) => logit === -Infinity))
    for (const [symbol, logit] of forbidden) row[symbol] = logit;
}
