// The page as a person sees it: a headless Chromium opens it on a live server while this script sends streaming chat
// requests to the same server, goes through all views, and looks whether the numbers move (SPEC E4).
//
//   EVENKEEL_URL=http://127.0.0.1:8080 node tests/page.mjs [folder for screenshots]
//
// CHROMIUM names the browser (default: /usr/bin/chromium or /usr/bin/chromium-browser), EVENKEEL_MODEL the model
// (default smollm2-135m), EVENKEEL_KEY a key if the server wants one. Prints `ok NAME` per check; the first failed one
// ends the run with exit code 1, its reason on stderr, and `failure.png` beside the other screenshots.
import {
  answered,
  check,
  fits,
  key,
  inBrowser,
  inked,
  numberIn,
  openPage,
  quiet,
  shot,
  startLoad,
  until,
  url,
  view,
} from './page_kit.mjs';
import { addressesLead, everyViewOpens, failuresShow, rangeNarrows, requestIsFound, textIsText } from './views.mjs';

async function numbersMove({ page, text }) {
  await until(
    'the state Live',
    () => text('state'),
    (state) => state === 'Live',
  );
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
    await until(
      `a number in ${id}`,
      () => text(id),
      (value) => numberIn(value) >= 0,
    );
  }
  await until(
    'running requests',
    () => text('running'),
    (value) => numberIn(value) >= 1,
  );
  check((await text('throttle-step')) !== '–', 'the throttle step is unknown');
  console.log('ok latency, hit rate, running and throttle step are known');

  const rows = page.locator('[data-testid="instances-table"] tbody tr');
  check((await rows.count()) >= 1, 'the instances table has no row');
  const shares = () => page.locator('[data-testid$="-share"]').allTextContents();
  await until('an instance with a share of the context tokens', shares, (all) =>
    all.some((share) => numberIn(share) > 0),
  );
  const busy = () => page.locator('[data-testid$="-tokens-per-second"][data-testid^="instance-"]').allTextContents();
  await until('an instance that makes tokens', busy, (all) => all.some((value) => numberIn(value) > 0));
  console.log('ok instances have shares and rates');

  const newest = () => page.getByTestId('decision-row').first().textContent();
  await until(
    'a decision',
    () => page.getByTestId('decision-row').count(),
    (count) => count >= 1,
  );
  const before = await newest();
  await until('a newer decision', newest, (now) => now !== before);
  console.log('ok decisions move');

  await until(
    'a bar of load per atom',
    () => page.getByTestId('atom-bar').count(),
    (count) => count >= 1,
  );
  await inked(page, 'chart-tokens');
  await until(
    'the table of tiers',
    () => page.getByTestId('tiers-table').count(),
    (count) => count === 1,
  );
  console.log('ok charts are drawn');
}

async function pauseHolds({ page, text }) {
  await page.getByTestId('pause').click();
  const held = await page.locator('main').getByTestId('decisions-table').textContent();
  const age = await text('as-of-age');
  await until(
    'the age to go on',
    () => text('as-of-age'),
    (now) => now !== age,
  );
  await new Promise((resolve) => setTimeout(resolve, 2500));
  check(
    (await page.getByTestId('decisions-table').textContent()) === held,
    'the decisions moved while the page was paused',
  );
  check((await text('state')).includes('paused'), `the state does not say paused but ${await text('state')}`);
  await page.getByTestId('pause').click();
  await until(
    'the decisions to move again',
    () => page.getByTestId('decisions-table').textContent(),
    (now) => now !== held,
  );
  console.log('ok pause holds the page still and says so');
}

async function sqlRuns(opened) {
  const { page, text } = opened;
  await view(opened, 'sql');
  const cells = () => page.locator('[data-testid="sql-result"] td').allTextContents();
  await page.getByTestId('sql-input').fill('SELECT 42 AS answer');
  await answered(opened, () => page.getByTestId('sql-run').click());
  check((await cells()).join() === '42', `SELECT 42 gave ${await cells()}`);
  check(/^1 row in /.test(await text('sql-summary')), `the summary of one row is ${await text('sql-summary')}`);
  const alignment = (element) => getComputedStyle(element).textAlign;
  const aligned = await page.locator('[data-testid="sql-result"] td').evaluate(alignment);
  check(aligned === 'right', `a number is aligned ${aligned}`);
  console.log('ok a statement runs by click');

  await page.getByTestId('sql-input').fill('SELECT 43 AS answer');
  await answered(opened, () => page.getByTestId('sql-input').press('Control+Enter'));
  check((await cells()).join() === '43', `SELECT 43 gave ${await cells()}`);
  console.log('ok a statement runs by Ctrl+Enter');

  for (const example of await page.locator('[data-testid^="sql-example-"]').all()) {
    await answered(opened, () => example.click());
    const problem = await page.getByTestId('sql-error').allTextContents();
    check(problem.length === 0, `the example "${await example.textContent()}" failed: ${problem}`);
  }
  console.log('ok every example statement runs');
  await savedRun(opened);
}

/** Choosing a saved query fills the editor and runs nothing; Run then answers. */
async function savedRun(opened) {
  const { page } = opened;
  const picker = page.getByTestId('sql-saved');
  const names = await until(
    'the list of saved queries',
    () => picker.locator('optgroup option').evaluateAll((options) => options.map((option) => option.value)),
    (found) => found.length >= 30,
  );
  for (const name of names) {
    const before = await page.getByTestId('sql-summary').getAttribute('data-answers');
    await picker.selectOption(name);
    const after = await page.getByTestId('sql-summary').getAttribute('data-answers');
    check(before === after, `choosing ${name} ran something`);
    check((await page.getByTestId('sql-input').inputValue()).startsWith('-- '), `${name} has no question above it`);
    await answered(opened, () => page.getByTestId('sql-run').click());
    const problem = await page.getByTestId('sql-error').allTextContents();
    check(problem.length === 0, `the saved query ${name} failed: ${problem}`);
  }
  console.log(`ok each of ${names.length} saved queries fills the editor and runs`);
}

async function sqlDraws(opened) {
  const { page } = opened;
  await page
    .getByTestId('sql-input')
    .fill(`SELECT date_trunc('second', "at") AS second, event, count(*) AS n FROM requests GROUP BY 1, 2 ORDER BY 1`);
  await answered(opened, () => page.getByTestId('sql-run').click());
  await page.getByTestId('sql-plot').click();
  await inked(page, 'chart-result');
  const legend = await page.getByTestId('chart-result').textContent();
  check(legend.includes('first_token') && legend.includes('arrived'), `the plot has no line per event: ${legend}`);
  await shot(page, 'sql-plot.png');
  await page.getByTestId('sql-table').click();
  console.log('ok an answer is drawn, a line per event');
}

/** Downloads by click and gives the file's name and bytes. */
async function downloaded(page, button) {
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByTestId(button).click()]);
  const pieces = [];
  for await (const piece of await download.createReadStream()) pieces.push(piece);
  return { name: download.suggestedFilename(), bytes: Buffer.concat(pieces) };
}

async function sqlDownloads(opened) {
  const { page } = opened;
  await answered(opened, () => page.getByTestId('sql-example-decisions').click());
  const csv = await downloaded(page, 'sql-csv');
  check(/^evenkeel-.*\.csv$/.test(csv.name), `the CSV is called ${csv.name}`);
  const [head, first] = csv.bytes.toString().split('\n');
  check(head.includes('request_id') && first.includes('req-'), `the CSV begins with ${head} and ${first}`);
  const arrow = await downloaded(page, 'sql-arrow');
  check(/^evenkeel-.*\.arrows$/.test(arrow.name), `the Arrow file is called ${arrow.name}`);
  check(arrow.bytes.readInt32LE(0) === -1, 'the Arrow file is no IPC stream');
  check(arrow.bytes.includes('request_id'), 'the Arrow file has no column request_id');
  console.log(`ok CSV and Arrow download: ${csv.bytes.length} and ${arrow.bytes.length} bytes`);
}

async function sqlRefuses(opened) {
  const { page, expected } = opened;
  expected.refusedSql = true;
  await page.getByTestId('sql-input').fill('SELECT * FROM no_such_table');
  await answered(opened, () => page.getByTestId('sql-run').click());
  const message = (await page.getByTestId('sql-error').allTextContents()).join('');
  check(message.includes('no_such_table'), `the error does not name the table: ${message}`);
  check((await page.getByTestId('sql-result').count()) === 0, 'the old result stands beside the error');
  console.log(`ok a wrong statement says what is wrong: ${message.split('\n')[0]}`);
}

async function keyboardWorks(opened) {
  const { page } = opened;
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press('Tab');
  const outline = await page.evaluate(() => {
    const style = getComputedStyle(document.activeElement);
    return `${document.activeElement.textContent.trim()} ${style.outlineStyle} ${style.outlineWidth}`;
  });
  check(/solid 2px/.test(outline), `the first stop of Tab has no focus ring: ${outline}`);
  const reach = async (what, selector) => {
    for (let stop = 0; stop < 60; stop++) {
      if (await page.evaluate((wanted) => document.activeElement?.matches(wanted), selector)) return;
      await page.keyboard.press('Tab');
    }
    check(false, `Tab does not reach ${what}`);
  };
  await reach('the view of SQL', '[data-testid="view-sql"]');
  await page.keyboard.press('Enter');
  await reach('the SQL box', '#sql-input');
  for (const id of ['capacity', 'cache', 'requests', 'fleet']) {
    await view(opened, id);
    const unnamed = await page
      .locator('button, input, textarea, select, a')
      .evaluateAll(
        (all) =>
          all.filter(
            (one) =>
              one.textContent.trim() === '' && (one.labels?.length ?? 0) === 0 && !one.getAttribute('aria-label'),
          ).length,
      );
    check(unnamed === 0, `${unnamed} controls have no name in ${id}`);
  }
  console.log('ok reachable by keyboard, with focus rings and names');
}

async function lossShows(browser) {
  const context = await browser.newContext();
  await context.route('**/v1/live', (route) => route.abort());
  const page = await context.newPage();
  await page.goto(`${url}/`);
  await until(
    'the state Reconnecting',
    () => page.getByTestId('state').textContent(),
    (state) => state === 'Reconnecting',
  );
  const problem = await page.getByTestId('problem').textContent();
  check(/cannot be reached/.test(problem), `the page does not say why: ${problem}`);
  const shown = await page.getByTestId('tokens-per-second').textContent();
  check(shown === '–', `unknown tokens/s is shown as ${shown}`);
  await shot(page, 'lost.png');
  await context.unroute('**/v1/live');
  await until(
    'the page to come back by itself',
    () => page.getByTestId('state').textContent(),
    (state) => state === 'Live',
  );
  await context.close();
  console.log('ok a lost stream shows, unknown is a dash, and the page comes back');
}

async function keyIsAsked(browser) {
  const context = await browser.newContext();
  const refusal = { error: { message: 'a key is needed', type: 'authentication_error', code: 'invalid_api_key' } };
  await context.route('**/v1/live', (route) =>
    route.request().headers().authorization === `Bearer ${key || 'any'}`
      ? route.continue()
      : route.fulfill({ status: 401, json: refusal }),
  );
  const page = await context.newPage();
  await page.goto(`${url}/`);
  await page.getByLabel('API key').fill(key || 'any');
  await page.getByRole('button', { name: 'Use key' }).click();
  await until(
    'the stream to open with the key',
    () => page.getByTestId('state').textContent(),
    (state) => state === 'Live',
  );
  check((await page.getByLabel('API key').count()) === 0, 'the page still asks for a key');
  await context.close();
  console.log('ok a page that lacks a key asks for it and uses it');
}

async function wide(browser, load) {
  const opened = await openPage(browser, { viewport: { width: 1280, height: 900 }, colorScheme: 'dark' });
  const { page, context } = opened;
  try {
    await numbersMove(opened);
    await fits(opened, 1280);
    await shot(page, 'wide-dark.png');
    await page.emulateMedia({ colorScheme: 'light' });
    await new Promise((resolve) => setTimeout(resolve, 1200));
    await shot(page, 'wide-light.png');
    await pauseHolds(opened);
    await keyboardWorks(opened);
    await everyViewOpens(opened, 1280);
    await requestIsFound(opened);
    await rangeNarrows(opened);
    await addressesLead(opened);
    await quiet(opened, 'at 1280 px');
    await sqlRuns(opened);
    await sqlDraws(opened);
    await sqlDownloads(opened);
    await sqlRefuses(opened);
    await shot(page, 'sql-error.png');
    await answered(opened, () => page.getByTestId('sql-example-decisions').click());
    await shot(page, 'sql-result.png');
    await quiet(opened, 'after SQL');
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
    await until(
      'the state Live',
      () => text('state'),
      (state) => state === 'Live',
    );
    await until(
      'a decision',
      () => page.getByTestId('decision-row').count(),
      (count) => count >= 1,
    );
    await fits(opened, 390);
    await shot(page, 'narrow-dark.png');
    await everyViewOpens(opened, 390);
    await view(opened, 'sql');
    await answered(opened, () => page.getByTestId('sql-example-decisions').click());
    await fits(opened, 390);
    await quiet(opened, 'at 390 px');
    await view(opened, 'fleet');
    await page.emulateMedia({ colorScheme: 'light' });
    await new Promise((resolve) => setTimeout(resolve, 1200));
    await shot(page, 'narrow-light.png');
  } catch (error) {
    await shot(page, 'failure.png');
    throw error;
  }
  await context.close();
}

await inBrowser(async (browser) => {
  const { load } = startLoad(2);
  await wide(browser, load);
  await narrow(browser);
  await lossShows(browser);
  await failuresShow(browser);
  await textIsText(browser);
  await keyIsAsked(browser);
  check(load.problem === null, `the load stopped: ${load.problem?.message}`);
  check(load.answered > 0, 'no chat request was answered in full');
  console.log(`ok ${load.answered} chat requests answered, ${load.chunks} pieces read`);
});
