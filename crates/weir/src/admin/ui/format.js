// Numbers and times for people.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

/** 12,345 */
export const count = (value) => (value === undefined || value === null ? '–' : whole.format(value));

/** 12,345 below a hundred thousand, then 123 k and 1.2 M. */
export function short(value) {
  if (value === undefined || value === null || Number.isNaN(value)) {
    return '–';
  }
  const size = Math.abs(value);
  if (size >= 1e6) {
    return `${fixed(value / 1e6)} M`;
  }
  if (size >= 1e5) {
    return `${fixed(value / 1e3)} k`;
  }
  return size >= 10 || Number.isInteger(value) ? whole.format(value) : fixed(value);
}

/** Bytes in units of 1,000. */
export function bytes(value) {
  if (value === undefined || value === null || Number.isNaN(value)) {
    return '–';
  }
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let [size, unit] = [value, 0];
  while (Math.abs(size) >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(size) : fixed(size)} ${units[unit]}`;
}

/** A short time: from µs to s. */
export function time(seconds) {
  if (seconds === undefined || seconds === null || Number.isNaN(seconds)) {
    return '–';
  }
  if (seconds < 1e-3) {
    return `${fixed(seconds * 1e6)} µs`;
  }
  return seconds < 1 ? `${fixed(seconds * 1e3)} ms` : `${fixed(seconds)} s`;
}

/** A long time: its two largest units. */
export function span(millis) {
  if (millis === undefined || millis === null) {
    return '–';
  }
  const seconds = Math.floor(millis / 1000);
  const [days, hours, minutes] = [
    Math.floor(seconds / 86400),
    Math.floor(seconds / 3600) % 24,
    Math.floor(seconds / 60) % 60,
  ];
  if (days > 0) {
    return hours > 0 ? `${days} d ${hours} h` : `${days} d`;
  }
  if (hours > 0) {
    return minutes > 0 ? `${hours} h ${minutes} min` : `${hours} h`;
  }
  if (minutes > 0) {
    return seconds % 60 > 0 && minutes < 10 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  }
  return `${seconds} s`;
}

/** The same, which changes once a minute. */
export const rough = (millis) => (millis > 60_000 ? span(millis - (millis % 60_000)) : span(millis));

/** A share as a percentage. */
export const share = (value) =>
  value === undefined || value === null || Number.isNaN(value) ? '–' : `${fixed(value * 100)} %`;

/** The time of day; with the date if it is not today. */
export function moment(millis) {
  if (millis === undefined || millis === null) {
    return '–';
  }
  const at = new Date(millis);
  const clock = at.toLocaleTimeString('en-GB');
  return at.toDateString() === new Date().toDateString() ? clock : `${at.toLocaleDateString('en-CA')} ${clock}`;
}

/** “1 connection”, “2 connections”. */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

function fixed(value) {
  const size = Math.abs(value);
  const digits = size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}
