// Answers of POST /sql as Arrow IPC streams (compressed with zstd) become columns and rows.
//
// Why Arrow and not the JSON that /sql also speaks: types are the server's and not guessed from text, an answer without
// rows still has its columns, columns carry their unit and comment, and a long answer is a fourteenth of the bytes. The
// price is 10 KB of compressed JavaScript. Figures are in docs/results.md.
// Invariant: times are milliseconds since the epoch; integers that a number cannot hold exactly are text; NULL is null;
// a column name that occurs twice gets _2, _3, … as in the server's JSON.
import { CompressionType, setCompressionCodec, tableFromIPC, Type } from '@uwdata/flechette';
import { decompress } from 'fzstd';

export type Row = Record<string, unknown>;

export type ColumnType = 'number' | 'boolean' | 'time' | 'text' | 'nested';

export interface Column {
  name: string;
  type: ColumnType;
  /** Unit of the table's column that this one is, or empty. */
  unit: string;
  /** What the table's column means, or empty. */
  comment: string;
}

export interface Table {
  columns: Column[];
  rows: Row[];
}

const zstd = {
  // A copy, since numbers of 8 bytes must begin at a multiple of 8.
  decode: (bytes: Uint8Array) => decompress(bytes).slice(),
  encode: () => {
    throw new Error('this page only reads Arrow');
  },
};
setCompressionCodec(CompressionType.ZSTD, zstd);

export function readArrow(bytes: Uint8Array): Table {
  const table = tableFromIPC(bytes, { useBigInt: true });
  const seen = new Map<string, number>();
  const columns = table.schema.fields.map((field): Column => {
    const times = (seen.get(field.name) ?? 0) + 1;
    seen.set(field.name, times);
    return {
      name: times === 1 ? field.name : `${field.name}_${times}`,
      type: typeOf(field.type.typeId),
      unit: field.metadata?.get('unit') ?? '',
      comment: field.metadata?.get('comment') ?? '',
    };
  });
  const values = columns.map((_, index) => exact(table.getChildAt(index).toArray()));
  const rows = Array.from({ length: table.numRows }, (_, row) => {
    const cells: Row = {};
    columns.forEach(({ name }, index) => (cells[name] = values[index]?.[row] ?? null));
    return cells;
  });
  return { columns, rows };
}

function typeOf(id: number): ColumnType {
  switch (id) {
    case Type.Int:
    case Type.Float:
    case Type.Decimal:
      return 'number';
    case Type.Bool:
      return 'boolean';
    case Type.Timestamp:
    case Type.Date:
      return 'time';
    case Type.List:
    case Type.LargeList:
    case Type.FixedSizeList:
    case Type.Struct:
    case Type.Map:
      return 'nested';
    default:
      return 'text';
  }
}

/** A column's values; those of small whole numbers and of truth are exact already. */
function exact(values: ArrayLike<unknown>): ArrayLike<unknown> {
  const isSmall = ArrayBuffer.isView(values) && !(values instanceof BigInt64Array || values instanceof BigUint64Array);
  if (isSmall && !(values instanceof Float64Array || values instanceof Float32Array)) return values;
  return Array.from(values, plain);
}

function plain(value: unknown): unknown {
  if (value === undefined) return null;
  if (typeof value === 'bigint') {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : String(value);
  }
  if (typeof value === 'number') return Number.isFinite(value) ? value : null;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return Array.from(value as ArrayLike<unknown>, plain);
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, plain(inner)]));
}
