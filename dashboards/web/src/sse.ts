// Reads the text of an event stream (text/event-stream) piece by piece. Pure but for its own buffer.
//
// `fetch` and this instead of EventSource: only so can the page send a key, show the server's own error text and read
// its clock.
// Invariant: an event is given out once, when the empty line that ends it has arrived; lines end with LF or CRLF.
// Bound: an event of more than EVENT_CHARS_MAX characters throws.

export const EVENT_CHARS_MAX = 4 * 1024 * 1024;

export interface StreamEvent {
  name: string;
  data: string;
}

export class EventStreamReader {
  private rest = '';
  private name = '';
  private data: string[] = [];
  private chars = 0;

  /** Takes the next piece of text and returns the events that it completes. */
  push(text: string): StreamEvent[] {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop() ?? '';
    const events = lines.flatMap((line) => this.line(line.endsWith('\r') ? line.slice(0, -1) : line));
    if (this.chars + this.rest.length > EVENT_CHARS_MAX) {
      throw new Error(`an event of more than ${EVENT_CHARS_MAX} characters arrived`);
    }
    return events;
  }

  private line(line: string): StreamEvent[] {
    if (line === '') return this.complete();
    this.chars += line.length;
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') this.name = value;
    if (field === 'data') this.data.push(value);
    return [];
  }

  private complete(): StreamEvent[] {
    const event = { name: this.name === '' ? 'message' : this.name, data: this.data.join('\n') };
    const empty = this.data.length === 0;
    this.name = '';
    this.data = [];
    this.chars = 0;
    return empty ? [] : [event];
  }
}
