// The page: what the run recorded, as sections. Every text of a run becomes a text node, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const NAMES = {loss: "loss", lr: "learning rate", norm: "gradient norm", speed: "tokens per second"};
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const asked = new URLSearchParams(location.hash.slice(1));

const color = number => `var(--s${number % 8})`;
const time = seconds => seconds ? new Date(1000 * seconds).toLocaleString("sv-SE", {dateStyle: "short", timeStyle: "short"}) : "";

function decoded({x, y}) {
  let step = 0;
  return {steps: x.map(by => step += by), ys: y};
}

// ---------------------------------------------------------------- curves

function lossSeries() {
  const isAlone = data.runs.length === 1, found = [];
  data.runs.forEach((run, number) => {
    const {loss, smooth, val, shares} = run.curves, own = color(number), dash = isAlone ? "" : DASHES[number % 4];
    const add = (name, curve, more) => curve.x.length && found.push({name, run, look: "", dash, ...decoded(curve), ...more});
    const of = isAlone ? "" : `${run.name}: `;
    if (smooth) add(of + "training, as logged", loss, {color: own, look: "faint", dash: ""});
    add(of + (smooth ? "training, smoothed" : "training"), smooth || loss, {color: own, look: isAlone ? "" : "thin"});
    const validation = isAlone ? color(1) : own;
    add(of + "validation", val, {color: validation, rings: true, best: run.best});
    if (isAlone) Object.entries(shares).forEach(([name, curve], at) =>
      add("validation, " + name, curve, {color: color(at + 2), look: "thin", dash: DASHES[(at + 1) % 4]}));
  });
  return found;
}

function otherSeries(panel) {
  return data.runs.flatMap((run, number) => {
    const curve = run.curves[panel];
    return curve.x.length ? [{name: data.runs.length === 1 ? NAMES[panel] : run.name, run, color: color(number), look: "thin",
      dash: data.runs.length === 1 ? "" : DASHES[number % 4], ...decoded(curve)}] : [];
  });
}

function legend(chart) {
  const box = el("div", "legend");
  for (const one of chart.series) {
    const key = el("span", "key"), button = el("button", "", key, one.name);
    key.style.borderColor = one.color;
    key.style.opacity = one.look === "faint" ? 0.45 : 1;
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      one.hidden = !one.hidden;
      button.setAttribute("aria-pressed", String(!one.hidden));
      chart.draw();
    });
    box.append(button);
  }
  return box;
}

function choice(options, chosen, choose) {
  const box = el("div", "choice");
  for (const [value, words] of options) {
    const button = el("button", "", words);
    button.type = "button";
    button.setAttribute("aria-pressed", String(value === chosen));
    button.addEventListener("click", () => {
      for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
      choose(value);
    });
    box.append(button);
  }
  return box;
}

function button(words, label, act) {
  const made = el("button", "", words);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.title = label;
  made.addEventListener("click", act);
  return made;
}

function curves() {
  const axis = new Axis(data.runs, asked.get("x") || data.x), section = el("section", "curves");
  const headings = [], charts = data.panels.map((panel, number) => {
    const isLoss = panel === "loss", isLarge = number === 0;
    headings.push(isLarge ? null : el("span", "values num"));
    return new Chart(axis, isLoss ? lossSeries() : otherSeries(panel), {
      label: NAMES[panel], fromZero: !isLoss, limits: isLoss ? data.limits : null, log: isLoss && data.log, heading: headings[number],
      height: width => isLarge ? width < 600 ? 260 : 360 : 165});
  });
  const bar = el("div", "bar", el("h2", "", data.panels[0] === "loss" ? `Loss, ${data.unit}` : NAMES[data.panels[0]]));
  const loss = charts[data.panels.indexOf("loss")];
  if (axis.hasTokens) bar.append(choice([["steps", "Steps"], ["tokens", "Tokens"], ["hours", "Time"]], axis.kind, kind => axis.choose(kind)));
  if (loss) bar.append(choice([[false, "Linear"], [true, "Log"]], data.log, log => { loss.log = log; loss.draw(); }));
  const reset = button("Reset", "show all", () => axis.reset()), out = button("\u2212", "zoom out", () => axis.zoom(2));
  const back = button("\u2039", "earlier", () => axis.move(-0.5)), on = button("\u203a", "later", () => axis.move(0.5));
  bar.append(el("span", "", back, " ", button("+", "zoom in", () => axis.zoom(0.5)), " ", out, " ", on, " ", reset));
  axis.listeners.push(isNew => { if (isNew) for (const one of [reset, out, back, on]) one.disabled = axis.isWhole; });

  section.append(bar, legend(charts[0]), charts[0].plot);
  const hint = el("p", "soft small hint", "Drag across a curve to zoom, double-click for all; on a phone pinch. Ctrl and wheel zoom too.");
  const rest = el("div", "charts");
  charts.slice(1).forEach((chart, number) => rest.append(el("div", "chart", el("h3", "", NAMES[data.panels[number + 1]], headings[number + 1]), chart.plot)));
  section.append(rest, hint);
  data.axis = axis;
  axis.changed();
  if (asked.has("from") && asked.has("to")) axis.show(+asked.get("from"), +asked.get("to"));
  if (asked.has("at")) axis.point(+asked.get("at"));
  return section;
}

// ---------------------------------------------------------------- sections

function table(heads, rows, className = "") {
  const numeric = heads.map(head => head.startsWith("#"));
  const names = heads.map(head => head.replace("#", ""));
  const body = el("tbody", "", ...rows.map(row => el("tr", "", ...row.map((cell, column) => {
    const made = el("td", numeric[column] ? "num" : "", ...(Array.isArray(cell) ? cell : [cell]));
    if (column && names[column]) made.dataset.name = names[column];
    if (cell instanceof Element && cell.className === "pair") made.className = "pairbox";
    return made;
  }))));
  const head = el("thead", "", el("tr", "", ...names.map((name, column) => el("th", numeric[column] ? "num" : "", name))));
  return el("div", "tablebox", el("table", className, head, body));
}

function section(title, ...children) {
  return el("section", "", el("h2", "", title), ...children);
}

function tags(words) {
  return words.map(word => el("span", "tag " + (word === "best" ? "best" : ""), word));
}

// The last sample that has text; a model may end at once.
function lastWritten(shown) {
  const there = shown.map((one, number) => one.text.trim() ? number : -1);
  return Math.max(...there) < 0 ? shown.length - 1 : Math.max(...there);
}

function samples(run) {
  const {n, shown} = run.samples;
  if (!shown.length) return null;
  const slider = el("input"), text = el("pre", "sample"), at = el("span", "num small");
  Object.assign(slider, {type: "range", min: 0, max: shown.length - 1, value: asked.get("sample") ?? lastWritten(shown)});
  slider.setAttribute("aria-label", "which sample");
  text.dir = "auto";
  const show = () => {
    const one = shown[+slider.value];
    text.textContent = one.text.trim() ? one.text : "(the model wrote nothing)";
    at.textContent = `step ${one.step.toLocaleString("en-US")}`;
    text.classList.toggle("soft", !one.text.trim());
  };
  const move = by => () => { slider.value = +slider.value + by; show(); };
  slider.addEventListener("input", show);
  show();
  const row = shown.length > 1 ? [button("\u2039", "earlier sample", move(-1)), slider, button("\u203a", "later sample", move(1))] : [];
  const few = n > shown.length ? el("p", "soft small", `${shown.length} of ${n.toLocaleString("en-US")} samples.`) : "";
  return section("Samples over time", el("div", "slide", ...row, at), text, few);
}

function warnings(run) {
  if (!run.warnings.length) return null;
  return section("Warnings and advice", ...run.warnings.map(({step, text}) =>
    el("div", "warning", el("b", "", step === null ? "at the start" : `step ${step.toLocaleString("en-US")}`), text)));
}

function plan(run) {
  if (!run.plan.length) return null;
  const most = row => Math.max(...row.values) || 1;
  const rows = run.plan.map(row => {
    const bars = row.values.map(value => { const bar = el("div"); bar.style.width = `${100 * value / most(row)}%`; return bar; });
    const [planned, measured] = row.values, times = planned && measured ? (measured / planned).toFixed(2) + "\u00d7" : "";
    return [row.name, row.planned, row.measured, times, el("div", "pair", ...bars), el("span", "soft small", row.note)];
  });
  return section("Plan and measurement", table(["", "#planned", "#measured", "#ratio", "", ""], rows, "plan"));
}

function settings(run) {
  if (!run.settings.length) return null;
  const rows = how => run.settings.filter(one => one.how === how)
    .map(one => [el("span", "code", one.name), el("span", "code", one.value), one.why ? el("span", "soft", one.why) : ""]);
  const given = rows("given"), derived = rows("derived"), made = section("Settings");
  made.classList.add("long");
  const words = (run.command || "").split(" ").flatMap(word => [el("span", "", word), " "]);  // no line ends within a flag
  if (run.command) made.append(el("pre", "command", ...words.slice(0, -1)));
  if (given.length) made.append(el("h3", "", "Given"), table(["flag", "value", given.some(row => row[2]) ? "reason" : ""], given, "stack flags"));
  if (derived.length) {
    const more = el("details", "", el("summary", "", `Derived by the program: ${derived.length}, with reasons`),
      table(["flag", "value", "reason"], derived, "stack flags"));
    made.append(more);
  }
  return made;
}

function machine(run) {
  if (!run.machine.length) return null;
  const list = el("dl", "", ...run.machine.map(([name, value]) => el("div", "", el("dt", "", name), el("dd", "num", value))));
  const made = section("Machine", list);
  if (run.lines.length) made.append(el("details", "", el("summary", "", "The plan as it was made"), el("pre", "", run.lines.join("\n"))));
  return made;
}

function validations(run) {
  if (!run.validations.length) return null;
  return section("Validation", table(["step", "#loss", "#perplexity", "#bits/byte"],
    run.validations.map(row => [[row[0] + " ", ...tags(row[4] ? [row[4]] : [])], ...row.slice(1, 4)])));
}

function evaluations(run) {
  if (!run.evaluations.length) return null;
  return section("Evaluation", ...run.evaluations.flatMap(one => [el("h3", "", `${one.file}: ${one.model}`),
    table(one.columns.map((name, at) => at > 1 ? "#" + name : name), one.rows, "stack")]));
}

function starts(run) {
  if (!run.starts.length) return null;
  return section("Starts and stops", table(["start", "#from step", "#to step", "#took", "how it ended"],
    run.starts.map(one => [el("span", "stamp", time(one.time)), one.from.toLocaleString("en-US"), one.to.toLocaleString("en-US"), one.took, one.how]), "stack"));
}

function checkpoints(run) {
  if (!run.checkpoints.length) return null;
  return section("Checkpoints on the disk", table(["checkpoint", "#validation loss", "#size", "saved"],
    run.checkpoints.map(one => [[el("span", "code stamp", one.name), " ", ...tags(one.marks)], one.loss, one.size, el("span", "stamp", time(one.time))]), "stack"));
}

function two(...parts) {
  const there = parts.filter(Boolean);
  return there.length ? el("div", "two", ...there) : null;
}

// ---------------------------------------------------------------- the page

function about(run) {
  const {step, total, word, kind} = run.state;
  const words = total ? `step ${step.toLocaleString("en-US")} of ${total.toLocaleString("en-US")}` : `step ${step.toLocaleString("en-US")}`;
  return el("p", "", el("span", "pill " + kind, word), el("span", "num", words));
}

function tiles(run) {
  return el("div", "tiles", ...run.figures.map(([name, value, detail]) => el("div", "tile", el("span", "", name), el("b", "", value), el("span", "", detail))));
}

function compared() {
  const figure = (run, name) => (run.figures.find(one => one[0] === name) || ["", "n/a"])[1];
  const names = ["best validation loss", "training loss", "tokens per second", "time in steps", "parameters"];
  return section("Runs", table(["run", "state", "#step", ...names.map(name => "#" + name)], data.runs.map(run =>
    [run.name, run.state.word, run.state.step.toLocaleString("en-US"), ...names.map(name => figure(run, name))]), "stack"));
}

function ofRun(run) {
  const {step, total} = run.state, parts = [];
  if (total && step < total) {
    const done = el("div");
    done.style.width = `${100 * step / total}%`;
    parts.push(el("div", "progress", done));
  }
  return {top: [...parts, tiles(run)], rest: [samples(run), warnings(run), plan(run), two(validations(run), checkpoints(run)),
    evaluations(run), starts(run), machine(run), settings(run)].filter(Boolean)};
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const set = name => { root.dataset.theme = name; };
  set(asked.get("theme") || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => set(dark.matches ? "dark" : "light"));
  return button("\u25d0", "dark or light", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
}

function build() {
  const page = document.getElementById("page"), isAlone = data.runs.length === 1, first = data.runs[0];
  const names = el("div", "names", el("p", "eyebrow", isAlone ? "Training run" : `${data.runs.length} training runs`), el("h1", "", data.title), isAlone ? about(first) : "");
  page.append(el("header", "", names, theme()));
  const drawn = curves();
  if (isAlone) {
    const {top, rest} = ofRun(first);
    page.append(...top, drawn, ...rest);
  } else {
    const box = el("div"), tabs = el("div", "tabs");
    const show = number => {
      [...tabs.children].forEach((tab, at) => tab.setAttribute("aria-selected", String(at === number)));
      const {top, rest} = ofRun(data.runs[number]);
      box.replaceChildren(el("h2", "", data.runs[number].name), about(data.runs[number]), el("br"), ...top, ...rest);
    };
    data.runs.forEach((run, number) => tabs.append(button(run.name, "show this run below", () => show(number))));
    page.append(drawn, compared(), tabs, box);
    show(Math.min(data.runs.length - 1, +(asked.get("run") || 0)));
  }
  page.append(el("footer", "", `Made ${time(data.made)} from what the run recorded. This page loads nothing and sends nothing.`));
  data.axis.changed();
}

build();
