"use strict";
// A chart of curves over one horizontal axis, which all charts of the page share: its kind, its part that is shown, and
// the place under the pointer. Steps are what curves are stored by; tokens and hours are looked up (places).

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 50, RIGHT = 10, TOP = 8, BOTTOM = 24;
const SPIKES = 0.02;       // of the values may lie above the axis, as in plot.py's pictures
const NARROWEST = 1e-4;    // of the whole axis that can be shown
const SLACK = 4;           // pixels by which the pointer may miss the end of a curve
const PAPER = 680;         // pixels that a line has on paper

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function el(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------- numbers

function short(number) {
  const size = Math.abs(number);
  for (const [letter, scale] of [["T", 1e12], ["B", 1e9], ["M", 1e6]])
    if (size >= scale) return +(number / scale).toPrecision(4) + letter;
  if (size >= 1e4) return +(number / 1e3).toPrecision(4) + "K";
  if (size && size < 1e-3) return number.toExponential(1).replace(".0e", "e");
  return (+number.toPrecision(6)).toLocaleString("en-US", {maximumFractionDigits: 6});
}

function exact(number) {
  if (number && Math.abs(number) < 1e-2) return number.toExponential(3);
  return number.toLocaleString("en-US", {maximumFractionDigits: Math.abs(number) >= 1000 ? 0 : 4});
}

// Round numbers in a range, about so many.
function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find(times => times * power >= rough * (1 - 1e-9)) * power;
  const found = [];
  for (let number = Math.ceil(low / step); number * step <= high * (1 + 1e-9); number++) found.push(number * step);
  return found;
}

function logTicks(low, high, most) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const times of [1, 2, 5]) if (times * 10 ** power >= low && times * 10 ** power <= high) found.push(times * 10 ** power);
  return found.length >= 3 ? found : ticks(low, high, most);
}

// Where a value would stand in ascending ones.
function place(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

// A step as tokens or seconds: straight lines between the places, from 0 at step 0.
function between(steps, values, step) {
  const index = Math.min(place(steps, step), steps.length - 1);
  const [x0, y0] = index ? [steps[index - 1], values[index - 1]] : [0, 0];
  return steps[index] === x0 ? values[index] : y0 + (values[index] - y0) * (step - x0) / (steps[index] - x0);
}

// ---------------------------------------------------------------- the axis that all charts share

class Axis {
  constructor(runs, kind) {
    this.runs = runs;
    this.listeners = [];
    this.pointer = null;
    this.kind = runs.every(run => run.places.steps.length) ? kind : "steps";
    this.reset();
  }

  get hasTokens() { return this.runs.every(run => run.places.steps.length); }

  of(run, step) {
    if (this.kind === "steps") return step;
    const {steps, tokens, seconds} = run.places;
    return this.kind === "tokens" ? between(steps, tokens, step) : between(steps, seconds, step) / 3600;
  }

  words(x) {
    if (this.kind === "steps") return "step " + Math.round(x).toLocaleString("en-US");
    if (this.kind === "tokens") return short(+x.toPrecision(4)) + " tokens";
    const seconds = Math.round(3600 * x);
    if (seconds < 60) return seconds + " s";
    const minutes = Math.floor(seconds / 60);
    return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  tick(x) {
    if (this.kind !== "hours") return short(x);
    return this.whole < 1 / 20 ? short(3600 * x) + " s" : this.whole < 3 ? short(60 * x) + " min" : short(x) + " h";
  }

  ticks(most) {
    const scale = this.kind !== "hours" || this.whole >= 3 ? 1 : this.whole < 1 / 20 ? 3600 : 60;
    const found = ticks(this.low * scale, this.high * scale, most);
    return (found.length > 1 ? found : ticks(this.low * scale, this.high * scale, 2 * most)).map(x => x / scale);
  }

  reset() {
    this.whole = Math.max(...this.runs.map(run => this.of(run, run.last))) || 1;
    this.low = 0;
    this.high = this.whole;
    this.changed();
  }

  choose(kind) {
    const [low, high] = [this.low / this.whole, this.high / this.whole];
    this.kind = kind;
    this.reset();
    this.show(low * this.whole, high * this.whole);
  }

  // Only this part, or as much of it as there is.
  show(low, high) {
    const least = NARROWEST * this.whole, width = Math.min(this.whole, Math.max(least, high - low));
    this.low = Math.max(0, Math.min(low, this.whole - width));
    this.high = this.low + width;
    this.changed();
  }

  zoom(factor, around = (this.low + this.high) / 2) {
    this.show(around - (around - this.low) * factor, around + (this.high - around) * factor);
  }

  move(share) {
    const by = share * (this.high - this.low);
    this.show(this.low + by, this.high + by);
  }

  get isWhole() { return this.high - this.low >= this.whole * (1 - 1e-9); }

  point(x) {
    this.pointer = x === null ? null : Math.min(this.high, Math.max(this.low, x));
    for (const listener of this.listeners) listener(false);
  }

  changed() { for (const listener of this.listeners) listener(true); }
}

// ---------------------------------------------------------------- a chart

// Where there is a heading the values under the pointer stand there, else in a box beside the pointer.
// A series: {name, run, steps, ys, color, look: "", "faint" or "thin", rings, hidden}.
class Chart {
  constructor(axis, series, {height, fromZero, limits, log, label, heading}) {
    Object.assign(this, {axis, series, height, fromZero, limits, log, label, heading});
    this.plot = el("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", label + ": arrow keys read values, + and - zoom, 0 shows all");
    this.readout = el("div", "readout");
    this.readout.hidden = true;
    this.touches = new Map();
    axis.listeners.push(isNew => isNew ? this.draw() : this.point());
    new ResizeObserver(() => this.plot.clientWidth !== this.width && this.draw()).observe(this.plot);
    addEventListener("beforeprint", () => this.draw(Math.min(PAPER, this.plot.clientWidth)));
    addEventListener("afterprint", () => this.draw());
    this.listen();
  }

  x(value) { return LEFT + (value - this.axis.low) / (this.axis.high - this.axis.low) * this.inner; }

  value(clientX) {
    const share = (clientX - this.plot.getBoundingClientRect().left - LEFT) / this.inner;
    return this.axis.low + share * (this.axis.high - this.axis.low);
  }

  y(value) {
    const at = this.log ? Math.log(Math.max(value, 1e-300)) : value;
    return TOP + (this.top - at) / (this.top - this.bottom) * (this.h - TOP - BOTTOM);
  }

  // Whether a place of both axes is among those shown.
  shows(x, y) { return x >= LEFT - 1 && x <= this.width - RIGHT + 1 && y >= TOP - 4 && y <= this.h - BOTTOM + 1; }

  draw(width = this.plot.clientWidth) {
    this.width = width;
    if (!this.width) return;
    this.h = this.height(this.width);
    this.inner = this.width - LEFT - RIGHT;
    for (const one of this.series) one.xs = one.steps.map(step => this.axis.of(one.run, step));
    this.scale();
    const frame = svg("svg", {viewBox: `0 0 ${this.width} ${this.h}`, height: this.h});
    const clip = "clip" + Math.random().toString(36).slice(2);
    frame.append(svg("clipPath", {id: clip}, svg("rect", {
      x: LEFT, y: TOP - 4, width: this.inner, height: this.h - TOP - BOTTOM + 4})));
    this.drawScales(frame);
    const inside = svg("g", {"clip-path": `url(#${clip})`}), marks = svg("g");
    for (const one of this.series) if (!one.hidden) this.drawCurve(inside, marks, one);
    this.over = svg("g", {class: "over"});
    frame.append(inside, marks, this.over);
    this.plot.replaceChildren(frame, this.readout);
    this.point();
  }

  // From which of its points to which a curve is drawn: those shown and one beside them; none where it has ended.
  part(one) {
    const from = place(one.xs, this.axis.low), to = place(one.xs, this.axis.high);
    return from === one.xs.length ? [from, from] : [Math.max(0, from - 1), to && Math.min(one.xs.length, to + 1)];
  }

  // Limits of the vertical axis: of what is shown, without lone spikes.
  scale() {
    const isFirst = this.axis.isWhole && this.limits;
    let low, high;
    if (isFirst) [low, high] = this.limits;
    else {
      const shown = this.series.filter(one => !one.hidden).flatMap(one => {
        const [from, to] = this.part(one), ys = one.ys.slice(from, to);
        if (one.look !== "faint" || ys.length < 10) return ys;
        ys.sort((a, b) => a - b);  // of what is noise the middle
        return ys.slice(Math.floor(0.1 * ys.length), Math.ceil(0.9 * ys.length));
      }).sort((a, b) => a - b);
      if (!shown.length) shown.push(0, 1);
      const usual = shown[Math.floor((1 - SPIKES) * (shown.length - 1))];
      low = this.fromZero ? 0 : shown[0];
      high = Math.min(shown[shown.length - 1], this.fromZero ? 2 * usual || Infinity : usual + 0.5 * (usual - low) || Infinity);
      const margin = 0.06 * (high - low) || 0.05 * Math.abs(high) || 1;
      [low, high] = [this.fromZero ? 0 : this.log ? low / 1.02 : low - margin, this.log ? high * 1.02 : high + margin];
    }
    if (this.log) {
      const positive = this.series.flatMap(one => one.ys.filter(y => y > 0));
      low = low > 0 ? low : Math.min(...positive.slice(0, 1e4), high / 2 || 1);
    }
    this.limitsNow = [low, high];
    [this.bottom, this.top] = this.log ? [Math.log(low), Math.log(Math.max(high, low * 1.0001))] : [low, high];
  }

  drawScales(frame) {
    const [low, high] = this.limitsNow, most = this.h > 220 ? 6 : 4;
    for (const value of this.log ? logTicks(low, high, most) : ticks(low, high, most)) {
      const y = this.y(value);
      frame.append(svg("line", {class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y}),
        svg("text", {x: LEFT - 7, y: y + 4, "text-anchor": "end"}, short(value)));
    }
    const bottom = this.h - BOTTOM;
    frame.append(svg("line", {class: "axis", x1: LEFT, x2: this.width - RIGHT, y1: bottom, y2: bottom}));
    for (const value of this.axis.ticks(Math.max(2, Math.min(8, Math.floor(this.inner / 80))))) {
      const x = this.x(value), isNearEnd = x > this.width - 30;
      frame.append(svg("line", {class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4}),
        svg("text", {x: isNearEnd ? this.width : x, y: bottom + 17, "text-anchor": isNearEnd ? "end" : "middle"},
          this.axis.tick(value)));
    }
  }

  // Marks stay whole at the edges, where the clip would halve them.
  drawCurve(inside, marks, one) {
    const [from, to] = this.part(one), words = [];
    for (let index = from; index < to; index++)
      words.push((index === from ? "M" : "L") + this.x(one.xs[index]).toFixed(1) + " " + this.y(one.ys[index]).toFixed(1));
    const path = svg("path", {class: "curve " + one.look, d: words.join(""), stroke: one.color});
    if (one.dash) path.setAttribute("stroke-dasharray", one.dash);
    inside.append(path);
    const every = Math.ceil(18 * (to - from) / this.inner);
    if (one.rings) for (let index = from; index < to; index += every) {
      const [x, y] = [this.x(one.xs[index]), this.y(one.ys[index])];
      if (this.shows(x, y)) marks.append(svg("circle", {class: "ring", r: 3, cx: x, cy: y, stroke: one.color}));
    }
    if (one.best) this.drawBest(marks, one);
  }

  drawBest(marks, one) {
    const x = this.x(this.axis.of(one.run, one.best.step)), y = this.y(one.best.y);
    if (!this.shows(x, y)) return;
    const corner = number => {
      const angle = Math.PI * (number / 5 - 0.5), radius = number % 2 ? 3 : 7.5;
      return `${(x + radius * Math.cos(angle)).toFixed(1)},${(y + radius * Math.sin(angle)).toFixed(1)}`;
    };
    marks.append(svg("polygon", {class: "dot", points: [...Array(10).keys()].map(corner).join(" "), fill: one.color}));
  }

  // ---- what stands under the pointer

  point() {
    const at = this.axis.pointer;
    if (!this.over) return;
    this.over.replaceChildren();
    this.readout.hidden = at === null || Boolean(this.heading);
    if (this.heading) this.heading.replaceChildren();
    if (at === null) return;
    const x = this.x(at), lines = [];
    this.over.append(svg("line", {class: "cross", x1: x, x2: x, y1: TOP, y2: this.h - BOTTOM}));
    for (const one of this.series) {
      if (one.hidden || !one.xs || !one.xs.length) continue;
      if (x - this.x(this.axis.of(one.run, one.run.last)) > SLACK) continue;  // its run has not come so far
      let index = Math.min(place(one.xs, at), one.xs.length - 1);
      if (index && at - one.xs[index - 1] < one.xs[index] - at) index--;
      const [cx, cy] = [this.x(one.xs[index]), this.y(one.ys[index])];
      if (this.shows(cx, cy)) this.over.append(svg("circle", {class: "dot", r: 4, cx, cy, fill: one.color}));
      if (this.heading) {
        const value = el("span", "", exact(one.ys[index]));
        value.style.color = one.color;
        this.heading.append(" ", value);
        continue;
      }
      const key = el("span", "key");
      key.style.borderColor = one.color;
      lines.push(el("div", "", key, one.name, el("span", "value", exact(one.ys[index]))));
    }
    this.readout.replaceChildren(el("div", "at", this.axis.words(at)), ...lines);
    const wide = this.readout.offsetWidth, isRight = x > LEFT + this.inner / 2;
    const left = isRight ? x - 12 - wide : x + 12;
    this.readout.style.left = `${Math.max(0, Math.min(left, this.width - wide))}px`;
  }

  listen() {
    const plot = this.plot;
    plot.addEventListener("pointerdown", event => this.down(event));
    plot.addEventListener("pointermove", event => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) plot.addEventListener(name, event => this.up(event));
    plot.addEventListener("pointerleave", event => event.pointerType === "mouse" && !this.from && this.axis.point(null));
    plot.addEventListener("dblclick", () => this.axis.reset());
    plot.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;  // the wheel alone scrolls the page
      event.preventDefault();
      this.axis.zoom(2 ** (Math.max(-50, Math.min(50, event.deltaY)) / 60), this.value(event.clientX));
    }, {passive: false});
    plot.addEventListener("keydown", event => this.pressed(event));
    plot.addEventListener("blur", () => this.axis.point(null));
  }

  pressed(event) {
    const axis = this.axis, by = (axis.high - axis.low) / 100;
    const actions = {
      ArrowLeft: () => axis.point((axis.pointer ?? axis.high) - by), ArrowRight: () => axis.point((axis.pointer ?? axis.low) + by),
      "+": () => axis.zoom(0.5, axis.pointer ?? undefined), "=": () => axis.zoom(0.5, axis.pointer ?? undefined),
      "-": () => axis.zoom(2, axis.pointer ?? undefined), 0: () => axis.reset(), Escape: () => axis.reset()};
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  down(event) {
    this.touches.set(event.pointerId, event.clientX);
    if (event.pointerType === "mouse" && event.button === 0) {
      this.from = event.clientX;
      this.plot.setPointerCapture(event.pointerId);
    }
    this.axis.point(this.value(event.clientX));
  }

  moved(event) {
    const before = [...this.touches.values()];
    if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, event.clientX);
    if (event.pointerType === "touch" && this.touches.size === 2) return this.pinch(before, [...this.touches.values()]);
    this.axis.point(this.value(event.clientX));
    if (this.from !== undefined && this.from !== null) {
      const [a, b] = [this.x(this.value(this.from)), this.x(this.axis.pointer)].sort((p, q) => p - q);
      this.over.append(svg("rect", {class: "selection", x: Math.max(LEFT, a), width: Math.max(0, b - Math.max(LEFT, a)), y: TOP, height: this.h - TOP - BOTTOM}));
    }
  }

  // What lay under two fingers stays under them.
  pinch(before, after) {
    const wide = Math.abs(before[0] - before[1]), now = Math.abs(after[0] - after[1]);
    if (wide < 12 || now < 12) return;
    const middle = this.value((before[0] + before[1]) / 2), shift = (before[0] + before[1] - after[0] - after[1]) / 2 / this.inner;
    this.axis.zoom(wide / now, middle);
    this.axis.move(shift);
  }

  up(event) {
    this.touches.delete(event.pointerId);
    if (this.from === undefined || this.from === null) return;
    const [a, b] = [this.from, event.clientX].sort((p, q) => p - q);
    this.from = null;
    if (event.type === "pointerup" && b - a > 6) this.axis.show(this.value(a), this.value(b));
  }
}
