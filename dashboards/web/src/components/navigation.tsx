// The row of views, and below it the time range and the filters of the views that have them. All of it is links and
// controls that change the address.
import { useEffect, useRef } from 'preact/hooks';
import { clock } from '../format';
import { addressOf, FILTERS, inView, RANGES, rangeName, VIEWS, type Filter, type Place, type ViewId } from '../place';
import { textOf } from '../sql';
import { useRows } from '../use_rows';
import type { Go } from '../use_place';

const MINUTE_MS = 60_000;

/** Views over a time range, and which filters each has. */
const FILTERED: Partial<Record<ViewId, readonly Filter[]>> = {
  cache: FILTERS,
  load: FILTERS,
  requests: FILTERS,
  scaling: ['model'],
  shadow: [],
};

export function Navigation({ place }: { place: Place }) {
  const row = useRef<HTMLElement>(null);
  // On a narrow page the row is wider than its place.
  useEffect(() => {
    row.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });
  }, [place.view]);
  return (
    <nav aria-label="Views" ref={row}>
      {VIEWS.map(({ id, title }) => (
        <a
          key={id}
          href={addressOf(inView(place, id))}
          data-testid={`view-${id}`}
          aria-current={place.view === id ? 'page' : undefined}
        >
          {title}
        </a>
      ))}
    </nav>
  );
}

export function Filters({ place, go, beat }: { place: Place; go: Go; beat: number | null }) {
  const filters = FILTERED[place.view];
  if (filters === undefined || place.request !== undefined) return null;
  return (
    <form class="filters" aria-label="Time range and filters" onSubmit={(event) => event.preventDefault()}>
      <label for="range">Last</label>
      <select
        id="range"
        data-testid="range"
        value={String(place.seconds)}
        onChange={(event) => go({ seconds: Number(event.currentTarget.value), split: undefined })}
      >
        {RANGES.every(({ seconds }) => seconds !== place.seconds) && (
          <option value={String(place.seconds)}>{rangeName(place.seconds)}</option>
        )}
        {RANGES.map(({ id, seconds }) => (
          <option key={id} value={String(seconds)}>
            {id}
          </option>
        ))}
      </select>
      {place.until !== null && (
        <>
          <span data-testid="until" title={new Date(place.until).toISOString()}>
            until {clock(place.until / 1000)}
          </span>
          <button type="button" data-testid="to-now" onClick={() => go({ until: null, split: undefined })}>
            now
          </button>
        </>
      )}
      {filters.length > 0 && <Groups filters={filters} place={place} go={go} beat={beat} />}
    </form>
  );
}

/** Names offered for each filter. */
const NAMES = `SELECT DISTINCT model, tier, tenant FROM decisions WHERE "at" > now() - INTERVAL '1 day' LIMIT 500`;

interface GroupsProps {
  filters: readonly Filter[];
  place: Place;
  go: Go;
  beat: number | null;
}

function Groups({ filters, place, go, beat }: GroupsProps) {
  const { result } = useRows(NAMES, beat, MINUTE_MS);
  return (
    <>
      {filters.map((filter) => {
        const told = (result?.rows ?? []).flatMap((row) => textOf(row, filter) ?? []);
        const names = [...new Set([...told, ...(place[filter] === undefined ? [] : [place[filter]])])].sort();
        return (
          <label key={filter}>
            {filter}{' '}
            <select
              data-testid={`filter-${filter}`}
              value={place[filter] ?? ''}
              onChange={(event) => go({ [filter]: event.currentTarget.value || undefined, split: undefined })}
            >
              <option value="">all</option>
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        );
      })}
    </>
  );
}
