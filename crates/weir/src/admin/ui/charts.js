// Lines over the last minutes, drawn by uPlot. Numbers stand beside them as text.

import { h, say } from './dom.js';

/** A card with a chart. `lines` are `{ name, of, colour, isFaint }`; `of` takes a sample and gives a number or `null`. */
export class Chart {
  #lines;
  #values;
  #unit;
  #options;
  #place = h('div', { class: 'plot', 'aria-hidden': 'true' });
  #plot;
  #drawn;

  constructor(title, lines, unit, options = {}) {
    this.#lines = lines;
    this.#unit = unit;
    this.#options = options;
    this.#values = lines.map(() => h('span', { class: 'value' }, '–'));
    const legend = lines.map(({ name, colour, isDashed }, index) =>
      h(
        'li',
        {},
        h('span', { class: `dot c-${colour}${isDashed ? ' dashed' : ''}`, 'aria-hidden': 'true' }),
        h('span', { class: 'key' }, name),
        ' ',
        this.#values[index],
      ),
    );
    this.element = h(
      'article',
      { class: 'card chart' },
      h('h3', {}, title, options.note === undefined ? undefined : h('span', { class: 'aside' }, options.note)),
      h('ul', { class: 'legend' }, legend),
      this.#place,
    );
  }

  /** Draws the samples; `span` seconds end at the newest one. `upgraded` is when the process took over, if it did. */
  draw(samples, span, upgraded) {
    this.#drawn = samples;
    this.#upgraded = upgraded;
    const data = [samples.map(({ at }) => at), ...this.#lines.map(({ of }) => samples.map((one) => of(one) ?? null))];
    this.#span = span;
    if (this.#plot === undefined) {
      this.#begin(data);
    } else {
      this.#plot.setData(data);
    }
    this.#tell(samples.length - 1);
  }

  #span = 60;
  #upgraded;

  /** Takes the colours and the width anew. */
  renew() {
    this.#plot?.destroy();
    this.#plot = undefined;
    if (this.#drawn !== undefined) {
      this.draw(this.#drawn, this.#span, this.#upgraded);
    }
  }

  resize() {
    const width = this.#place.clientWidth;
    if (this.#plot !== undefined && width > 0 && width !== this.#plot.width) {
      this.#plot.setSize({ width, height: HEIGHT });
    }
  }

  #tell(index) {
    const one = this.#drawn?.[index];
    for (const [line, { of }] of this.#lines.entries()) {
      const value = one === undefined ? null : of(one);
      say(this.#values[line], value === null || value === undefined ? '–' : this.#unit(value));
    }
  }

  /** A line at the upgrade, where that can be seen. */
  #mark(plot, colour) {
    const { left, top, width, height } = plot.bbox;
    const x = Math.round(plot.valToPos(this.#upgraded, 'x', true));
    if (!(x >= left && x <= left + width)) {
      return;
    }
    const { ctx } = plot;
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.setLineDash([2, 3]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.restore();
  }

  #begin(data) {
    const width = this.#place.clientWidth;
    if (width === 0) {
      return;
    }
    const colour = (name) => resolved(this.#place, name);
    const font = `11px ${getComputedStyle(this.#place).fontFamily}`;
    const axis = { stroke: colour('muted'), font, ticks: { show: false }, grid: { stroke: colour('grid'), width: 1 } };
    const { isLog, most } = this.#options;
    this.#plot = new uPlot(
      {
        width,
        height: HEIGHT,
        padding: [8, 4, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, sync: { key: 'weir' }, drag: { x: false, y: false } },
        scales: {
          x: { time: true, range: (_, min, max) => [max - this.#span, max] },
          y: isLog
            ? { distr: 3, range: (_, min, max) => logRange(min, max) }
            : { range: (_, min, max) => [0, most ?? ceiling(max)] },
        },
        axes: [
          { ...axis, size: 24, grid: { show: false }, space: 70, values: (_, ticks) => ticks.map(clock) },
          {
            ...axis,
            size: 58,
            gap: 6,
            space: 34,
            ...(isLog ? { splits: (_, __, min, max) => decades(min, max) } : {}),
            values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : this.#unit(tick))),
          },
        ],
        series: [
          {},
          ...this.#lines.map((line) => ({
            stroke: colour(`c-${line.colour}`),
            width: 1.75,
            dash: line.isDashed ? [4, 4] : undefined,
            fill: line.isFilled ? colour(`f-${line.colour}`) : undefined,
            points: { show: false },
            spanGaps: false,
          })),
        ],
        hooks: {
          draw: [(plot) => this.#mark(plot, axis.stroke)],
          setCursor: [(plot) => this.#tell(plot.cursor.idx ?? this.#drawn.length - 1)],
        },
      },
      data,
      this.#place,
    );
  }
}

/** A colour of the style sheet, as a canvas understands it. */
function resolved(place, name) {
  const probe = place.appendChild(h('span', {}));
  probe.style.color = `var(--${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** The time of day, without seconds where they are zero. */
function clock(seconds) {
  const text = new Date(seconds * 1000).toLocaleTimeString('en-GB');
  return text.endsWith(':00') ? text.slice(0, 5) : text;
}

/** A round number above `max`, so that the scale does not change with each sample. */
function ceiling(max) {
  if (!(max > 0)) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(max));
  return (
    [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= max * 1.05) ?? 10 * power * 1.5
  );
}

/** Whole decades, from 10 µs to 10 ms at least. */
function logRange(min, max) {
  const low = Math.min(1e-5, 10 ** Math.floor(Math.log10(min > 0 ? min : 1e-5)));
  const high = Math.max(1e-2, 10 ** Math.ceil(Math.log10(max > 0 ? max : 1e-2)));
  return [low, high];
}

function decades(min, max) {
  const first = Math.round(Math.log10(min));
  return Array.from({ length: Math.round(Math.log10(max)) - first + 1 }, (_, step) => 10 ** (first + step));
}

const HEIGHT = 150;
