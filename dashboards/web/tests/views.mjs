// The page's views on a live server with load on it: each opens by a click without an error, says so where there is
// nothing to show, is led to by its address, and keeps what it had when a question fails.
import { check, fits, hasTable, inked, numberIn, openPage, shot, until, view } from './page_kit.mjs';

/** What tells that a view has its answers; a table or chart that this server must fill, or words for an empty one. */
const FILLED = {
  cache: '[data-testid="waterfall"]',
  load: '[data-testid="cache-map"]',
  capacity: '[data-testid="capacity-answer"]',
  scaling: '[data-testid="timeline"]',
  requests: '[data-testid="requests-table"] tbody tr',
  shadow: '[data-testid="panel-shadow"] :is(table, [data-testid="no-shadow"], [data-testid="nothing-in-view"])',
  sql: '[data-testid="sql-input"]',
};

export async function everyViewOpens(opened, width) {
  const { page } = opened;
  for (const [id, selector] of Object.entries(FILLED)) {
    await view(opened, id);
    await until(
      `the contents of ${id}`,
      () => page.locator(selector).count(),
      (count) => count >= 1,
    );
    const problems = await page.getByTestId('problem-in-view').allTextContents();
    check(problems.length === 0, `${id} says ${problems}`);
    await fits(opened, width);
    await shot(page, `${id}-${width}.png`);
  }
  console.log(`ok every view opens by a click and has its answers at ${width} px`);
  await capacityAnswers(opened);
  await loadIsMapped(opened);
}

async function capacityAnswers(opened) {
  const { page, text } = opened;
  await view(opened, 'capacity');
  await until(
    'the answer of the slider',
    () => text('capacity-answer'),
    (answer) => /blocks.*hit rate/.test(answer),
  );
  const slider = page.getByTestId('capacity');
  await slider.focus();
  await page.keyboard.press('Home');
  const blocks = async () => numberIn(await slider.getAttribute('aria-valuetext'));
  const least = await blocks();
  check(least === 1, `the least capacity is ${least} blocks`);
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('End');
  const most = await blocks();
  check(most > 100, `the largest capacity is ${most} blocks`);
  check(page.url().includes('blocks='), `the capacity is not in the address ${page.url()}`);
  await inked(page, 'chart-mrc');
  console.log(`ok the capacity slider works by keyboard: hit rate ${await text('capacity-hit-rate')} at the end`);
}

async function loadIsMapped(opened) {
  const { page } = opened;
  await view(opened, 'load');
  const cells = () => page.locator('[data-testid="load-map"] td.heat').allTextContents();
  await until('load on the map', cells, (all) => all.some((text) => numberIn(text) > 0));
  const empty = await page.getByTestId('no-buckets').allTextContents();
  if (empty.length > 0) check(/No bucket plan/.test(empty[0]), `without buckets the view says ${empty[0]}`);
  console.log('ok the load is mapped');
}

export async function requestIsFound(opened) {
  const { page, text } = opened;
  await view(opened, 'requests');
  await page.getByTestId('order').selectOption('slowest');
  await until(
    'a verdict on the slowest',
    () => page.getByTestId('verdict').allTextContents(),
    (all) => all.length >= 1 && /slowest: req-/.test(all[0]),
  );
  await until(
    'a request in the list',
    () => page.getByTestId('request-link').count(),
    (count) => count >= 1,
  );
  const request = await text('request-link');
  await page.getByTestId('find').fill(request);
  await page.keyboard.press('Enter');
  await until(
    'the life of the request',
    () => page.getByTestId('life-request').allTextContents(),
    ([shown]) => shown === request,
  );
  const chosen = () => page.getByTestId('chosen').allTextContents();
  await until('the candidate that was chosen', chosen, (rows) => rows.length >= 1);
  const phases = await page.getByTestId('phases').textContent();
  check(/first token.*generating/.test(phases), `the phases are ${phases}`);
  await until(
    'the funnel of the request',
    () => page.getByTestId('waterfall').count(),
    (count) => count === 1,
  );
  if (await hasTable('shadow_decisions')) {
    await until(
      'the course of the request in words',
      () => page.locator('[data-testid="in-words"] li').allTextContents(),
      (lines) => lines.some((line) => /classed/.test(line)) && lines.some((line) => /routed to/.test(line)),
    );
  }
  await shot(page, 'life.png');

  const decision = /dec-[0-9a-f]+/.exec(await page.getByTestId('decision').first().textContent())[0];
  await page.getByTestId('find').fill(decision);
  await page.keyboard.press('Enter');
  await until(
    'the same request by its decision',
    () => page.getByTestId('life-request').allTextContents(),
    ([shown]) => shown === request,
  );
  await page.getByTestId('find').fill("req-'none");
  await page.keyboard.press('Enter');
  await until(
    'words for a request that is not there',
    () => page.getByTestId('nothing-in-view').allTextContents(),
    (all) => all.some((words) => words.includes("No request req-'none")),
  );
  await page.getByTestId('all-requests').click();
  console.log('ok a request is found by its id and by its decision, with phases, candidates and funnel');
}

/** Time range and filters act, and are in the address. */
export async function rangeNarrows(opened) {
  const { page } = opened;
  await view(opened, 'cache');
  await page.getByTestId('range').selectOption('300');
  check(page.url().includes('range=5m'), `the range is not in the address ${page.url()}`);
  await inked(page, 'chart-funnel-history');
  const box = await page.locator('[data-testid="chart-funnel-history"] .u-over').boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.9, box.y + 60, { steps: 8 });
  await page.mouse.up();
  await until(
    'the stretch in the address',
    () => page.url(),
    (address) => /range=\d+s&until=\d{4}/.test(decodeURIComponent(address)),
  );
  await page.getByTestId('to-now').click();
  check(!page.url().includes('until='), `back at now the address is ${page.url()}`);
  await page.getByTestId('filter-tier').selectOption('High');
  check(page.url().includes('tier=High'), `the filter is not in the address ${page.url()}`);
  await view(opened, 'requests');
  check(page.url().includes('tier=High'), 'the filter is lost in another view');
  await page.getByTestId('filter-tier').selectOption('');
  console.log('ok time range by choice and by dragging, and filters, are in the address');
}

export async function addressesLead(opened) {
  const { page } = opened;
  const address = page.url().replace(/#.*/, '');
  await page.goto(`${address}#cache?range=1h&tenant=nobody`);
  await until(
    'words for an empty view',
    () => page.getByTestId('nothing-in-view').allTextContents(),
    (all) => all.some((words) => /No request was closed/.test(words)),
  );
  check((await page.getByTestId('range').inputValue()) === '3600', 'the range of the address is not chosen');
  await page.reload();
  check((await page.getByTestId('filter-tenant').inputValue()) === 'nobody', 'a reload loses the filter');
  await view(opened, 'fleet');
  await page.goBack();
  check(page.url().includes('tenant=nobody'), 'the back button does not lead back');
  await page.goto(`${address}#nowhere?range=never`);
  await until(
    'the first view for a wrong address',
    () => page.locator('nav [aria-current="page"]').textContent(),
    (title) => title === 'Fleet',
  );
  console.log('ok addresses, reload and the back button lead to the same picture');
}

/** Text is never taken for HTML, in tables, in the address and in the server's words, and inline scripts do not run. */
export async function textIsText(browser) {
  const opened = await openPage(browser, { viewport: { width: 1280, height: 900 } });
  const { page, context, expected } = opened;
  expected.refusedSql = true;
  const hostile = '<img src=x onerror="window.taken=1"><b>bold</b>';
  await page.getByTestId('view-sql').click();
  await page.getByTestId('sql-input').fill(`SELECT '${hostile}' AS "<i>name</i>"`);
  await page.getByTestId('sql-run').click();
  await until(
    'the text in a cell',
    () => page.locator('[data-testid="sql-result"] td').allTextContents(),
    ([cell]) => cell === hostile,
  );
  await page.getByTestId('sql-input').fill(`SELECT "${hostile.replaceAll('"', '""')}"`);
  await page.getByTestId('sql-run').click();
  await until(
    'the text in a message',
    () => page.getByTestId('sql-error').allTextContents(),
    (all) => all.some((message) => message.includes('onerror')),
  );
  await page.goto(`${page.url().replace(/#.*/, '')}#requests?request=${encodeURIComponent(hostile)}`);
  await until(
    'the text of an address',
    () => page.getByTestId('nothing-in-view').allTextContents(),
    (all) => all.some((words) => words.includes(hostile)),
  );
  check((await page.locator('main img, main b:text-is("bold")').count()) === 0, 'text became an element');
  const taken = await page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'window.taken = 1';
    document.head.append(script);
    return window.taken;
  });
  check(taken === undefined, 'an inline script ran');
  await context.close();
  console.log('ok text stays text, and inline scripts do not run');
}

/** The server fails to answer: the view says why, keeps what it had, and recovers by itself. */
export async function failuresShow(browser) {
  const opened = await openPage(browser, { viewport: { width: 1280, height: 900 } });
  const { page, context, text } = opened;
  let answers = 'hang';
  await context.route('**/sql', async (route) => {
    if (answers === 'busy') {
      return route.fulfill({ status: 429, json: { error: { message: 'full', code: 'busy' } } });
    }
    while (answers === 'hang') await new Promise((resolve) => setTimeout(resolve, 100));
    return route.continue();
  });
  await view(opened, 'cache');
  await until(
    'words while it is asked',
    () => page.locator('main').textContent(),
    (shown) => shown.includes('asking'),
  );
  answers = 'yes';
  await until(
    'the waterfall',
    () => page.getByTestId('waterfall').count(),
    (count) => count === 1,
  );
  answers = 'busy';
  await until(
    'why it failed',
    () => page.getByTestId('problem-in-view').allTextContents(),
    (all) => all.some((words) => words.includes('busy')),
  );
  check((await page.getByTestId('waterfall').count()) === 1, 'a failed question takes away the last answer');
  await shot(page, 'failed.png');
  answers = 'yes';
  await until(
    'the problem to go',
    () => page.getByTestId('problem-in-view').count(),
    (count) => count === 0,
  );
  check((await text('state')).startsWith('Live'), 'the stream was disturbed');

  // A range that is past never changes, and is asked for again only until it is answered.
  answers = 'busy';
  const past = new Date().toISOString();
  await page.goto(`${page.url().replace(/#.*/, '')}#cache?until=${past}`);
  await until(
    'why the past is not answered',
    () => page.getByTestId('problem-in-view').count(),
    (count) => count === 1,
  );
  answers = 'yes';
  await until(
    'the waterfall of the past',
    () => page.getByTestId('waterfall').count(),
    (count) => count === 1,
  );
  await context.close();
  console.log('ok a view says that it asks and why it failed, keeps its answer, and recovers');
}
