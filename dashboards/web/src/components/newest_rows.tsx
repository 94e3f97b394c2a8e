// The newest rows of a table whose columns this page does not know beforehand, as they are.
import type { Column, Row } from '../sql';
import { useRows } from '../use_rows';
import { SELDOM_MS } from '../views/view';
import { RowsTable } from './rows_table';
import { Told } from './panel';

const MOST = 100;

interface Props {
  table: string;
  beat: number | null;
  /** Further condition, and columns to leave out. */
  where?: string;
  pick?: (columns: readonly Column[]) => Column[];
}

export function NewestRows({ table, beat, where = 'true', pick = (columns) => [...columns] }: Props) {
  const answer = useRows(`SELECT * FROM ${table} WHERE ${where} ORDER BY 1 DESC LIMIT ${MOST}`, beat, SELDOM_MS);
  const rows: readonly Row[] = answer.result?.rows ?? [];
  return (
    <Told answer={answer} empty="no rows yet">
      {() => <RowsTable label={table} columns={pick(answer.result?.columns ?? [])} rows={rows} />}
    </Told>
  );
}
