// Draws the charts, which respond to the pointer and to the switches above them.
(() => {
  "use strict";
  const SIDE = 1000; // width and height of a chart in SVG units; the page scales both to fit
  const FAR = 1e5; // bound of coordinates: SVG cannot represent the values of a diverging run
  const ASIDE = 0.015, MARGIN = 0.05; // margins, as fractions of the run's length and of the values' range
  const APART = 7; // minimum distance of the names at the ends of lines, in percent of the height
  const switches = document.querySelector("#curves .switches");
  const [unit, short] = switches.dataset.time === "hours" ? ["hours", "h"] : ["minutes", "min"];
  const TITLES = {updates: "updates", tokens: "target tokens, millions", time: `${unit} of training`};
  const chosen = name => switches.elements[name].value;
  const unpack = text => new Float32Array(Uint8Array.from(atob(text), character => character.charCodeAt(0)).buffer);
  const charts = JSON.parse(document.getElementById("curves-figures").textContent).map(chart => {
    const plot = document.getElementById(`plot-${chart.name}`);
    const [reading, cursor, band] = ["reading", "cursor", "band"].map(name => plot.appendChild(element("div", name)));
    for (const part of [reading, cursor, band]) part.hidden = true;
    for (const line of chart.lines) {
      for (const column of ["updates", "tokens", "hours", "values"]) line[column] = unpack(line[column]);
      line.time = unit === "hours" ? line.hours : line.hours.map(hours => 60 * hours);
    }
    addLines(plot, chart.lines);
    return {...chart, plot, reading, cursor, band};
  });
  const muted = new Set(); // indices of runs that are switched off

  function element(name, style, text = "") {
    const made = document.createElement(name);
    made.className = style;
    made.textContent = text;
    return made;
  }

  // Adds the paths of lines, and their names at the ends: of several curves, as many as fit.
  function addLines(plot, lines) {
    const named = lines.filter(line => line.style !== "faint");
    plot.classList.toggle("named", named.length > 1 && named.length <= 100 / APART);
    const dashed = lines.every(line => line.dev) ? "" : "dashed";
    for (const line of lines) {
      const colour = `var(--run-${(line.run % 8) + 1})`;
      line.paths = (line.dev ? ["line", "dots"] : ["line"]).map(shape => {
        const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
        path.setAttribute("class", `${shape} ${line.dev ? dashed : line.style}`);
        path.style.setProperty("--run", colour);
        return plot.querySelector("svg").appendChild(path);
      });
      if (!plot.classList.contains("named") || line.style === "faint") continue;
      line.end = plot.appendChild(element("div", "end", line.name));
      line.end.style.setProperty("--run", colour);
    }
  }

  function furthest() {
    const xs = charts.flatMap(chart => chart.lines.flatMap(line => [...line[chosen("across")]]));
    return xs.reduce((most, x) => (x > most ? x : most), 0) || 1;
  }

  const whole = () => [-ASIDE * furthest(), (1 + ASIDE) * furthest()];
  let [start, end] = whole();

  // --- drawing ---

  function draw() {
    for (const chart of charts) {
      const logarithmic = chart.axis === "log" || (chart.axis === "either" && chosen("up") === "log");
      const scale = logarithmic ? y => Math.log10(y > 0 ? y : NaN) : y => y;
      const range = heights(chart, scale);
      const across = x => ((x - start) / (end - start)) * SIDE;
      const up = y => SIDE - ((scale(y) - range[0]) / (range[1] - range[0])) * SIDE;
      for (const line of chart.lines) {
        for (const path of line.paths) {
          path.setAttribute("d", outline(line, across, up, path.classList.contains("dots")));
          path.classList.toggle("muted", muted.has(line.run));
        }
      }
      for (const tick of chart.plot.querySelectorAll(".up, .across")) tick.remove();
      const levels = logarithmic ? powers(...range) : ticks(...range);
      chart.plot.prepend(
        ...levels.map(y => mark("up", "top", up(y), y)),
        ...ticks(start, end).map(x => mark("across", "left", across(x), x)),
      );
      placeEnds(chart, up);
      chart.plot.querySelector(".unit").textContent = TITLES[chosen("across")];
    }
  }

  // Moves the names of lines to the height of their last visible value, apart from each other.
  function placeEnds(chart, up) {
    const ends = chart.lines.filter(line => line.end).map(line => {
      const name = line.end, xs = line[chosen("across")];
      const rows = [...xs.keys()].filter(row => xs[row] >= start && xs[row] <= end && Number.isFinite(up(line.values[row])));
      name.hidden = rows.length === 0 || muted.has(line.run);
      return {name, top: name.hidden ? Infinity : (up(line.values[rows.at(-1)]) / SIDE) * 100};
    }).filter(({name}) => !name.hidden).sort((a, b) => a.top - b.top);
    ends.forEach((each, index) => { each.top = Math.max(each.top, index ? ends[index - 1].top + APART : -Infinity); });
    ends.reduceRight((highest, each) => (each.top = Math.min(each.top, highest)) - APART, 100);
    for (const {name, top} of ends) name.style.top = `${top}%`;
  }

  // Returns the range of the visible values.
  function heights(chart, scale) {
    const column = chosen("across");
    const lines = chart.lines.filter(line => !muted.has(line.run));
    const all = lines.flatMap(line =>
      [...line.values].filter((y, row) => line[column][row] >= start && line[column][row] <= end).map(scale))
      .filter(Number.isFinite);
    if (all.length === 0) return [0, 1];
    const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
    const margin = (high - low) * MARGIN || Math.abs(high) * MARGIN || 1;
    return [low - margin, high + margin];
  }

  // Returns the path data of a line or of its dots, with gaps where values are missing.
  function outline(line, across, up, dots) {
    const xs = line[chosen("across")], parts = [];
    const last = Math.min(nearest(xs, end) + 1, xs.length - 1);
    let pen = "M";
    for (let row = Math.max(nearest(xs, start) - 1, 0); row <= last; row++) {
      const x = across(xs[row]), y = Math.max(-FAR, Math.min(FAR, up(line.values[row])));
      if (Number.isFinite(x) && Number.isFinite(y)) {
        parts.push(`${dots ? "M" : pen}${x.toFixed(1)},${y.toFixed(1)}${dots ? "h0" : ""}`);
        pen = "L";
      } else pen = "M";
    }
    return parts.join("");
  }

  function ticks(low, high, wanted = 3) {
    const power = 10 ** Math.floor(Math.log10(high - low));
    for (const step of [5, 2, 1, 0.5, 0.2, 0.1].map(factor => power * factor)) {
      const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
      if (last - first + 1 >= wanted) return Array.from({length: last - first + 1}, (_, index) => (first + index) * step);
    }
    return [low];
  }

  // Returns the ticks of a logarithmic axis from 10 ** low to 10 ** high.
  function powers(low, high) {
    const every = Math.ceil((high - low) / 6), found = [];
    for (let power = Math.floor(low); power <= high; power += every) {
      for (const factor of high - low < 2 ? [1, 2, 5] : [1]) found.push(factor * 10 ** power);
    }
    const within = found.filter(y => Math.log10(y) >= low && Math.log10(y) <= high);
    return within.length > 1 ? within : ticks(10 ** low, 10 ** high);
  }

  function mark(style, side, place, value) {
    const made = element("div", style);
    made.style[side] = `${(place / SIDE) * 100}%`;
    made.append(element("span", "", Math.abs(value) >= 1e9 ? value.toPrecision(3)
      : value.toLocaleString("en", {maximumFractionDigits: 10})));
    return made;
  }

  // --- reading ---

  // Shows all runs' values at the points nearest to x, and a cursor at x in all charts.
  function read(chart, x) {
    const column = chosen("across");
    const found = chart.lines.filter(line => line.style !== "smooth" && !muted.has(line.run))
      .map(line => ({line, row: nearest(line[column], x)}));
    if (found.length === 0) return leave();
    const apart = ({line, row}) => Math.abs(line[column][row] - x);
    const closest = found.reduce((best, other) => (apart(other) < apart(best) ? other : best));
    const [update, tokens, time] = Object.keys(TITLES).map(name => closest.line[name][closest.row]);
    const place = [Number.isFinite(tokens) && `${number(tokens, 2)} M tokens`, Number.isFinite(time) && `${number(time, 1)} ${short}`];
    const values = found.map(({line, row}) => {
      const item = element("p", ""), swatch = element("i", "swatch"), step = line.updates[row];
      swatch.style.setProperty("--run", `var(--run-${(line.run % 8) + 1})`);
      const name = line.name + (step === update ? "" : ` at ${number(step, 0)}`);
      item.append(swatch, element("span", "", name), element("b", "", written(line.values[row], chart.digits)));
      return item;
    });
    const heads = [`update ${number(update, 0)}`, place.filter(Boolean).join(", ")].map(text => element("p", "", text));
    chart.reading.replaceChildren(...heads, ...values);
    const share = (x - start) / (end - start);
    chart.reading.style.left = share > 0.5 ? "auto" : `calc(${share * 100}% + 14px)`;
    chart.reading.style.right = share > 0.5 ? `calc(${(1 - share) * 100}% + 14px)` : "auto";
    for (const other of charts) {
      other.reading.hidden = other !== chart;
      other.cursor.hidden = false;
      other.cursor.style.left = `${share * 100}%`;
    }
  }

  function leave() {
    for (const chart of charts) chart.reading.hidden = chart.cursor.hidden = true;
  }

  const number = (value, digits) =>
    value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});

  // Formats a value as Python does, by `.3g` or `,.2f`.
  function written(value, digits) {
    if (!Number.isFinite(value)) return "–";
    const [, places, kind] = digits.match(/(\d)([fg])/);
    return kind === "g" ? String(Number(value.toPrecision(places))) : number(value, Number(places));
  }

  // Returns the index of the value nearest to x in an ascending column.
  function nearest(column, x) {
    let low = 0, high = column.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (column[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - column[low - 1] < column[low] - x ? low - 1 : low;
  }

  // --- zooming ---

  function show(from, to) {
    [start, end] = [from, to];
    leave();
    draw();
  }

  function zoom(how) {
    const width = end - start, [first, last] = whole();
    const steps = {in: [0.25, -0.25], out: [-0.5, 0.5], earlier: [-0.25, -0.25], later: [0.25, 0.25]};
    if (how === "whole") return show(first, last);
    const [from, to] = [start + steps[how][0] * width, end + steps[how][1] * width];
    if (how === "in" || how === "out") return show(Math.max(from, first), Math.min(to, last));
    const beyond = Math.max(first - from, 0) - Math.max(to - last, 0);
    return show(from + beyond, to + beyond);
  }

  for (const chart of charts) {
    const {plot, band} = chart;
    let began = null; // where a drag began, as a fraction of the width
    const at = event => {
      const box = plot.getBoundingClientRect();
      return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    };
    plot.addEventListener("pointerdown", event => {
      if (event.pointerType !== "mouse") return read(chart, start + at(event) * (end - start)); // touch drags scroll
      if (event.button !== 0) return;
      event.preventDefault(); // do not select text
      plot.setPointerCapture(event.pointerId);
      began = at(event);
    });
    plot.addEventListener("pointermove", event => {
      if (event.pointerType !== "mouse") return;
      read(chart, start + at(event) * (end - start));
      band.hidden = began === null;
      if (began === null) return;
      const [left, right] = [began, at(event)].sort((a, b) => a - b);
      band.style.left = `${left * 100}%`;
      band.style.width = `${(right - left) * 100}%`;
    });
    plot.addEventListener("pointerup", event => {
      if (began === null) return;
      const [left, right] = [began, at(event)].sort((a, b) => a - b).map(share => start + share * (end - start));
      if ((right - left) / (end - start) > 0.01) show(left, right);
    });
    plot.addEventListener("lostpointercapture", () => {
      began = null;
      band.hidden = true;
    });
    plot.addEventListener("dblclick", () => show(...whole()));
    plot.addEventListener("pointerleave", event => event.pointerType === "mouse" && leave());
  }
  document.addEventListener("pointerdown", event => event.target.closest(".plot") || leave(), true);
  switches.addEventListener("change", event => {
    if (event.target.name === "run") muted[event.target.checked ? "delete" : "add"](Number(event.target.value));
    if (event.target.name === "across") return show(...whole());
    return draw();
  });
  switches.addEventListener("click", event => {
    const how = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (how) zoom(how);
  });
  switches.addEventListener("submit", event => event.preventDefault());
  for (const choice of switches.elements.across) {
    choice.disabled = !charts.some(chart => chart.lines.some(line => line[choice.value].some(Number.isFinite)));
  }
  document.documentElement.classList.add("scripted");
  draw();
  keep("zoom", () => (start === whole()[0] && end === whole()[1] ? null : [start, end]), range => show(...range));
})();
