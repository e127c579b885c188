"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const finger = matchMedia("(pointer: coarse)");
  const narrow = matchMedia("(max-width: 40rem)");
  const symbols = ["circle", "square", "diamond", "triangle-up"];
  const font = "system-ui, sans-serif";
  const size = () => (narrow.matches ? 12 : 13); // of the names at the ends of lines
  const pen = document.createElement("canvas").getContext("2d");
  const margin = { l: 56, r: 16, t: 8, b: 48 };
  const named = 10; // the most lines that are named at their ends
  const views = {};
  let chosen = null; // the theme, if the reader has chosen one

  // The colours of the page as they are now.
  const colours = () => ({
    ground: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.body).color,
    rule: getComputedStyle(document.querySelector("header")).borderBottomColor,
    faint: getComputedStyle(document.querySelector("footer")).color,
  });
  // A colour and how much of it: bands let through what lies under them.
  const faded = (colour) => {
    const parts = colour.startsWith("#") ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : colour.match(/\d+/g).slice(0, 3);
    return `rgba(${parts.join(",")},0.1)`;
  };

  function axis(now, text, more) {
    const title = text && { title: { text, standoff: 8 } };
    return { gridcolor: now.rule, linecolor: now.rule, zeroline: false, automargin: true, ...title, ...more };
  }

  // Plotly writes what lies between powers of ten small, and without its power.
  function ticks(values, digits) {
    const powers = values.filter((value) => value > 0).map((value) => Math.floor(Math.log10(value)));
    const marks = [];
    for (let power = Math.min(...powers); power <= Math.max(...powers) + 1; power += 1) {
      for (const digit of digits) marks.push(Number(`${digit}e${power}`));
    }
    const [low, high] = [Math.min(...values.filter((value) => value > 0)), Math.max(...values)];
    // In a narrow range none of these may lie.
    if (marks.filter((value) => low <= value && value <= high).length < 2 && low < high) {
      marks.push(...[0, 1, 2, 3].map((i) => Number((low + ((high - low) * i) / 3).toPrecision(3))));
    }
    return { type: "log", tickvals: marks, ticktext: marks.map(String) };
  }

  // The range of an axis that holds all values, a logarithmic one in powers of ten.
  function range(values, log, part) {
    const numbers = log ? values.filter((value) => value > 0).map(Math.log10) : values;
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const space = part * (high - low || 1);
    return [low - space, high + space];
  }

  // Places from 0 to 1 at least a gap apart, as near to the wanted ones as can be, in their order.
  function apart(wanted, gap) {
    const order = wanted.map((_, i) => i).sort((i, j) => wanted[i] - wanted[j]);
    const blocks = [];
    order.forEach((i, k) => {
      let block = { sum: wanted[i] - k * gap, count: 1 };
      while (blocks.length && blocks.at(-1).sum / blocks.at(-1).count > block.sum / block.count) {
        const before = blocks.pop();
        block = { sum: before.sum + block.sum, count: before.count + block.count };
      }
      blocks.push(block);
    });
    const highest = Math.max(0, 1 - (wanted.length - 1) * gap);
    const rising = blocks.flatMap(({ sum, count }) => Array(count).fill(Math.min(Math.max(sum / count, 0), highest)));
    const places = [];
    order.forEach((i, k) => { places[i] = rising[k] + k * gap; });
    return places;
  }

  // Plotly takes some tags in a text for its own.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const shownIn = (figure, view) => figure.series.filter((line) => view.controls || !line.control);
  // On a narrow page the colour alone says whose control a line is.
  const short = (line) => (narrow.matches && line.control ? line.label.replace(/^(LSTM|DTRIV), /, "") : line.label);
  const ink = (figure, line, now) => (line.colour === figure.ink ? now.text : line.colour);

  // The value without memory, and the names of the lines at their ends where there is room; x, y: what the axes show.
  function decorations(figure, view, now, height, x, y) {
    const shapes = [];
    const annotations = [];
    const number = (value, log) => (log ? Math.log10(value) : value);
    if (figure.level !== null) {
      const at = number(figure.level, view.logy);
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: figure.level, y1: figure.level, line: { color: now.faint, dash: "dot", width: 1 } });
      annotations.push({ xref: "paper", x: 1, xanchor: "right", y: at, yanchor: "bottom", text: "without memory", showarrow: false, font: { size: 12 } });
    }
    const series = shownIn(figure, view);
    if (series.length > named) return { shapes, annotations };
    const parts = series.map((line) => {
      const count = line[view.x].filter((value) => number(value, view.logx) <= x[1] * (1 + 1e-9)).length;
      return (number(line.middle[Math.max(0, count - 1)], view.logy) - y[0]) / (y[1] - y[0]);
    });
    const places = apart(parts, (size() + 4) / height);
    series.forEach((line, i) => {
      const part = Math.min(Math.max(parts[i], 0), 1);
      const stroke = { color: ink(figure, line, now), dash: line.dash, width: 2 };
      shapes.push({ type: "line", xref: "paper", yref: "paper", x0: 1, x1: 1.03, y0: part, y1: places[i], line: stroke });
      const text = plain(short(line)) + (part === parts[i] ? "" : part ? " ↑" : " ↓");
      annotations.push({ xref: "paper", yref: "paper", x: 1.03, xanchor: "left", xshift: 4, y: places[i], yanchor: "middle", text, showarrow: false, font: { size: size() } });
    });
    return { shapes, annotations };
  }

  function lines(figure, view, now, height) {
    const traces = [];
    const series = shownIn(figure, view);
    for (const line of series) {
      const common = { x: line[view.x], legendgroup: line.name, line: { width: 0 }, hoverinfo: "skip", showlegend: false, mode: "lines" };
      traces.push({ ...common, y: line.low });
      traces.push({ ...common, y: line.high, fill: "tonexty", fillcolor: faded(ink(figure, line, now)) });
    }
    for (const line of series) {
      traces.push({
        x: line[view.x],
        y: line.middle,
        name: plain(line.name),
        legendgroup: line.name,
        mode: line.steps.length < 30 ? "lines+markers" : "lines",
        line: { color: ink(figure, line, now), dash: line.dash, width: 2 },
        marker: { color: ink(figure, line, now), size: 5 },
        hovertemplate: "%{y:.4g} at %{x}<extra>%{fullData.name}</extra>",
      });
    }
    const x = series.flatMap((line) => line[view.x]);
    const y = series.flatMap((line) => [...line.low, ...line.high]).concat(figure.level === null ? [] : [figure.level]);
    const across = view.logx ? range(x, true, 0) : [0, Math.max(...x)];
    const up = !view.logy && figure.window ? figure.window : range(y, view.logy, 0.04);
    const atEnds = series.length <= named;
    pen.font = `${size()}px ${font}`;
    const longest = Math.max(0, ...series.map((line) => pen.measureText(`${short(line)} ↓`).width));
    const ends = narrow.matches ? { ...margin, l: 8, r: 14 + longest } : { ...margin, r: 44 + longest };
    return [traces, {
      xaxis: axis(now, view.x === "steps" ? "training steps" : "epochs", { range: across, ...(view.logx ? ticks(x, [1, 2, 5]) : { type: "linear" }) }),
      yaxis: axis(now, narrow.matches ? "" : figure.quantity, { range: up, ...(view.logy ? ticks(y, narrow.matches ? [1] : [1, 2, 5]) : { type: "linear" }) }),
      showlegend: !atEnds,
      margin: atEnds ? ends : margin,
      ...decorations(figure, view, now, height, across, up),
    }];
  }

  function bars(figure, now) {
    const labels = figure.labels.map((label) => (narrow.matches ? plain(label).replace(", ", "<br>") : plain(label)));
    const dots = figure.kind === "dots";
    const traces = figure.groups.map((group, i) => ({
      ...(dots
        ? { type: "scatter", mode: "markers+text", textposition: i % 2 ? "bottom center" : "top center", marker: { color: group.colour, symbol: symbols[i % symbols.length], size: 10 } }
        : { type: "bar", orientation: "h", textposition: "outside", marker: { color: group.colour } }),
      name: group.name,
      y: labels,
      x: group.values,
      hovertemplate: "%{text}<extra>%{fullData.name}, %{y}</extra>",
      text: group.texts,
      cliponaxis: false,
    }));
    const values = figure.groups.flatMap((group) => group.values).filter((value) => value !== null);
    const across = dots ? { ...ticks(values, [1]), range: range(values, true, 0.06) } : { type: "linear", range: [0, 1.12 * Math.max(...values)] };
    return [traces, {
      barmode: "group",
      legend: { orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top" },
      margin: { l: 8, r: 48, t: 36, b: 48 },
      xaxis: axis(now, figure.unit, across),
      yaxis: axis(now, "", { autorange: "reversed" }),
      height: 120 + 16 * labels.length * (dots ? 3 : figure.groups.length + 1),
    }];
  }

  // The height of what is between the axes; what is folded has none yet.
  const inner = (name) => (document.getElementById(`plot-${name}`).clientHeight || 416) - margin.t - margin.b;

  function draw(name) {
    const figure = figures[name];
    const now = colours();
    const [traces, layout] = figure.kind === "lines" ? lines(figure, views[name], now, inner(name)) : bars(figure, now);
    const common = {
      paper_bgcolor: now.ground,
      plot_bgcolor: now.ground,
      font: { color: now.text, family: font, size: 13 },
      margin,
      legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom" },
      hovermode: "closest",
      dragmode: finger.matches ? false : "zoom", // a finger scrolls the page
    };
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    return Plotly.react(`plot-${name}`, traces, { ...common, ...layout }, options);
  }

  // A plot that is zoomed has its lines end elsewhere.
  function follow(name) {
    const plot = document.getElementById(`plot-${name}`);
    plot.on("plotly_relayout", (changed) => {
      if (!Object.keys(changed).some((key) => /^[xy]axis\./.test(key))) return;
      const { xaxis, yaxis } = plot.layout;
      if (xaxis.range && yaxis.range) Plotly.relayout(plot, decorations(figures[name], views[name], colours(), inner(name), xaxis.range, yaxis.range));
    });
  }

  function paint(name) {
    root.dataset.theme = name;
    theme.setAttribute("aria-pressed", String(name === "dark"));
    return Promise.all(Object.keys(figures).map(draw));
  }
  const repaint = () => paint(chosen || (system.matches ? "dark" : "light"));

  for (const name of Object.keys(figures)) {
    if (figures[name].kind === "lines") views[name] = { x: "steps", logx: false, logy: figures[name].log, controls: figures[name].controls };
  }
  for (const group of document.querySelectorAll(".switches")) {
    const name = group.dataset.for;
    const show = () => {
      for (const button of group.querySelectorAll("button")) {
        const on = button.dataset.x ? views[name].x === button.dataset.x : views[name][button.dataset.switch];
        button.setAttribute("aria-pressed", String(on));
      }
    };
    show();
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.x) views[name].x = button.dataset.x;
      else views[name][button.dataset.switch] = !views[name][button.dataset.switch];
      show();
      draw(name);
    });
  }

  // Says of a table whether there is more of it on the left or on the right.
  const scrolled = (region) => {
    const wide = region.parentElement;
    wide.classList.toggle("more-left", region.scrollLeft > 1);
    wide.classList.toggle("more-right", region.scrollLeft + region.clientWidth < region.scrollWidth - 1);
  };
  const watched = new ResizeObserver((entries) => entries.forEach((entry) => scrolled(entry.target)));
  for (const region of document.querySelectorAll(".wide > .scroll")) {
    watched.observe(region);
    region.addEventListener("scroll", () => scrolled(region), { passive: true });
  }

  const folds = [...document.querySelectorAll("details")];
  // What is folded has no width to draw in.
  for (const fold of folds) {
    fold.addEventListener("toggle", () => {
      for (const plot of fold.querySelectorAll(".plot")) if (plot.data && plot.clientWidth) Plotly.Plots.resize(plot);
    });
  }
  // A link to a section unfolds it, and all that it is folded in.
  const unfold = (hash) => {
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    if (!target) return;
    for (let fold = target.querySelector("details") || target; fold; fold = fold.parentElement.closest("details")) {
      if (fold.matches("details")) fold.open = true;
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) unfold(link.hash);
  });
  unfold(location.hash);

  // On paper all is unfolded, and light.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = folds.filter((fold) => !fold.open);
    for (const fold of folded) fold.open = true;
    paint("light");
  });
  addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
    repaint();
  });

  theme.hidden = false;
  theme.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    repaint();
  });
  system.addEventListener("change", repaint);
  narrow.addEventListener("change", repaint);
  repaint().then(() => {
    for (const name of Object.keys(views)) follow(name);
    root.dataset.drawn = "true";
  });
})();
