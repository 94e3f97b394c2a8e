// A titled part of a view, and what stands in it while there is nothing to show.
import type { ComponentChildren } from 'preact';
import type { Answer } from '../use_rows';

interface PanelProps {
  id: string;
  title: string;
  unit?: string;
  /** Beside the title. */
  note?: ComponentChildren;
  children: ComponentChildren;
}

export function Panel({ id, title, unit = '', note, children }: PanelProps) {
  return (
    <section class="panel" data-testid={`panel-${id}`} aria-labelledby={`${id}-title`}>
      <div class="panel-head">
        <h2 id={`${id}-title`}>
          {title} {unit !== '' && <span class="unit">{unit}</span>}
        </h2>
        {note !== undefined && <div class="legend">{note}</div>}
      </div>
      {children}
    </section>
  );
}

/** Loading, failed or empty in words; the children once there are rows. An old answer stays beside a newer problem. */
export function Told({
  answer,
  empty,
  children,
}: {
  answer: Answer;
  empty: string;
  children: () => ComponentChildren;
}) {
  const { result, problem } = answer;
  return (
    <>
      {problem !== null && (
        <p class="sql-error" role="alert" data-testid="problem-in-view">
          {problem}
        </p>
      )}
      {result === null && problem === null && <p class="empty">asking …</p>}
      {result !== null && result.rows.length === 0 && (
        <p class="empty" data-testid="nothing-in-view">
          {empty}
        </p>
      )}
      {result !== null && result.rows.length > 0 && children()}
    </>
  );
}

/** A table that may be wider than its place. */
export function Scroll({ label, tall, children }: { label: string; tall?: 'tall'; children: ComponentChildren }) {
  return (
    <div class={tall === undefined ? 'scroll' : 'scroll tall'} role="region" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}

/** Heads of columns: `name`, or `name|number` where the cells are numbers. */
export function Heads({ names }: { names: readonly string[] }) {
  return (
    <thead>
      <tr>
        {names.map((name) => {
          const [text, kind] = name.split('|');
          return (
            <th key={name} scope="col" class={kind}>
              {text}
            </th>
          );
        })}
      </tr>
    </thead>
  );
}
