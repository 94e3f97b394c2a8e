// Scenario: Arrow streams with every type that the server writes, without rows, and with a name that occurs twice.
// Guarantees: types are the schema's, units and comments come along, times are milliseconds, no digit of an integer is
// lost, and NULL is null.
import * as arrow from '@uwdata/flechette';
import { expect, test } from 'vitest';
import { readArrow } from '../../src/arrow';

const BIG = 18_446_744_073_709_551_615n;

/** A stream of one batch. */
function stream(columns: [string, arrow.DataType, unknown[]][], metadata: Record<string, [string, string][]> = {}) {
  const table = arrow.tableFromColumns(
    columns.map(
      ([name, type, values]) => [name, arrow.columnFromArray(values, type)] as [string, arrow.Column<unknown>],
    ),
  );
  for (const field of table.schema.fields) {
    if (metadata[field.name] !== undefined) field.metadata = new Map(metadata[field.name]);
  }
  const bytes = arrow.tableToIPC(table, { format: 'stream' });
  if (bytes === null) throw new Error('no bytes');
  return bytes;
}

test('each type is told, and each value is plain', () => {
  const at = 1_772_600_767_123.456;
  const candidates = arrow.list(arrow.struct({ instance: arrow.uint32(), hash: arrow.uint64() }));
  const { columns, rows } = readArrow(
    stream([
      ['at', arrow.timestamp(arrow.TimeUnit.MICROSECOND, 'UTC'), [at, null]],
      ['n', arrow.int64(), [7n, null]],
      ['hash', arrow.uint64(), [BIG, 1n]],
      ['rate', arrow.float64(), [0.5, Number.NaN]],
      ['ok', arrow.bool(), [true, false]],
      ['reason', arrow.utf8(), ['x', null]],
      ['candidates', candidates, [[{ instance: 3, hash: BIG }], []]],
    ]),
  );
  expect(columns.map(({ type }) => type)).toEqual(['time', 'number', 'number', 'number', 'boolean', 'text', 'nested']);
  expect(rows[0]).toEqual({
    at,
    n: 7,
    hash: String(BIG),
    rate: 0.5,
    ok: true,
    reason: 'x',
    candidates: [{ instance: 3, hash: String(BIG) }],
  });
  expect(rows[1]).toEqual({ at: null, n: null, hash: 1, rate: null, ok: false, reason: null, candidates: [] });
});

test('units and comments come along, and an answer without rows has its columns', () => {
  const { columns, rows } = readArrow(
    stream([['gap_us', arrow.int64(), []]], { gap_us: [['unit', 'us'], ['comment', 'since arrival']] }), // prettier-ignore
  );
  expect(columns).toEqual([{ name: 'gap_us', type: 'number', unit: 'us', comment: 'since arrival' }]);
  expect(rows).toEqual([]);
});

test('bytes that are no Arrow are refused', () => {
  expect(() => readArrow(new Uint8Array([1, 2, 3, 4, 5, 6, 7, 8, 9]))).toThrow();
});
