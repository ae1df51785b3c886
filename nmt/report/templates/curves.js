// Embeds the charts, and makes them follow the switches above them and the colour scheme of the system.
(async () => {
  "use strict";
  const embedded = document.getElementById("curves-document");
  const switches = document.querySelector("#curves .switches");
  const content = JSON.parse(embedded.textContent);
  const places = Object.fromEntries(content.roots.map(root => [root.id, `plot-${root.attributes.name}`]));
  for (const place of Object.values(places)) document.getElementById(place).hidden = false;
  document.documentElement.classList.add("drawn"); // the still pictures are for paper from now on

  Bokeh.set_log_level("warn");
  await Bokeh.embed.embed_items({curves: content}, [{docid: "curves", roots: places, root_ids: Object.keys(places)}]);
  const plots = Bokeh.documents.find(document => document.roots().some(root => root.id in places)).roots();
  const across = plots[0].x_range, cursor = plots[0].toolbar.tools.find(tool => tool.type === "CrosshairTool").overlay;
  const titles = {updates: "updates", tokens: "target tokens, millions", hours: "hours of training"};
  const chosen = name => switches.elements[name].value;
  const lines = plot => plot.renderers.filter(line => !line.muted);

  // Lowest and highest of a column at the rows that `keep` admits, for as many lines as there are.
  function extent(lines, column, keep) {
    let low = Infinity, high = -Infinity;
    for (const line of lines) {
      const data = line.data_source.data, values = data[column];
      for (let row = 0; row < values.length; row++) {
        if (Number.isFinite(values[row]) && keep(data, row)) {
          low = Math.min(low, values[row]);
          high = Math.max(high, values[row]);
        }
      }
    }
    return low <= high ? [low, high] : null;
  }

  function whole() {
    const [low, high] = extent(plots.flatMap(plot => plot.renderers), chosen("across"), () => true) ?? [0, 1];
    const margin = (high - low || 1) * 0.015;
    return [low - margin, high + margin];
  }

  // The range of y holds what is seen of the curves, however far x is zoomed.
  function fit() {
    const column = chosen("across"), [first, last] = whole();
    for (const plot of plots) {
      const logarithmic = plot.tags[0].logarithmic && chosen("up") === "log";
      const seen = (data, row) =>
        data[column][row] >= across.start && data[column][row] <= across.end && (!logarithmic || data.y[row] > 0);
      const found = extent(lines(plot), "y", seen);
      if (found === null) continue;
      if (plot.tags[0].steep && !logarithmic && across.start <= first && across.end >= last) {
        const settled = (data, row) => data[column][row] >= first + (last - first) / 10;
        found[1] = extent(lines(plot), "y", settled)?.[1] ?? found[1];
      }
      const [low, high] = logarithmic ? found.map(Math.log10) : found;
      const margin = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
      const range = [low - margin, high + margin].map(value => (logarithmic ? 10 ** value : value));
      plot.y_range.setv({start: range[0], end: range[1]});
    }
  }

  function show([start, end]) {
    across.setv({start, end});
  }

  function choose() {
    const column = chosen("across");
    for (const plot of plots) {
      const [scale, ticker] =
        plot.tags[0].logarithmic && chosen("up") === "log" ? ["LogScale", "LogTicker"] : ["LinearScale", "BasicTicker"];
      if (plot.y_scale.type !== scale) {
        plot.y_scale = new (Bokeh.Models.get(scale))();
        plot.left[0].ticker = new (Bokeh.Models.get(ticker))();
        for (const grid of plot.center) if (grid.dimension === 1) grid.ticker = plot.left[0].ticker;
      }
      for (const line of plot.renderers) {
        for (const glyph of [line.glyph, line.muted_glyph]) glyph.x = {field: column};
      }
      plot.below[0].axis_label = titles[column];
    }
  }

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    for (const plot of plots) {
      for (const axis of [...plot.below, ...plot.left]) {
        axis.setv({
          axis_line_color: null, major_tick_line_color: null, minor_tick_line_color: null,
          major_label_text_color: colour("--quiet"), axis_label_text_color: colour("--quiet"),
          major_label_text_font: colour("--sans"), axis_label_text_font: colour("--sans"),
          major_label_text_font_size: "12px", axis_label_text_font_size: "12px", axis_label_text_font_style: "normal",
        });
      }
      cursor.line_color = colour("--quiet");
      for (const grid of plot.center) if ("grid_line_color" in grid.properties) grid.grid_line_color = grid.dimension === 1 ? colour("--rule") : null;
      for (const line of plot.renderers) {
        const ink = colour(`--run-${(line.tags[0] % 8) + 1}`);
        for (const glyph of [line.glyph, line.muted_glyph]) {
          glyph.line_color = {value: ink};
          if ("fill_color" in glyph.properties) glyph.fill_color = {value: ink};
        }
      }
    }
  }

  // The values of all runs next to the pointer, in a box of our own: Bokeh's would cover each other.
  function read(plot, box, event) {
    const column = chosen("across"), {digits} = plot.tags[0];
    const named = lines(plot).filter(line => line.name !== null);
    box.replaceChildren();
    if (event.x < across.start || event.x > across.end || named.length === 0) return leave(box);
    const found = named.map(line => [line, nearest(line.data_source.data[column], event.x)]);
    const at = (line, row, column) => Number(line.data_source.data[column][row]);
    const [update, tokens, hours] = ["updates", "tokens", "hours"].map(name => at(...found[0], name));
    const place = [Number.isFinite(tokens) && `${number(tokens, 2)} M tokens`, Number.isFinite(hours) && `${number(hours, 2)} h`];
    box.append(element("p", `update ${number(update, 0)}`), element("p", place.filter(Boolean).join(", ")));
    for (const [line, row] of found) {
      const item = element("p", ""), swatch = element("i", ""), step = at(line, row, "updates");
      swatch.className = "swatch";
      swatch.style.setProperty("--run", `var(--run-${(line.tags[0] % 8) + 1})`);
      const aside = step === update ? "" : ` at ${number(step, 0)}`;
      item.append(swatch, element("span", line.name + aside), element("b", written(at(line, row, "y"), digits)));
      box.append(item);
    }
    box.hidden = false;
    const right = event.sx > plot.outer_width / 2;
    box.style.left = right ? "auto" : `${event.sx + 14}px`;
    box.style.right = right ? `${plot.outer_width - event.sx + 14}px` : "auto";
  }

  function leave(box) {
    box.hidden = true;
  }

  function element(name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
  }

  const number = (value, digits) =>
    value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});

  // As Python's format: `.3g` or `,.2f`
  function written(value, digits) {
    if (!Number.isFinite(value)) return "–";
    const [, places, kind] = digits.match(/(\d)([fg])/);
    return kind === "g" ? String(Number(value.toPrecision(places))) : number(value, Number(places));
  }

  // Row of the value nearest to x in an ascending column.
  function nearest(column, x) {
    let low = 0, high = column.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (column[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - column[low - 1] < column[low] - x ? low - 1 : low;
  }

  function zoom(how) {
    const {start, end} = across, width = end - start, [first, last] = whole();
    const steps = {in: [0.25, -0.25], out: [-0.5, 0.5], earlier: [-0.25, -0.25], later: [0.25, 0.25]};
    if (how === "whole") return show([first, last]);
    const [before, after] = steps[how];
    const wanted = [start + before * width, end + after * width];
    if (how === "earlier" || how === "later") {
      const beyond = Math.max(first - wanted[0], 0) - Math.max(wanted[1] - last, 0);
      return show(wanted.map(x => x + beyond));
    }
    return show([Math.max(wanted[0], first), Math.min(wanted[1], last)]);
  }

  let waiting = 0;
  const refit = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(fit);
  };
  across.properties.start.change.connect(refit);
  across.properties.end.change.connect(refit);
  switches.addEventListener("change", event => {
    if (event.target.name === "run") {
      const run = Number(event.target.value);
      for (const line of plots.flatMap(plot => plot.renderers)) {
        if (line.tags[0] === run) line.muted = !event.target.checked;
      }
    } else {
      choose();
      if (event.target.name === "across") show(whole());
    }
    refit();
  });
  switches.addEventListener("click", event => {
    const how = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (how) zoom(how);
  });
  switches.addEventListener("submit", event => event.preventDefault());
  // Bokeh would catch every touch, but a finger that moves up or down over a chart is to scroll the page; and it would
  // stop the keyboard at every chart, where no key does anything.
  function letPass(root) {
    for (const part of root.querySelectorAll("*")) {
      if (part.classList.contains("bk-events")) {
        part.style.setProperty("touch-action", "pan-y pinch-zoom", "important");
        part.style.setProperty("outline", "none", "important");
        part.tabIndex = -1;
      }
      if (part.shadowRoot !== null) letPass(part.shadowRoot);
    }
  }

  const coarse = matchMedia("(pointer: coarse)").matches; // fingers, which scroll, read by a tap and zoom by buttons
  for (const plot of plots) {
    if (coarse) plot.toolbar.active_drag = null;
    const place = document.getElementById(places[plot.id]), box = place.parentElement.querySelector(".reading");
    letPass(place);
    place.addEventListener("dblclick", () => show(whole()));
    for (const name of ["mousemove", "tap"]) plot.on_event(name, event => read(plot, box, event));
    let touched = false; // a finger leaves at once; what it asked for stays until the next touch elsewhere
    document.addEventListener("pointerdown", event => {
      touched = event.pointerType !== "mouse";
      if (touched && !place.contains(event.target)) leave(box);
    }, true);
    plot.on_event("mouseleave", () => touched || leave(box));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

  for (const choice of switches.elements.across) {
    choice.disabled = extent(plots.flatMap(plot => plot.renderers), choice.value, () => true) === null;
  }
  choose();
  paint();
  show(whole());
  fit();
  document.documentElement.dataset.charts = "ready";
})();
