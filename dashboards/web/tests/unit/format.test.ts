// Scenario: values around every change of unit or of digits.
// Guarantees: three digits or so, the right unit, no "1000 ms", and unknown is a dash and never 0.
import { describe, expect, test } from 'vitest';
import * as format from '../../src/format';

test('unknown is a dash everywhere', () => {
  for (const text of [format.count, format.rate, format.percent, format.age, format.durationText]) {
    expect(text(null)).toBe('–');
    expect(text(0)).not.toBe('–');
  }
  expect(format.duration(null).value).toBe('–');
  expect(format.spoken(null)).toBe('–');
});

test.each([
  [0, '0'],
  [7, '7'],
  [9999, '9,999'],
  [10_000, '10.0k'],
  [12_345, '12.3k'],
  [999_499, '999k'],
  [999_600, '1.00M'],
  [1_234_567, '1.23M'],
  [5.4e9, '5.40G'],
])('count %d is %s', (value, text) => expect(format.count(value)).toBe(text));

test.each([
  [0, '0'],
  [0.001, '<0.01'],
  [0.42, '0.42'],
  [7.84, '7.8'],
  [99.94, '99.9'],
  [99.96, '100'],
  [123.4, '123'],
  [45_600, '45.6k'],
])('rate %d is %s', (value, text) => expect(format.rate(value)).toBe(text));

test.each([
  [0, '0.0 ms'],
  [0.25, '250 µs'],
  [0.9996, '1.0 ms'],
  [11.84, '11.8 ms'],
  [99.96, '100 ms'],
  [999.4, '999 ms'],
  [999.6, '1.00 s'],
  [1400, '1.40 s'],
  [120_000, '120 s'],
])('duration %d ms is %s', (ms, text) => expect(format.durationText(ms)).toBe(text));

test('marks on an axis carry no idle decimals', () => {
  expect([0, 20, 2.5, 1500].map(format.durationMark)).toEqual(['0', '20 ms', '2.5 ms', '1.5 s']);
  expect([0, 0.5, 150, 2000, 1.5e6].map(format.countMark)).toEqual(['0', '0.5', '150', '2k', '1.5M']);
});

test('percent has one decimal and its sign', () => {
  expect(format.percent(0.8734)).toBe('87.3 %');
  expect(format.percent(1)).toBe('100.0 %');
});

test.each([
  [-5, '0.0 s'],
  [420, '0.4 s'],
  [9960, '10 s'],
  [119_000, '119 s'],
  [120_000, '2 min'],
  [7_200_000, '2 h'],
])('age %d ms is %s', (ms, text) => expect(format.age(ms)).toBe(text));

describe('time of day', () => {
  test('is local, to the millisecond', () => {
    const at = new Date(2026, 2, 4, 5, 6, 7, 89);
    expect(format.timeOfDay(at.toISOString())).toBe('05:06:07.089');
  });
  test('leaves text that is no time as it is', () => expect(format.timeOfDay('soon')).toBe('soon'));
});
