// The page from top to bottom, and the three things it holds: the live stream, what is held still while paused, and the
// SQL statement that other parts may put into the box.
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import { models, rememberKey } from './api';
import { AtomChart } from './components/atom_chart';
import { Decisions } from './components/decisions';
import { Heading } from './components/heading';
import { Instances } from './components/instances';
import { SqlBox, type Asked } from './components/sql_box';
import { Tiles } from './components/tiles';
import { TimeCharts } from './components/time_charts';
import type { Fleet } from './fleet';
import type { Point } from './history';
import { liveness, NOTHING_YET, reduce } from './live';
import { explaining, tokenHistory } from './sql';
import { connect, type Connection } from './stream';

/** How often ages on the page are brought up to date. */
const TICK_MS = 500;

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
  const [asked, setAsked] = useState<Asked | null>(null);
  const connection = useRef<Connection | null>(null);

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

  // Once the stream is open (again), ask for what the page could not see itself. Both are extras: the page lives
  // without them.
  useEffect(() => {
    if (live.phase !== 'open') return;
    const asking = new AbortController();
    models(asking.signal).then(setServed, () => {});
    tokenHistory(asking.signal).then(
      (points) => tell({ type: 'backfilled', points }),
      () => {},
    );
    return () => asking.abort();
  }, [live.phase]);

  const shown: Shown = held ?? live;
  const state = liveness(live, now);
  const useKey = (key: string) => {
    rememberKey(key);
    connection.current?.retryNow();
  };
  return (
    <>
      <a class="skip" href="#sql-heading">
        Skip to SQL
      </a>
      <Heading
        live={live}
        liveness={state}
        now={now}
        models={served}
        paused={held !== null}
        onPause={() => setHeld(held === null ? { fleet: live.fleet, history: live.history } : null)}
        onKey={useKey}
      />
      <main class={state.state === 'live' && held === null ? '' : 'not-live'}>
        <Tiles fleet={shown.fleet} />
        <div class="charts">
          <TimeCharts history={shown.history} />
          <AtomChart atoms={shown.fleet?.atoms ?? null} />
        </div>
        <Instances instances={shown.fleet?.instances ?? null} />
        <Decisions
          decisions={shown.fleet?.decisions ?? null}
          instances={shown.fleet?.instances ?? []}
          onExplain={(request) => setAsked({ query: explaining(request) })}
        />
        <SqlBox asked={asked} />
      </main>
    </>
  );
}
