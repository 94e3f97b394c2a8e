// The page: heading, views, and what they share: the live stream, what is held still while paused, the place in the
// address, and which tables the server has.
import type { ComponentType } from 'preact';
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import { models, rememberKey } from './api';
import { Heading } from './components/heading';
import { Filters, Navigation } from './components/navigation';
import type { Fleet } from './fleet';
import type { Point } from './history';
import { liveness, NOTHING_YET, reduce } from './live';
import type { ViewId } from './place';
import { runSql, textOf, tokenHistory } from './sql';
import { connect, type Connection } from './stream';
import { usePlace } from './use_place';
import { CacheView } from './views/cache';
import { CapacityView } from './views/capacity';
import { FleetView } from './views/fleet';
import { LoadView } from './views/load';
import { RequestsView } from './views/requests';
import { ScalingView } from './views/scaling';
import { ShadowView } from './views/shadow';
import { SqlView } from './views/sql';
import type { ViewProps } from './views/view';

const VIEW: Record<ViewId, ComponentType<ViewProps>> = {
  fleet: FleetView,
  cache: CacheView,
  load: LoadView,
  capacity: CapacityView,
  scaling: ScalingView,
  requests: RequestsView,
  shadow: ShadowView,
  sql: SqlView,
};

/** How often ages on the page are brought up to date. */
const TICK_MS = 500;

const TABLES = `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'`;

/** What the page shows: the newest, or what was newest when it was paused. */
interface Shown {
  fleet: Fleet | null;
  history: readonly Point[];
}

export function App() {
  const [live, tell] = useReducer(reduce, NOTHING_YET);
  const [now, setNow] = useState(() => Date.now());
  const [held, setHeld] = useState<Shown | null>(null);
  const [served, setServed] = useState<string[]>([]);
  const [tables, setTables] = useState<ReadonlySet<string> | null>(null);
  const { place, go } = usePlace();
  const connection = useRef<Connection | null>(null);
  const main = useRef<HTMLElement>(null);

  useEffect(() => {
    const opened = connect(tell);
    connection.current = opened;
    const online = () => opened.retryNow();
    window.addEventListener('online', online);
    const timer = setInterval(() => setNow(Date.now()), TICK_MS);
    return () => {
      opened.close();
      window.removeEventListener('online', online);
      clearInterval(timer);
    };
  }, []);

  // Once the stream is open (again), ask for what the page could not see itself. All are extras: the page lives without
  // them.
  useEffect(() => {
    if (live.phase !== 'open') return;
    const asking = new AbortController();
    const { signal } = asking;
    models(signal).then(setServed, () => {});
    runSql(TABLES, signal).then(
      ({ rows }) => setTables(new Set(rows.flatMap((row) => textOf(row, 'table_name') ?? []))),
      () => {},
    );
    tokenHistory(signal).then(
      (points) => tell({ type: 'backfilled', points }),
      () => {},
    );
    return () => asking.abort();
  }, [live.phase]);

  // Another view begins at its top.
  useEffect(() => window.scrollTo(0, 0), [place.view, place.request]);

  const shown: Shown = held ?? live;
  const state = liveness(live, now);
  const View = VIEW[place.view];
  const beat = shown.fleet?.asOfMs ?? null;
  return (
    <>
      <button type="button" class="skip" onClick={() => main.current?.focus()}>
        Skip to the view
      </button>
      <Heading
        live={live}
        liveness={state}
        now={now}
        models={served}
        paused={held !== null}
        onPause={() => setHeld(held === null ? { fleet: live.fleet, history: live.history } : null)}
        onKey={(key) => {
          rememberKey(key);
          connection.current?.retryNow();
        }}
      >
        <Navigation place={place} />
      </Heading>
      <main ref={main} tabIndex={-1} class={state.state === 'live' && held === null ? '' : 'not-live'}>
        <Filters place={place} go={go} beat={beat} />
        <View key={place.view} {...{ place, go, beat, tables }} fleet={shown.fleet} history={shown.history} />
      </main>
    </>
  );
}
