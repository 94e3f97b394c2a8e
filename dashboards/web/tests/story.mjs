// The story of an operator (SPEC E4, C5): the hit rate fell, why? Needs a server with little memory for KV, a short
// `dataflow.funnel_window` and a shadow policy `even`, as tests/live/run.sh starts it.
//
//   EVENKEEL_URL=http://127.0.0.1:8080 node tests/story.mjs [folder for screenshots]
//
// A few prompts are asked again and again until the caches hold them; then so many that they drive each other out (an
// eviction storm). The operator sees the rate fall, and gets by clicks alone from it to the layer, the reason, a request
// that lost its tokens, and what more capacity would buy.
import { check, fits, inBrowser, inked, numberIn, openPage, quiet, shot, startLoad, until, view } from './page_kit.mjs';

const FEW = 4;
const MANY = 60;
const WORDS = 'sea wind harbour keel rope mast salt tide gull anchor deck sail storm chart star'.split(' ');

/** Prompt number `turn` of `different` ones, of about 130 tokens that differ from the first on. */
function prompt(turn, different) {
  const number = turn % different;
  const word = (place) =>
    WORDS[(number * 7 + place * ((number % 11) + 3) + place * place * (number % 5)) % WORDS.length];
  return `${different} ${number}: ${Array.from({ length: 90 }, (_, place) => word(place)).join(' ')}`;
}

async function operatorAsksWhy(opened, storm) {
  const { page, text } = opened;
  const started = Date.now();
  let clicks = 0;
  const click = async (target) => {
    clicks++;
    await target.click();
  };
  await click(page.getByTestId('why'));
  const words = await until(
    'the headline to say that it fell and why',
    () => text('headline'),
    (said) => /before: −\d/.test(said) && /Most of the fall: Held: evicted/.test(said),
  );
  console.log(`ok the page says: ${words}`);
  await inked(page, 'chart-funnel-history');
  await shot(page, 'story-1-fell.png');
  await click(page.getByTestId('cause'));
  check(page.url().includes('loss=present.evicted'), `the reason is not in the address ${page.url()}`);
  await until(
    'what the reason means',
    () => text('loss-means'),
    (said) => /has dropped it/.test(said),
  );
  const seconds = (Date.now() - started) / 1000;
  console.log(`ok from the question to the layer and the reason: ${clicks} clicks, ${seconds.toFixed(1)} s`);

  const step = await text('step-present.evicted');
  check(/^evicted−/.test(step), `the waterfall says of evictions: ${step}`);
  await inked(page, 'chart-evictions');
  await until(
    'who lost them',
    () => page.locator('[data-testid="losers-table"] tbody tr').count(),
    (count) => count >= 1,
  );
  await until(
    'the requests that lost most',
    () => page.getByTestId('worst-request').count(),
    (count) => count >= 1,
  );
  await shot(page, 'story-2-reason.png');
  // Paused, so that the row does not move away under the pointer.
  await page.getByTestId('pause').click();
  const request = await text('worst-request');
  await click(page.getByTestId('worst-request').first());
  await until(
    'the life of the request that lost most',
    () => page.getByTestId('life-request').allTextContents(),
    ([shown]) => shown === request,
  );
  const lost = await until(
    'its own funnel to name evictions',
    () => page.getByTestId('step-present.evicted').allTextContents(),
    (all) => all.length === 1,
  );
  check(numberIn(lost[0]) > 16, `the request lost ${lost[0]}`);
  await shot(page, 'story-3-request.png');
  await page.getByTestId('pause').click();

  await page.goBack();
  await click(page.getByTestId('to-capacity'));
  await until(
    'the capacity now',
    () => page.getByRole('button', { name: '4 times' }).count(),
    (count) => count === 1,
  );
  await click(page.getByRole('button', { name: '4 times' }));
  const answer = await until(
    'what four times the capacity would buy',
    () => text('capacity-answer'),
    (said) => numberIn(/\+[\d.]+ points/.exec(said)?.[0] ?? '0') > 10,
  );
  console.log(`ok what to do: ${answer}`);
  await shot(page, 'story-4-capacity.png');
  check(storm.problem === null, `the storm stopped: ${storm.problem?.message}`);
}

/** A policy that takes instances by turns decides beside the acting one, and some of it differs. */
async function shadowDiffers(opened) {
  const { page } = opened;
  await view(opened, 'shadow');
  const policy = page.locator('[data-testid="shadow-table"] tbody tr');
  await until(
    'decisions of the shadow that differ',
    () => policy.allTextContents(),
    ([row]) => /^even\d/.test(row ?? '') && !/^even[\d,]+0 \(0\.0 %\)/.test(row),
  );
  await policy.getByRole('link', { name: 'even' }).click();
  check(page.url().includes('scope=even'), `the policy is not in the address ${page.url()}`);
  const changes = () => page.locator('[data-testid="shadow-changes"] tbody tr').allTextContents();
  const [first] = await until('what differs', changes, (rows) => rows.length >= 1);
  check(/w\d → w\d/.test(first), `the decision that differs does not name both instances: ${first}`);
  await shot(page, 'story-5-shadow.png');
  console.log(`ok a shadow policy's decisions stand beside those made: ${await policy.first().textContent()}`);
}

/** The same finding on a phone and in the light scheme. */
async function narrowLight(browser) {
  const viewport = { width: 390, height: 844 };
  const opened = await openPage(browser, { viewport, colorScheme: 'light', deviceScaleFactor: 2, hasTouch: true });
  const { page, context, text } = opened;
  await page.getByTestId('why').click();
  await until(
    'the headline',
    () => text('headline'),
    (said) => /Held: evicted/.test(said),
  );
  await page.getByTestId('cause').click();
  await until(
    'the requests that lost most',
    () => page.getByTestId('worst-request').count(),
    (count) => count >= 1,
  );
  await fits(opened, 390);
  await quiet(opened, 'at 390 px');
  await shot(page, 'story-narrow-light.png');
  await context.close();
}

async function rateFallsAndIsExplained(opened) {
  const calm = startLoad(2, { maxTokens: 4, contentOf: (turn) => prompt(turn, FEW) });
  await until(
    'a hit rate of 80 % on few prompts',
    () => opened.text('hit-rate'),
    (rate) => numberIn(rate) >= 80,
  );
  // Long enough to be told apart from what comes.
  await until(
    'requests answered from the caches',
    () => calm.load.answered,
    (answered) => answered >= 60,
  );
  await calm.stop();
  const before = numberIn(await opened.text('hit-rate'));
  const storm = startLoad(3, { maxTokens: 4, contentOf: (turn) => prompt(turn, MANY) });
  await until(
    'the hit rate to fall',
    () => opened.text('hit-rate'),
    (rate) => numberIn(rate) < before - 15,
  );
  console.log(`ok the hit rate falls: from ${before} % to ${await opened.text('hit-rate')} of the last minute`);
  await operatorAsksWhy(opened, storm.load);
  await shadowDiffers(opened);
  await quiet(opened, 'in the story');
}

await inBrowser(async (browser) => {
  const opened = await openPage(browser, { viewport: { width: 1280, height: 900 }, colorScheme: 'dark' });
  try {
    await rateFallsAndIsExplained(opened);
    await narrowLight(browser);
  } catch (error) {
    await shot(opened.page, 'story-failure.png');
    throw error;
  }
});
