"use strict";
// Draws what the page's data has, and redraws it when a switch, the colour scheme or the data changes. Nothing is fetched.
const FM = (() => {
  const LIGHT = ["#0072B2", "#D55E00", "#007A5A", "#A9527F", "#8A6300", "#2A2F36", "#3D87C9", "#6B4BA3"];
  const DARK = ["#56B4E9", "#FF9457", "#3CC9A0", "#E79BC3", "#F0C24B", "#E8EAED", "#8DB7FF", "#BFA3F0"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon", "circle-open", "square-open"];
  const dark = () => !printing && matchMedia("(prefers-color-scheme: dark)").matches;
  const narrow = () => innerWidth < 600;
  let printing = false;
  const drawers = [];

  const unpack = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return Array.from(new Float32Array(bytes.buffer), (v) => (Number.isFinite(v) ? v : null));
  };
  const hue = (k, alpha) => {
    const hex = (dark() ? DARK : LIGHT)[k % LIGHT.length];
    if (alpha === undefined) return hex;
    return `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  };
  const own = (name) => printing
    ? { "--page": "#ffffff", "--ink": "#16191d", "--soft": "#59616b", "--accent": "#0b5cad", "--line": "#d5dae0" }[name]
    : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const layout = (more) => {
    const axis = { gridcolor: own("--line"), zerolinecolor: own("--line"), linecolor: own("--soft"), automargin: true, tickfont: { size: 12 } };
    const { xaxis = {}, yaxis = {}, ...rest } = more;
    if (yaxis.title) yaxis.title.standoff = 14;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", size: 13, color: own("--ink") },
      margin: { l: 10, r: 10, t: narrow() ? 10 : 34, b: 10, autoexpand: true },
      legend: { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", font: { size: 12.5 }, bgcolor: "rgba(0,0,0,0)" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: own("--soft"), activecolor: own("--accent") },
      hoverlabel: { font: { size: 12 } }, dragmode: narrow() ? false : "zoom",
      ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
    };
  };
  // Only these buttons: by default plotly has one that sends the chart's data to a company.
  const BUTTONS = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const OPTIONS = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtons: BUTTONS, toImageButtonOptions: { scale: 2 } };
  const draw = (id, traces, more) => Plotly.react(id, traces, layout(more), { ...OPTIONS, displayModeBar: narrow() ? false : "hover" });

  const chosen = (name) => {
    const found = document.querySelector(`input[name="${name}"]:checked`) || document.querySelector(`select[name="${name}"]`);
    return found ? found.value : "";
  };
  const onSwitch = (names, act) => names.forEach((name) =>
    document.querySelectorAll(`[name="${name}"]`).forEach((e) => e.addEventListener("change", act)));
  const say = (id, text) => { const e = document.getElementById(id); if (e) e.textContent = text; };

  // -- curves ---------------------------------------------------------------------------------------------------------
  const BANDS = {
    range: "The line is the mean over seeds; the band reaches from the least to the greatest seed.",
    interval: "The line is the mean over seeds; the band is a 95% t-interval of that mean.",
    none: "The line is the mean over seeds.",
  };
  function curves(data) {
    const metric = chosen("metric"), against = chosen("against") || "round", band = chosen("band") || "range";
    const log = chosen("scale") === "log", logX = chosen("across") === "log";
    const traces = [];
    let hidden = 0, smallest = Infinity, single = true;
    const shown = data.lines.filter((one) => one.bands[metric]).map((one) => {
      const b = one.bands[metric], across = unpack(one.across[against]);
      const places = unpack(b.places), mean = unpack(b.mean), low = unpack(b.low), high = unpack(b.high), half = unpack(b.half);
      mean.forEach((v) => { if (v > 0) smallest = Math.min(smallest, v); else hidden += 1; });
      single = single && one.seeds === 1;
      return { one, x: places.map((k) => across[k]), mean, low: band === "interval" ? mean.map((v, i) => v - half[i]) : low, high: band === "interval" ? mean.map((v, i) => v + half[i]) : high };
    });
    shown.forEach(({ one, x, mean, low, high }) => {
      const k = one.style, name = escaped(one.label) + (one.note ? ` (${one.note})` : "");
      const common = { x, mode: "lines", legendgroup: one.label, line: { width: 0 }, showlegend: false, hoverinfo: "skip" };
      if (band !== "none" && one.seeds > 1) {
        const floor = log ? smallest * 1e-2 : -Infinity; // a band below zero would tear on a log axis
        traces.push({ ...common, y: low.map((v) => Math.max(v, floor)) });
        traces.push({ ...common, y: high.map((v) => Math.max(v, floor)), fill: "tonexty", fillcolor: hue(k, dark() ? 0.22 : 0.16) });
      }
      traces.push({
        x, y: mean, name, legendgroup: one.label, mode: "lines+markers", hovertemplate: "%{y:.4g}",
        line: { color: hue(k), width: 2.2, dash: DASHES[k % DASHES.length] },
        marker: { symbol: SYMBOLS[k % SYMBOLS.length], size: 8, maxdisplayed: 9, color: hue(k) },
      });
    });
    draw("curves-chart", traces, {
      hovermode: "x unified",
      xaxis: { title: { text: data.axes[against] }, type: logX ? "log" : "linear" },
      yaxis: { title: { text: escaped(titleOf(data, metric)) }, type: log ? "log" : "linear", exponentformat: "power" },
    });
    say("curves-caption", (single ? "One seed each, so there are no bands." : BANDS[band])
      + (log && hidden ? ` ${hidden} points at or below zero are not on the log scale.` : ""));
  }
  const titleOf = (data, metric) => (data.titles && data.titles[metric]) || metric;

  // -- every client ---------------------------------------------------------------------------------------------------
  function clients(data) {
    const entry = data.clients[Number(chosen("client-metric") || 0)];
    const first = chosen("client-first"), second = chosen("client-second");
    const labels = [first, second].filter((l, i, all) => entry.values[l] && all.indexOf(l) === i);
    if (!labels.length) { draw("clients-chart", [], {}); say("clients-caption", `${first} has no such numbers.`); return; }
    const values = labels.map((l) => unpack(entry.values[l]));
    const sign = entry.better === "lower" ? -1 : 1; // the worst served first
    const order = values[0].map((_, i) => i).sort((a, b) => sign * (values[0][a] - values[0][b]));
    const sorted = entry.quantiles ? values.map((v) => [...v].sort((a, b) => sign * (a - b))) : values.map((v) => order.map((i) => v[i]));
    const x = entry.quantiles ? order.map((_, i) => (100 * (i + 0.5)) / order.length) : order.map(String);
    const traces = labels.map((l, i) => {
      const k = data.labels.indexOf(l);
      return { type: "bar", x, y: sorted[i], name: escaped(l), hovertemplate: "%{y:.4g}", marker: { color: hue(k), line: { color: own("--page"), width: entry.count > 60 ? 0 : 1 }, pattern: { shape: i ? "/" : "", bgcolor: hue(k), fgcolor: own("--page"), size: 6, solidity: 0.35 } } };
    });
    const mean = (v) => v.reduce((a, b) => a + b, 0) / v.length;
    draw("clients-chart", traces, {
      barmode: "group", hovermode: "x unified", bargap: order.length > 60 ? 0 : 0.2,
      xaxis: entry.quantiles ? { title: { text: "per cent of the clients, each method's own order" } }
        : { title: { text: narrow() ? "clients, worst served first" : `client, from the one that ${escaped(labels[0])} serves worst` }, type: "category", showticklabels: order.length <= 60 },
      yaxis: { title: { text: escaped(entry.title) }, ...(Math.min(...sorted.flat()) > 0 ? { rangemode: "tozero" } : {}) },
    });
    say("clients-caption", labels.map((l, i) => `${l}: mean ${mean(sorted[i]).toPrecision(4)}, worst ${sorted[i].reduce((a, b) => (sign * a < sign * b ? a : b)).toPrecision(4)}`).join("; ") + `. ${entry.count} clients, ${entry.over}.`);
  }

  // -- weights on clients ---------------------------------------------------------------------------------------------
  const RAMP = () => dark() ? [[0, "#14171b"], [0.35, "#274b73"], [0.7, "#6fa8d6"], [1, "#ffffff"]] : [[0, "#ffffff"], [0.3, "#9cc4e4"], [0.65, "#2a6ca8"], [1, "#08243f"]];
  function weights(data) {
    const w = data.weights[Number(chosen("weights-of") || 0)], flat = unpack(w.values), n = w.rounds.length;
    const z = w.clients.map((_, i) => flat.slice(i * n, (i + 1) * n));
    draw("weights-chart", [{ type: "heatmap", z, x: w.rounds, y: w.clients.map((c) => `client ${c}`), colorscale: RAMP(), zmin: 0, colorbar: { title: { text: narrow() ? "" : "weight", side: "right" }, thickness: 12, outlinewidth: 0 }, hovertemplate: "%{y}, round %{x}: %{z:.4g}<extra></extra>" }],
      { xaxis: { title: { text: "rounds" }, showgrid: false }, yaxis: { type: "category", showgrid: false, nticks: 20 } });
    const last = z.map((row) => row[n - 1]), top = last.indexOf(Math.max(...last));
    say("weights-caption", `${w.label}: ${w.over}. At the end client ${w.clients[top]} has the most, ${last[top].toPrecision(3)}; equal weights would be ${(1 / w.count).toPrecision(3)}.` + (w.clients.length < w.count ? ` Shown are the ${w.clients.length} heaviest of ${w.count} clients.` : ""));
  }

  // -- sweeps ---------------------------------------------------------------------------------------------------------
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const short = (v) => (typeof v === "number" ? String(Number(v.toPrecision(3))) : String(v));
  function fillSweep(data) {
    const s = data.sweeps[Number(chosen("sweep") || 0)];
    const fill = (name, options, start) => {
      const e = document.querySelector(`select[name="${name}"]`), before = e.value;
      e.replaceChildren(...options.map((o) => new Option(o, o)));
      e.value = options.includes(before) ? before : options[Math.min(start, options.length - 1)];
      e.closest("label").hidden = options.length < 2;
    };
    fill("sweep-metric", Object.keys(s.values), Math.max(0, Object.keys(s.values).indexOf(s.selectedBy)));
    fill("sweep-x", s.names, 0);
    fill("sweep-y", s.names, 1);
  }
  function sweeps(data) {
    const s = data.sweeps[Number(chosen("sweep") || 0)], metric = chosen("sweep-metric");
    const kx = s.names.indexOf(chosen("sweep-x")), ky = s.names.indexOf(chosen("sweep-y"));
    const sign = s.better[metric] === "higher" ? 1 : -1, values = s.values[metric];
    const better = (a, b) => a !== null && (b === null || b === undefined || sign * a > sign * b);
    const two = kx !== ky, axis = (k) => [...new Set(s.settings.map((t) => t[k]))].sort(order);
    const xs = axis(kx), ys = two ? axis(ky) : [0], cell = new Map();
    const lost = values.filter((v) => v === null).length, best = s.chosen ?? s.best[metric] ?? null;
    const early = new Set(), short_of = s.early.filter((e, i) => e && values[i] !== null).length;
    s.settings.forEach((t, i) => {
      const key = JSON.stringify([t[kx], two ? t[ky] : 0]);
      // one that was run to the end goes before those that were not
      const ahead = !cell.has(key) || (early.has(key) !== s.early[i] ? early.has(key) : better(values[i], cell.get(key)));
      if (ahead) { cell.set(key, values[i]); early[s.early[i] && values[i] !== null ? "add" : "delete"](key); }
    });
    const scattered = two && cell.size < 0.5 * xs.length * ys.length;
    const positive = (list) => list.every((v) => typeof v === "number" && v > 0) && Math.max(...list) / Math.min(...list) >= 50;
    const caption = [];
    if (!two) {
      const numeric = xs.every((v) => typeof v === "number"), y = xs.map((x) => cell.get(JSON.stringify([x, 0])));
      const sound = y.filter((v) => v !== null), worst = sound.length ? (sign > 0 ? Math.min(...sound) : Math.max(...sound)) : 0;
      const X = numeric ? xs : xs.map(String);
      draw("sweeps-chart", [
        { x: X, y, mode: "lines+markers", name: escaped(metric), line: { color: hue(0), width: 2.2 }, marker: { size: 9 }, hovertemplate: "%{y:.4g}" },
        { x: X.filter((_, i) => y[i] === null), y: y.filter((v) => v === null).map(() => worst), mode: "markers", name: "diverged", marker: { symbol: "x-thin", size: 12, line: { width: 3, color: hue(1) } }, hoverinfo: "x+name" },
        { x: best === null ? [] : [numeric ? s.settings[best][kx] : String(s.settings[best][kx])], y: best === null ? [] : [values[best]], mode: "markers", name: s.chosen === null ? "best" : "chosen", marker: { symbol: "circle-open", size: 18, line: { width: 3, color: hue(2) } }, hoverinfo: "skip" },
      ], { xaxis: { title: { text: escaped(s.names[kx]) }, type: numeric ? (positive(xs) ? "log" : "linear") : "category" }, yaxis: { title: { text: escaped(metric) } } });
    } else if (scattered) {
      const fine = values.map((v, i) => i).filter((i) => values[i] !== null), not = values.map((v, i) => i).filter((i) => values[i] === null);
      const at = (list, k) => list.map((i) => s.settings[i][k]);
      draw("sweeps-chart", [
        { x: at(fine, kx), y: at(fine, ky), mode: "markers", name: "settings", marker: { size: 13, color: fine.map((i) => values[i]), colorscale: RAMP(), line: { width: 1, color: own("--soft") }, showscale: true, colorbar: { thickness: 12, outlinewidth: 0 } }, customdata: fine.map((i) => values[i]), hovertemplate: "%{customdata:.4g}<extra>%{x}, %{y}</extra>" },
        { x: at(not, kx), y: at(not, ky), mode: "markers", name: "diverged", marker: { symbol: "x-thin", size: 11, line: { width: 2.5, color: hue(1) } }, hoverinfo: "x+y+name" },
        { x: best === null ? [] : [s.settings[best][kx]], y: best === null ? [] : [s.settings[best][ky]], mode: "markers", name: s.chosen === null ? "best" : "chosen", marker: { symbol: "circle-open", size: 22, line: { width: 3, color: hue(2) } }, hoverinfo: "skip" },
      ], { xaxis: { title: { text: escaped(s.names[kx]) }, type: positive(xs) ? "log" : "-" }, yaxis: { title: { text: escaped(s.names[ky]) }, type: positive(ys) ? "log" : "-" } });
    } else {
      const z = ys.map((y) => xs.map((x) => cell.get(JSON.stringify([x, y])) ?? null));
      const found = z.flat().filter((v) => v !== null), low = Math.min(...found), high = Math.max(...found);
      const X = xs.map(short), Y = ys.map(short), notes = [];
      ys.forEach((y, i) => xs.forEach((x, j) => {
        const v = z[i][j], tried = cell.has(JSON.stringify([x, y]));
        const isBest = best !== null && s.settings[best][kx] === x && s.settings[best][ky] === y;
        if (xs.length * ys.length > 120 && v !== null && !isBest) return;
        const full = v !== null && (v - low) / (high - low || 1) > (dark() ? 0.6 : 0.4);
        const text = v === null ? (tried ? "× diverged" : "") : short(v) + (early.has(JSON.stringify([x, y])) ? "°" : "");
        notes.push({ x: j, y: i, xref: "x", yref: "y", text: isBest ? `<b>[${text}]</b>` : narrow() && v === null ? (tried ? "×" : "") : text, showarrow: false, font: { size: narrow() ? 10 : 12, color: v === null ? own("--ink") : full !== dark() ? "#fff" : "#111" } });
      }));
      draw("sweeps-chart", [{ type: "heatmap", z, x: X, y: Y, colorscale: RAMP(), xgap: 2, ygap: 2, hoverongaps: false, colorbar: { thickness: 12, outlinewidth: 0 }, hovertemplate: `${escaped(s.names[kx])} %{x}, ${escaped(s.names[ky])} %{y}: %{z:.5g}<extra></extra>` }],
        { annotations: notes, xaxis: { title: { text: escaped(s.names[kx]) }, type: "category", showgrid: false }, yaxis: { title: { text: escaped(s.names[ky]) }, type: "category", showgrid: false } });
      caption.push("The number in brackets is " + (s.chosen === null ? "the best." : "the setting that was chosen."));
    }
    caption.unshift(`${s.settings.length} settings, ${s.seeds} seed${s.seeds > 1 ? "s" : ""} each; the mean of ${metric} (${s.better[metric]} is better) at the end.`);
    if (s.names.length > 2 && two) caption.push("Over the other hyper-parameters the best is shown.");
    if (short_of) caption.push(`${short_of} were ended early${two && !scattered ? " (°)" : ""}, with their value then.`);
    if (lost) caption.push(`${lost} diverged (×) with some seed.`);
    if (best !== null) caption.push(`${s.chosen === null ? "Best" : "Chosen"}: ${s.names.map((n, k) => `${n} = ${short(s.settings[best][k])}`).join(", ")}${s.selectedBy ? `, by ${s.selectedBy}` : ""}.`);
    say("sweeps-caption", caption.join(" "));
  }

  // -- the page -------------------------------------------------------------------------------------------------------
  function follow() { // the answer and the table of the metric that is selected
    const metric = chosen("metric");
    document.querySelectorAll("[data-metric]").forEach((e) => { e.hidden = e.dataset.metric !== metric; });
  }
  let own_scale = false; // whether somebody chose one
  function scales(data) { // a metric without positive values has no log scale; one over several decades begins with it
    const log = document.querySelector('input[name="scale"][value="log"]'), linear = document.querySelector('input[name="scale"][value="linear"]');
    const metric = chosen("metric"), all = data.lines.flatMap((one) => (one.bands[metric] ? unpack(one.bands[metric].mean) : []));
    const least = all.reduce((a, b) => Math.min(a, b), Infinity), most = all.reduce((a, b) => Math.max(a, b), -Infinity);
    log.disabled = !(most > 0);
    if (!own_scale) (least > 0 && most > 50 * least ? log : linear).checked = true;
    if (log.disabled && log.checked) linear.checked = true;
  }
  function keys(data) { // the line of every method, beside its name
    document.querySelectorAll("svg.key").forEach((e) => {
      const k = Number(e.dataset.style), dash = { solid: "", dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "13 5", longdashdot: "13 4 2 4" }[DASHES[k % DASHES.length]];
      e.innerHTML = `<line x1="1" x2="33" y1="6" y2="6" stroke="${hue(k)}" stroke-width="2.5" stroke-dasharray="${dash}"/>`;
    });
  }
  function all() { drawers.forEach((drawer) => drawer()); }

  function start(data) {
    const there = (id) => document.getElementById(id);
    drawers.push(() => keys(data));
    if (there("curves-chart")) {
      drawers.push(() => { scales(data); curves(data); });
      onSwitch(["scale"], () => { own_scale = true; });
      onSwitch(["metric"], () => { follow(); scales(data); curves(data); });
      onSwitch(["against", "scale", "across", "band"], () => curves(data));
      follow();
    }
    if (there("clients-chart")) { drawers.push(() => clients(data)); onSwitch(["client-metric", "client-first", "client-second"], () => clients(data)); }
    if (there("weights-chart")) { drawers.push(() => weights(data)); onSwitch(["weights-of"], () => weights(data)); }
    if (there("sweeps-chart")) {
      fillSweep(data);
      drawers.push(() => sweeps(data));
      onSwitch(["sweep"], () => { fillSweep(data); sweeps(data); });
      onSwitch(["sweep-metric", "sweep-x", "sweep-y"], () => sweeps(data));
    }
    all();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
    addEventListener("beforeprint", () => { printing = true; document.querySelectorAll("details").forEach((e) => { e.open = true; }); all(); });
    addEventListener("afterprint", () => { printing = false; all(); });
    document.documentElement.dataset.drawn = "yes";
  }
  return { start, curves, scales, chose: () => { own_scale = true; } };
})();
