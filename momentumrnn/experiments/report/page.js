"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const finger = matchMedia("(pointer: coarse)");
  const views = {};
  let chosen = null; // the theme, if the reader has chosen one

  // The colours of the page as they are now.
  const colours = () => ({
    ground: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.body).color,
    rule: getComputedStyle(document.querySelector("header")).borderBottomColor,
    faint: getComputedStyle(document.querySelector(".status")).color,
  });
  // A colour and how much of it: bands let through what lies under them.
  const faded = (hex) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},0.18)`;

  function axis(now, text, more) {
    const title = { text, standoff: 8 };
    return { gridcolor: now.rule, linecolor: now.rule, zeroline: false, automargin: true, title, ...more };
  }

  // Plotly writes what lies between powers of ten small, and without its power.
  function ticks(values, digits) {
    const powers = values.filter((value) => value > 0).map((value) => Math.floor(Math.log10(value)));
    const found = [];
    for (let power = Math.min(...powers); power <= Math.max(...powers) + 1; power += 1) {
      for (const digit of digits) found.push(Number(`${digit}e${power}`));
    }
    const [low, high] = [Math.min(...values.filter((value) => value > 0)), Math.max(...values)];
    // In a narrow range none of these may lie.
    if (found.filter((value) => low <= value && value <= high).length < 2 && low < high) {
      found.push(...[0, 1, 2, 3].map((i) => Number((low + ((high - low) * i) / 3).toPrecision(3))));
    }
    return { type: "log", tickvals: found, ticktext: found.map(String) };
  }

  function lines(figure, view, now) {
    const traces = [];
    const series = figure.series.filter((each) => view.controls || !each.control);
    for (const each of series) {
      const common = { x: each[view.x], legendgroup: each.name, line: { width: 0 }, hoverinfo: "skip", showlegend: false, mode: "lines" };
      traces.push({ ...common, y: each.low });
      traces.push({ ...common, y: each.high, fill: "tonexty", fillcolor: faded(each.colour) });
    }
    for (const each of series) {
      traces.push({
        x: each[view.x],
        y: each.middle,
        name: each.name,
        legendgroup: each.name,
        mode: each.steps.length < 30 ? "lines+markers" : "lines",
        line: { color: each.colour, dash: each.dash, width: 2 },
        hovertemplate: "%{y:.4g} at %{x}<extra>%{fullData.name}</extra>",
      });
    }
    const x = series.flatMap((each) => each[view.x]);
    const y = series.flatMap((each) => [...each.low, ...each.high]);
    const beside = figure.level === null ? [] : [figure.level];
    const layout = {
      xaxis: axis(now, view.x === "steps" ? "training steps" : "epochs", view.logx ? ticks(x, [1, 2, 5]) : { type: "linear", rangemode: "tozero" }),
      yaxis: axis(now, figure.quantity, view.logy ? ticks([...y, ...beside], [1, 2, 5]) : { type: "linear", ...(figure.window && { range: figure.window }) }),
    };
    for (const level of beside) {
      const at = view.logy ? Math.log10(level) : level;
      layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: { color: now.faint, dash: "dash", width: 1 } }];
      layout.annotations = [{ xref: "paper", x: 1, xanchor: "right", y: at, yanchor: "bottom", text: "without memory", showarrow: false }];
    }
    return [traces, layout];
  }

  function bars(figure, now) {
    const narrow = innerWidth < 640;
    const labels = figure.labels.map((label) => (narrow ? label.replace(", ", "<br>") : label));
    const traces = figure.groups.map((group) => ({
      type: "bar",
      orientation: "h",
      name: group.name,
      y: labels,
      x: group.values,
      marker: { color: group.colour },
      hovertemplate: "%{x:.4g}<extra>%{fullData.name}, %{y}</extra>",
      text: group.values.map((value) => (value === null ? "" : String(Number(value.toPrecision(3))))),
      textposition: "outside",
      cliponaxis: false,
    }));
    const layout = {
      barmode: "group",
      legend: { orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top" },
      margin: { l: 8, r: 48, t: 32, b: 48 },
      xaxis: axis(now, figure.unit, ticks(figure.groups.flatMap((group) => group.values), [1])),
      yaxis: axis(now, "", { autorange: "reversed" }),
      height: 120 + 16 * labels.length * (figure.groups.length + 1),
    };
    return [traces, layout];
  }

  function draw(name) {
    const figure = figures[name];
    const now = colours();
    const [traces, layout] = figure.kind === "lines" ? lines(figure, views[name], now) : bars(figure, now);
    const common = {
      paper_bgcolor: now.ground,
      plot_bgcolor: now.ground,
      font: { color: now.text, family: "system-ui, sans-serif", size: 13 },
      margin: { l: 56, r: 16, t: 8, b: 48 },
      legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom" },
      hovermode: "closest",
      dragmode: finger.matches ? false : "zoom", // a finger scrolls the page
    };
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    return Plotly.react(`plot-${name}`, traces, { ...common, ...layout }, options);
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

  const folds = [...document.querySelectorAll("details")];
  // What is folded has no width to draw in.
  for (const fold of folds) {
    fold.addEventListener("toggle", () => {
      for (const plot of fold.querySelectorAll(".plot")) if (plot.data) Plotly.Plots.resize(plot);
    });
  }
  // A link to what is folded unfolds it.
  const unfold = (hash) => {
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    const fold = target && target.querySelector("details");
    if (fold) fold.open = true;
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
  repaint().then(() => { root.dataset.drawn = "true"; });
})();
