// The page as a person sees it: a headless Chromium opens it on a live server while this script sends streaming chat requests to the
// same server, and looks whether the numbers move (issue M item 10, SPEC E4).
//
//   EVENKEEL_URL=http://127.0.0.1:8080 node tests/page.mjs [folder for screenshots]
//
// CHROMIUM names the browser (default: /usr/bin/chromium or /usr/bin/chromium-browser), EVENKEEL_MODEL the model (default
// smollm2-135m), EVENKEEL_KEY a key if the server wants one. Prints `ok NAME` per check; the first failed one ends the run with exit
// code 1, its reason on stderr, and `failure.png` beside the other screenshots.
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const url = (process.env.EVENKEEL_URL ?? fail('EVENKEEL_URL is not set; it names the server, for example http://127.0.0.1:8080')).replace(/\/$/, '');
const model = process.env.EVENKEEL_MODEL ?? 'smollm2-135m';
const key = process.env.EVENKEEL_KEY ?? '';
const folder = process.argv[2] ?? 'screenshots';
const browserPath =
  process.env.CHROMIUM ??
  ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find((path) => existsSync(path)) ??
  fail('no Chromium found; install it or name it in CHROMIUM');
const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const PATIENCE_MS = 60_000;

function fail(message) {
  console.error(`FAILED: ${message}`);
  process.exit(1);
}

function check(condition, message) {
  if (!condition) throw new Error(message);
}

/** Reads `read()` until `good` likes the value, and returns it. */
async function until(what, read, good) {
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
function startLoad(lanes) {
  const stop = new AbortController();
  const load = { answered: 0, chunks: 0, problem: null };
  const lane = async (number) => {
    for (let turn = 0; !stop.signal.aborted; turn++) {
      const messages = [{ role: 'user', content: `Tell story number ${turn} of narrator ${number}, in a few sentences.` }];
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

/** Opens the page and keeps what its console complains about, except the browser's own line about a refused statement. */
async function openPage(browser, options) {
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

async function shot(page, name) {
  await page.evaluate(() => window.scrollTo(0, 0));
  await page.screenshot({ path: join(folder, name), fullPage: true });
}

const numberIn = (text) => Number(/[\d.]+/.exec(text.replaceAll(',', ''))?.[0] ?? Number.NaN);

async function numbersMove({ page, text }) {
  await until('the state Live', () => text('state'), (state) => state === 'Live');
  check(numberIn(await text('as-of-age')) < 10, `the age shown with Live is ${await text('as-of-age')}`);
  console.log('ok state live with its age');

  const seen = new Set();
  await until(
    'three different rates of output tokens above 0',
    async () => {
      const value = await text('tokens-per-second');
      if (numberIn(value) > 0) seen.add(value);
      return [...seen];
    },
    (values) => values.length >= 3,
  );
  console.log(`ok tokens/s moves: ${[...seen].join(', ')}`);

  for (const id of ['ttft-p50', 'ttft-p95', 'itl-p50', 'itl-p95', 'hit-rate']) {
    await until(`a number in ${id}`, () => text(id), (value) => numberIn(value) >= 0);
  }
  await until('running requests', () => text('running'), (value) => numberIn(value) >= 1);
  check((await text('throttle-step')) !== '–', 'the throttle step is unknown');
  console.log('ok latency, hit rate, running and throttle step are known');

  const rows = page.locator('[data-testid="instances-table"] tbody tr');
  check((await rows.count()) >= 1, 'the instances table has no row');
  const shares = () => page.locator('[data-testid$="-share"]').allTextContents();
  await until('an instance with a share of the context tokens', shares, (all) => all.some((share) => numberIn(share) > 0));
  const busy = () => page.locator('[data-testid$="-tokens-per-second"][data-testid^="instance-"]').allTextContents();
  await until('an instance that makes tokens', busy, (all) => all.some((value) => numberIn(value) > 0));
  console.log('ok instances have shares and rates');

  const newest = () => page.getByTestId('decision-row').first().textContent();
  await until('a decision', () => page.getByTestId('decision-row').count(), (count) => count >= 1);
  const before = await newest();
  await until('a newer decision', newest, (now) => now !== before);
  console.log('ok decisions move');

  await until('a bar of load per atom', () => page.getByTestId('atom-bar').count(), (count) => count >= 1);
  const inked = await page.locator('[data-testid="chart-tokens"] canvas').evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, index) => index % 4 === 3 && value > 0).length;
  });
  check(inked > 500, `the chart of tokens has ${inked} drawn pixels`);
  console.log('ok charts are drawn');
}

async function pauseHolds({ page, text }) {
  await page.getByTestId('pause').click();
  const held = await page.locator('main').getByTestId('decisions-table').textContent();
  const age = await text('as-of-age');
  await until('the age to go on', () => text('as-of-age'), (now) => now !== age);
  await new Promise((resolve) => setTimeout(resolve, 2500));
  check((await page.getByTestId('decisions-table').textContent()) === held, 'the decisions moved while the page was paused');
  check((await text('state')).includes('paused'), `the state does not say paused but ${await text('state')}`);
  await page.getByTestId('pause').click();
  await until('the decisions to move again', () => page.getByTestId('decisions-table').textContent(), (now) => now !== held);
  console.log('ok pause holds the page still and says so');
}

async function sqlWorks({ page, text, expected }) {
  const finished = () => until('the statement to end', () => text('sql-summary'), (state) => / in |failed/.test(state));
  await page.getByTestId('sql-input').fill('SELECT 42 AS answer');
  await page.getByTestId('sql-run').click();
  await until('1 row', () => text('sql-summary'), (summary) => /^1 row in /.test(summary));
  const cell = page.locator('[data-testid="sql-result"] td');
  check((await cell.textContent()) === '42', `SELECT 42 gave ${await cell.textContent()}`);
  const aligned = await cell.evaluate((element) => getComputedStyle(element).textAlign);
  check(aligned === 'right', `a number is aligned ${aligned}`);
  console.log('ok a statement runs by click');

  await page.getByTestId('sql-input').fill('SELECT 43 AS answer');
  await page.getByTestId('sql-input').press('Control+Enter');
  await until('43', () => cell.first().textContent(), (value) => value === '43');
  console.log('ok a statement runs by Ctrl+Enter');

  for (const example of await page.locator('[data-testid^="sql-example-"]').all()) {
    await page.getByTestId('sql-input').fill('SELECT 44 AS answer');
    await page.getByTestId('sql-run').click();
    await until('44', () => cell.first().textContent(), (value) => value === '44');
    await example.click();
    await until('the example to replace the old result', async () => (await cell.count()) !== 1 || (await cell.textContent()) !== '44' || (await page.getByTestId('sql-error').count()) > 0, Boolean);
    await finished();
    const problem = await page.getByTestId('sql-error').allTextContents();
    check(problem.length === 0, `the example "${await example.textContent()}" failed: ${problem}`);
  }
  console.log('ok every example statement runs');

  const explained = page.getByTestId('decision-row').first().getByRole('button');
  const request = await explained.textContent();
  await explained.click();
  await until('the explanation', () => page.getByTestId('sql-result').textContent(), (table) => table.includes(request));
  check((await page.getByTestId('sql-input').inputValue()).includes(`'${request}'`), 'the box does not show the statement that ran');
  console.log('ok a decision explains itself');

  const [download] = await Promise.all([page.waitForEvent('download'), page.getByTestId('sql-csv').click()]);
  check(/^evenkeel-.*\.csv$/.test(download.suggestedFilename()), `the CSV is called ${download.suggestedFilename()}`);
  let csv = '';
  for await (const piece of await download.createReadStream()) csv += piece;
  check(csv.split('\n')[0].includes('request_id'), `the CSV begins with ${csv.split('\n')[0]}`);
  console.log('ok CSV downloads');

  expected.refusedSql = true;
  await page.getByTestId('sql-input').fill('SELECT * FROM no_such_table');
  await page.getByTestId('sql-run').click();
  const message = await until('an error', async () => (await page.getByTestId('sql-error').allTextContents()).join(''), Boolean);
  check(message.includes('no_such_table'), `the error does not name the table: ${message}`);
  check((await page.getByTestId('sql-result').count()) === 0, 'the old result stands beside the error');
  console.log(`ok a wrong statement says what is wrong: ${message.split('\n')[0]}`);
}

async function keyboardWorks({ page }) {
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press('Tab');
  const outline = await page.evaluate(() => {
    const style = getComputedStyle(document.activeElement);
    return `${document.activeElement.textContent.trim()} ${style.outlineStyle} ${style.outlineWidth}`;
  });
  check(/solid 2px/.test(outline), `the first stop of Tab has no focus ring: ${outline}`);
  for (let stop = 0; stop < 60; stop++) {
    if (await page.evaluate(() => document.activeElement?.id === 'sql-input')) break;
    await page.keyboard.press('Tab');
  }
  check(await page.evaluate(() => document.activeElement?.id === 'sql-input'), 'Tab does not reach the SQL box');
  const unnamed = await page.locator('button, input, textarea').evaluateAll((all) => all.filter((one) => one.textContent.trim() === '' && (one.labels?.length ?? 0) === 0 && !one.getAttribute('aria-label')).length);
  check(unnamed === 0, `${unnamed} controls have no name`);
  console.log('ok reachable by keyboard, with focus rings and names');
}

async function fits({ page }, width) {
  const { scroll, client } = await page.evaluate(() => ({
    scroll: document.documentElement.scrollWidth,
    client: document.documentElement.clientWidth,
  }));
  check(scroll <= client, `at ${width} px the page is ${scroll} px wide`);
  console.log(`ok nothing hangs over at ${width} px`);
}

async function quiet({ complaints, elsewhere }, what) {
  check(complaints.length === 0, `the console complains ${what}: ${complaints.join('; ')}`);
  check(elsewhere.length === 0, `the page asks other servers ${what}: ${elsewhere.join(', ')}`);
  console.log(`ok no complaints in the console and no other servers ${what}`);
}

async function lossShows(browser) {
  const context = await browser.newContext();
  await context.route('**/v1/live', (route) => route.abort());
  const page = await context.newPage();
  await page.goto(`${url}/`);
  await until('the state Reconnecting', () => page.getByTestId('state').textContent(), (state) => state === 'Reconnecting');
  const problem = await page.getByTestId('problem').textContent();
  check(/cannot be reached/.test(problem), `the page does not say why: ${problem}`);
  const shown = await page.getByTestId('tokens-per-second').textContent();
  check(shown === '–', `unknown tokens/s is shown as ${shown}`);
  await shot(page, 'lost.png');
  await context.unroute('**/v1/live');
  await until('the page to come back by itself', () => page.getByTestId('state').textContent(), (state) => state === 'Live');
  await context.close();
  console.log('ok a lost stream shows, unknown is a dash, and the page comes back');
}

async function wide(browser, load) {
  const opened = await openPage(browser, { viewport: { width: 1280, height: 900 }, colorScheme: 'dark' });
  const { page, context, expected } = opened;
  try {
    await numbersMove(opened);
    await fits(opened, 1280);
    await shot(page, 'wide-dark.png');
    await page.emulateMedia({ colorScheme: 'light' });
    await new Promise((resolve) => setTimeout(resolve, 1200));
    await shot(page, 'wide-light.png');
    await pauseHolds(opened);
    await keyboardWorks(opened);
    await quiet(opened, 'at 1280 px');
    await sqlWorks(opened);
    await shot(page, 'sql-error.png');
    await page.getByTestId('sql-example-decisions').click();
    await until('rows', () => opened.text('sql-summary'), (summary) => / rows? in /.test(summary));
    await shot(page, 'sql-result.png');
    await quiet(opened, 'after SQL');
    check(expected.refusedSql, 'the wrong statement was never sent');
    check(load.problem === null, `the load stopped: ${load.problem?.message}`);
  } catch (error) {
    await shot(page, 'failure.png');
    throw error;
  }
  await context.close();
}

async function narrow(browser) {
  const viewport = { width: 390, height: 844 };
  const opened = await openPage(browser, { viewport, colorScheme: 'dark', deviceScaleFactor: 2, hasTouch: true });
  const { page, context, text } = opened;
  try {
    await until('the state Live', () => text('state'), (state) => state === 'Live');
    await until('a decision', () => page.getByTestId('decision-row').count(), (count) => count >= 1);
    await fits(opened, 390);
    await page.getByTestId('sql-example-decisions').click();
    await until('rows', () => text('sql-summary'), (summary) => / rows? in /.test(summary));
    await fits(opened, 390);
    await quiet(opened, 'at 390 px');
    await shot(page, 'narrow-dark.png');
    await page.emulateMedia({ colorScheme: 'light' });
    await new Promise((resolve) => setTimeout(resolve, 1200));
    await shot(page, 'narrow-light.png');
  } catch (error) {
    await shot(page, 'failure.png');
    throw error;
  }
  await context.close();
}

await mkdir(folder, { recursive: true });
const { load, stop } = startLoad(2);
const browser = await chromium.launch({ executablePath: browserPath, args: flags });
try {
  await wide(browser, load);
  await narrow(browser);
  await lossShows(browser);
  check(load.problem === null, `the load stopped: ${load.problem?.message}`);
  check(load.answered > 0, 'no chat request was answered in full');
  console.log(`ok ${load.answered} chat requests answered, ${load.chunks} pieces read`);
} catch (error) {
  console.error(`FAILED: ${error.message}`);
  process.exitCode = 1;
} finally {
  await browser.close();
  await stop();
}
