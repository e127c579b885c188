"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = {};

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // A colour and how much of it: bands let through what lies under them.
  const faded = (hex) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},0.18)`;
  const axis = (more) => ({ gridcolor: colour("--rule"), linecolor: colour("--rule"), zeroline: false, automargin: true, ...more });

  function lines(figure, view) {
    const traces = [];
    for (const each of figure.series) {
      const x = each[view.x];
      const common = { x, legendgroup: each.name, line: { width: 0 }, hoverinfo: "skip", showlegend: false, mode: "lines" };
      traces.push({ ...common, y: each.low });
      traces.push({ ...common, y: each.high, fill: "tonexty", fillcolor: faded(each.colour) });
    }
    for (const each of figure.series) {
      traces.push({
        x: each[view.x], y: each.middle, name: each.name, legendgroup: each.name,
        mode: each.steps.length < 30 ? "lines+markers" : "lines",
        line: { color: each.colour, dash: each.dash, width: 2 },
        hovertemplate: "%{y:.4g} at %{x}<extra>%{fullData.name}</extra>",
      });
    }
    const layout = {
      xaxis: axis({ title: { text: view.x === "steps" ? "training steps" : "epochs" }, type: view.logx ? "log" : "linear" }),
      yaxis: axis({ title: { text: figure.quantity }, type: view.logy ? "log" : "linear" }),
    };
    if (figure.level !== null) {
      layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: figure.level, y1: figure.level, line: { color: colour("--faint"), dash: "dash", width: 1 } }];
      layout.annotations = [{ xref: "paper", x: 1, xanchor: "right", y: view.logy ? Math.log10(figure.level) : figure.level, yanchor: "bottom", text: "without memory", showarrow: false }];
    }
    return [traces, layout];
  }

  function bars(figure) {
    const traces = figure.groups.map((group) => ({
      type: "bar", orientation: "h", name: group.name, y: figure.labels, x: group.values,
      marker: { color: group.colour }, hovertemplate: "%{x:.4g}<extra>%{fullData.name}, %{y}</extra>",
      text: group.values.map((value) => (value === null ? "" : value.toPrecision(3))), textposition: "outside", cliponaxis: false,
    }));
    const layout = {
      barmode: "group",
      xaxis: axis({ title: { text: figure.unit }, type: "log" }),
      yaxis: axis({ autorange: "reversed" }),
      height: 120 + 16 * figure.labels.length * (figure.groups.length + 1),
    };
    return [traces, layout];
  }

  function draw(name) {
    const figure = figures[name];
    const [traces, layout] = figure.kind === "lines" ? lines(figure, views[name]) : bars(figure);
    const common = {
      paper_bgcolor: colour("--ground"), plot_bgcolor: colour("--ground"),
      font: { color: colour("--text"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 56, r: 16, t: 8, b: 48 }, legend: { orientation: "h", y: -0.2, yanchor: "top" },
      hovermode: "closest",
    };
    return Plotly.react(`plot-${name}`, traces, { ...common, ...layout }, { responsive: true, displaylogo: false, displayModeBar: false });
  }

  function paint(chosen) {
    root.dataset.theme = chosen;
    theme.setAttribute("aria-pressed", String(chosen === "dark"));
    return Promise.all(Object.keys(figures).map(draw));
  }

  for (const name of Object.keys(figures)) {
    if (figures[name].kind === "lines") views[name] = { x: "steps", logx: false, logy: figures[name].log };
  }
  for (const group of document.querySelectorAll(".switches")) {
    const name = group.dataset.for;
    const show = () => {
      for (const button of group.querySelectorAll("button")) {
        const on = button.dataset.x ? views[name].x === button.dataset.x : views[name][`log${button.dataset.log}`];
        button.setAttribute("aria-pressed", String(on));
      }
    };
    show();
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.x) views[name].x = button.dataset.x;
      else views[name][`log${button.dataset.log}`] = !views[name][`log${button.dataset.log}`];
      show();
      draw(name);
    });
  }
  // What is folded has no width to draw in.
  for (const fold of document.querySelectorAll("details")) {
    fold.addEventListener("toggle", () => {
      for (const plot of fold.querySelectorAll(".plot")) if (plot.data) Plotly.Plots.resize(plot);
    });
  }
  // A link into what is folded unfolds it.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    const fold = target && target.querySelector("details");
    if (fold) fold.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
  theme.addEventListener("click", () => paint(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light"));
  paint(dark.matches ? "dark" : "light").then(() => { root.dataset.drawn = "true"; });
})();
