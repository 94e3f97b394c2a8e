// Rows of any statement as a table: numbers to the right, units in the heads, NULL as a dash, long values cut with the
// whole value in the title.
//
// Bound: ROWS_SHOWN rows are drawn.
import { UNKNOWN } from '../format';
import { cellText, type Column, type Row } from '../sql';
import { Scroll } from './panel';

export const ROWS_SHOWN = 500;

interface Props {
  label: string;
  columns: readonly Column[];
  rows: readonly Row[];
  testid?: string;
}

export function RowsTable({ label, columns, rows, testid }: Props) {
  return (
    <Scroll label={label} tall="tall">
      <table class="rows" data-testid={testid}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={column.type} title={column.comment || column.type}>
                {column.name} {column.unit !== '' && <span class="unit">{column.unit}</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, ROWS_SHOWN).map((row, index) => (
            <tr key={index}>
              {columns.map((column) => (
                <Cell key={column.name} column={column} row={row} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Cell({ column, row }: { column: Column; row: Row }) {
  const text = cellText(row[column.name], column.type);
  if (text === null) {
    return (
      <td class={`${column.type} muted`} title="NULL">
        {UNKNOWN}
      </td>
    );
  }
  return (
    <td class={column.type} title={column.type === 'nested' || text.length > 60 ? text : undefined}>
      {text}
    </td>
  );
}
