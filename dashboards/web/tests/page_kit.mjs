// What the page's test stands on: settings, the browser, patience, chat requests in the background, and screenshots.
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

export const url = (
  process.env.EVENKEEL_URL ?? fail('EVENKEEL_URL is not set; it names the server, for example http://127.0.0.1:8080')
).replace(/\/$/, '');
const model = process.env.EVENKEEL_MODEL ?? 'smollm2-135m';
export const key = process.env.EVENKEEL_KEY ?? '';
export const folder = process.argv[2] ?? 'screenshots';
const browserPath =
  process.env.CHROMIUM ??
  ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find((path) => existsSync(path)) ??
  fail('no Chromium found; install it or name it in CHROMIUM');
const flags = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const PATIENCE_MS = 60_000;

export function fail(message) {
  console.error(`FAILED: ${message}`);
  process.exit(1);
}

export function check(condition, message) {
  if (!condition) throw new Error(message);
}

/** Reads `read()` until `good` likes the value, and returns it. */
export async function until(what, read, good) {
  const end = Date.now() + PATIENCE_MS;
  let seen;
  while (Date.now() < end) {
    seen = await read();
    if (good(seen)) return seen;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  throw new Error(`waited ${PATIENCE_MS / 1000} s for ${what}; last seen: ${JSON.stringify(seen)}`);
}

/** Loads that were started and not stopped yet. */
const running = new Set();

const STORY = (turn) => `Tell story number ${turn}, in a few sentences.`;

/** Streaming chat requests, one after the other on each of `lanes`, until stopped. Counts what came back. */
export function startLoad(lanes, { maxTokens = 64, contentOf = STORY } = {}) {
  const stop = new AbortController();
  const load = { answered: 0, chunks: 0, problem: null };
  let next = 0;
  const lane = async () => {
    while (!stop.signal.aborted) {
      const turn = next++;
      const messages = [{ role: 'user', content: contentOf(turn) }];
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', ...(key === '' ? {} : { Authorization: `Bearer ${key}` }) },
        body: JSON.stringify({ model, messages, max_tokens: maxTokens, stream: true, temperature: 0.7, seed: turn }),
        signal: stop.signal,
      });
      if (response.status === 429 || response.status === 503) {
        await response.text();
        await new Promise((resolve) => setTimeout(resolve, 500));
        continue;
      }
      if (!response.ok) throw new Error(`chat answered ${response.status}: ${await response.text()}`);
      for await (const _ of response.body) load.chunks++;
      load.answered++;
    }
  };
  const ended = Promise.all(Array.from({ length: lanes }, lane)).catch((error) => {
    if (!stop.signal.aborted) load.problem = error;
  });
  const started = {
    load,
    stop: async () => {
      running.delete(started);
      stop.abort();
      await ended;
    },
  };
  running.add(started);
  return started;
}

/** Whether the server has a table; older ones lack some that views show. */
export async function hasTable(name) {
  const response = await fetch(`${url}/sql`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...(key === '' ? {} : { Authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ query: `SELECT 1 AS one FROM information_schema.tables WHERE table_name = '${name}'` }),
  });
  return (await response.json()).length > 0;
}

/** Opens the page and keeps its console's complaints, except the browser's own line about a refused statement. */
export async function openPage(browser, options) {
  const context = await browser.newContext({ acceptDownloads: true, ...options });
  if (key !== '') await context.addInitScript((value) => sessionStorage.setItem('evenkeel.key', value), key);
  const page = await context.newPage();
  const complaints = [];
  const expected = { refusedSql: false };
  page.on('console', (message) => {
    if (message.type() !== 'error' && message.type() !== 'warning') return;
    if (expected.refusedSql && message.location().url === `${url}/sql`) return;
    complaints.push(`${message.type()}: ${message.text()} (${message.location().url})`);
  });
  page.on('response', (response) => {
    if (response.status() < 500 || (expected.refusedSql && response.url() === `${url}/sql`)) return;
    const told = response.text().catch((error) => `no text: ${error.message}`);
    told.then((text) => complaints.push(`${response.status()} from ${response.url()}: ${text.slice(0, 400)}`));
  });
  page.on('pageerror', (error) => complaints.push(`uncaught: ${error.message}`));
  const elsewhere = [];
  page.on('request', (request) => {
    if (!request.url().startsWith(url) && !/^(blob|data):/.test(request.url())) elsewhere.push(request.url());
  });
  await page.goto(`${url}/`);
  const text = async (id) => (await page.getByTestId(id).first().textContent())?.trim() ?? '';
  return { context, page, text, complaints, expected, elsewhere };
}

/** Does `act` and waits until the statement that it started has been answered, well or badly. */
export async function answered({ page }, act) {
  const answers = async () => Number(await page.getByTestId('sql-summary').getAttribute('data-answers'));
  const before = await answers();
  await act();
  await until('the answer to a statement', answers, (now) => now > before);
}

export async function fits({ page }, width) {
  const { scroll, client } = await page.evaluate(() => ({
    scroll: document.documentElement.scrollWidth,
    client: document.documentElement.clientWidth,
  }));
  check(scroll <= client, `at ${width} px the page is ${scroll} px wide`);
  console.log(`ok nothing hangs over at ${width} px`);
}

export async function quiet({ complaints, elsewhere }, what) {
  check(complaints.length === 0, `the console complains ${what}: ${complaints.join('; ')}`);
  check(elsewhere.length === 0, `the page asks other servers ${what}: ${elsewhere.join(', ')}`);
  console.log(`ok no complaints in the console and no other servers ${what}`);
}

/** Opens a view by a click on its name. */
export async function view({ page }, id) {
  await page.getByTestId(`view-${id}`).click();
  await until(
    `the view ${id}`,
    () => page.locator('nav [aria-current="page"]').getAttribute('data-testid'),
    (open) => open === `view-${id}`,
  );
}

/**
 * Waits until a chart has something drawn on it, in the colour of a line and not of the grid.
 * It reads a copy: Chromium would complain of a canvas that is read more than once, in the page's own console.
 */
export async function inked(page, id) {
  const pixels = () =>
    page.locator(`[data-testid="${id}"] canvas`).evaluate((canvas) => {
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      let number = 0;
      for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        number += alpha > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60 ? 1 : 0;
      }
      return number;
    });
  return until(`lines on ${id}`, pixels, (number) => number > 60);
}

export async function shot(page, name) {
  await page.evaluate(() => window.scrollTo(0, 0));
  await page.screenshot({ path: join(folder, name), fullPage: true });
}

export const numberIn = (text) => Number(/[\d.]+/.exec(text.replaceAll(',', ''))?.[0] ?? Number.NaN);

/** Runs a script in a browser. The first failed check ends it with exit code 1; loads end with it. */
export async function inBrowser(script) {
  await mkdir(folder, { recursive: true });
  const browser = await chromium.launch({ executablePath: browserPath, args: flags });
  try {
    await script(browser);
  } catch (error) {
    console.error(`FAILED: ${error.message}`);
    process.exitCode = 1;
  } finally {
    await browser.close();
    await Promise.all([...running].map((started) => started.stop()));
  }
}
