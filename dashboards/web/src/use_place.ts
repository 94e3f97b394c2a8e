// The place as state: read from the address, and changed by links or by `go`.
import { useEffect, useState } from 'preact/hooks';
import { addressOf, placeOf, type Place } from './place';

/** `go` with `quietly` leaves no step for the back button: for sliders. */
export type Go = (change: Partial<Place>, how?: 'quietly') => void;

export function usePlace(): { place: Place; go: Go } {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const read = () => setPlace(placeOf(location.hash));
    window.addEventListener('hashchange', read);
    window.addEventListener('popstate', read);
    return () => {
      window.removeEventListener('hashchange', read);
      window.removeEventListener('popstate', read);
    };
  }, []);
  const go: Go = (change, how) => {
    const next = { ...placeOf(location.hash), ...change };
    if (how === 'quietly') history.replaceState(null, '', addressOf(next));
    else history.pushState(null, '', addressOf(next));
    setPlace(next);
  };
  return { place, go };
}
