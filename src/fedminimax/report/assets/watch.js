"use strict";
// Asks how the experiment stands, again and again, and redraws.
(() => {
  let last = null, ended = false;
  const get = (id) => document.getElementById(id);
  const picked = document.querySelector('select[name="metric"]');

  function metrics(data) {
    const known = [...picked.options].map((o) => o.value);
    if (known.join("\n") === data.metrics.join("\n")) return;
    const before = picked.value;
    picked.replaceChildren(...data.metrics.map((m) => new Option(data.titles[m], m)));
    if (data.metrics.includes(before)) picked.value = before;
  }
  function axes(data) { // only what is there can be chosen
    document.querySelectorAll('input[name="against"]').forEach((e) => {
      e.parentElement.hidden = !(e.value in data.axes);
      if (e.parentElement.hidden && e.checked) document.querySelector('input[name="against"][value="round"]').checked = true;
    });
  }
  function rows(data) {
    get("newest").textContent = data.titles[picked.value] || "Newest";
    get("rows").replaceChildren(...data.runs.map((run) => {
      const row = document.createElement("tr");
      const cell = (kind, content) => { const e = document.createElement(kind); e.append(content); row.append(e); return e; };
      cell("th", run.label).scope = "row";
      cell("td", run.seed);
      cell("td", `${run.rounds} / ${run.wanted || "?"}`).className = "number";
      const bar = document.createElement("progress");
      bar.max = run.wanted || 1; bar.value = run.rounds;
      bar.setAttribute("aria-label", `${run.label}, seed ${run.seed}`);
      cell("td", bar);
      cell("td", run.newest[picked.value] ?? "").className = "number";
      cell("td", run.words);
      row.dataset.status = run.status;
      return row;
    }));
  }
  function show() {
    if (!last) return;
    get("name").textContent = last.name;
    get("words").textContent = last.words;
    get("share").value = last.share;
    document.title = `${Math.floor(100 * last.share)}% ${last.name}`;
    metrics(last); axes(last); rows(last);
    if (last.lines.length && picked.value) { FM.scales(last); FM.curves(last); document.documentElement.dataset.drawn = "yes"; }
  }
  async function poll() {
    try {
      const answer = await fetch("/state");
      if (!answer.ok) throw new Error(answer.statusText);
      last = await answer.json();
      ended = last.ended;
      show();
    } catch (error) {
      get("words").textContent = last ? `${last.words} The watcher has ended.` : `The watcher does not answer (${error.message}).`;
      ended = true;
    }
    if (!ended) setTimeout(poll, EVERY);
  }
  document.querySelectorAll('input[name="scale"]').forEach((e) => e.addEventListener("change", FM.chose));
  document.querySelectorAll("select, input").forEach((e) => e.addEventListener("change", show));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  poll();
})();
