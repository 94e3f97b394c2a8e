// What the page's test stands on: settings, the browser, patience, chat requests in the background, and screenshots.
import { existsSync } from 'node:fs';
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

/** Streaming chat requests, one after the other on each of `lanes`, until stopped. Counts what came back. */
export function startLoad(lanes) {
  const stop = new AbortController();
  const load = { answered: 0, chunks: 0, problem: null };
  const lane = async (number) => {
    for (let turn = 0; !stop.signal.aborted; turn++) {
      const messages = [
        { role: 'user', content: `Tell story number ${turn} of narrator ${number}, in a few sentences.` },
      ];
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', ...(key === '' ? {} : { Authorization: `Bearer ${key}` }) },
        body: JSON.stringify({ model, messages, max_tokens: 64, stream: true, temperature: 0.7, seed: turn }),
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
  const running = Promise.all(Array.from({ length: lanes }, (_, number) => lane(number))).catch((error) => {
    if (!stop.signal.aborted) load.problem = error;
  });
  return {
    load,
    stop: async () => {
      stop.abort();
      await running;
    },
  };
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
  page.on('pageerror', (error) => complaints.push(`uncaught: ${error.message}`));
  const elsewhere = [];
  page.on('request', (request) => {
    if (!request.url().startsWith(url) && !/^(blob|data):/.test(request.url())) elsewhere.push(request.url());
  });
  await page.goto(`${url}/`);
  const text = async (id) => (await page.getByTestId(id).first().textContent())?.trim() ?? '';
  return { context, page, text, complaints, expected, elsewhere };
}

export async function shot(page, name) {
  await page.evaluate(() => window.scrollTo(0, 0));
  await page.screenshot({ path: join(folder, name), fullPage: true });
}

export const numberIn = (text) => Number(/[\d.]+/.exec(text.replaceAll(',', ''))?.[0] ?? Number.NaN);

/** Starts the browser. */
export function launch() {
  return chromium.launch({ executablePath: browserPath, args: flags });
}
