// A development aid: serves dist/ and speaks just enough of the server's HTTP for the page to be worked on without one.
//
//   npm run dev:fake                  builds the page and serves it at http://127.0.0.1:8089 with a made-up, moving fleet
//   PORT=9000 node tests/fake-server.mjs
//
// Chat requests sent to it are counted and show on the page. The numbers are invented; nothing here judges the page's
// correctness but the page's own behaviour, for which tests/page.mjs is run against the real server.
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

const dist = fileURLToPath(new URL('../dist/', import.meta.url));
const port = Number(process.env.PORT ?? 8089);
const started = Date.now();
const model = 'smollm2-135m';
const decisions = [];
const tokenTimes = [];
let live = 0;
let requestNumber = 0;

const types = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};
const wave = (periodSeconds, phase = 0) =>
  0.5 + 0.5 * Math.sin((Date.now() / 1000 / periodSeconds + phase) * 2 * Math.PI);
const json = (response, status, body) => {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(body));
};
const refuse = (response, status, message, code) =>
  json(response, status, { error: { message, type: 'invalid_request_error', param: null, code } });

function fleet() {
  const now = Date.now();
  const recent = tokenTimes.filter((at) => at > now - 1000).length;
  const tokens = 140 * wave(47) + 60 + recent;
  const running = [3 + Math.round(5 * wave(31)), 1 + Math.round(4 * wave(23, 0.4)), 0];
  const context = [running[0] * 690, running[1] * 450, 0];
  const total = context[0] + context[1];
  const instances = ['w0', 'w1', 'w2'].map((name, index) => ({
    instance: index,
    name,
    model,
    state: index === 2 ? 'starting' : 'ready',
    running: running[index],
    waiting: index === 0 ? Math.round(2 * wave(17)) : 0,
    context_tokens: context[index],
    blocks_used: running[index] * 44,
    blocks_cached: index === 2 ? 0 : 180 + Math.round(120 * wave(61, index / 3)),
    blocks_total: 1024,
    tokens_per_second: index === 2 ? null : index === 0 ? tokens * 0.62 : tokens * 0.38,
    share: total === 0 ? null : context[index] / total,
    load_seconds: index === 2 ? null : 1.7 + index * 0.3,
  }));
  const atoms = Array.from({ length: 9 }, (_, atom) => ({
    atom,
    from_tokens: atom * 500,
    to_tokens: (atom + 1) * 500,
    tokens: Math.round(2600 * Math.exp(-atom / 2.2) * (0.6 + 0.4 * wave(29, atom / 9))),
    requests: Math.max(0, 6 - atom),
  }));
  const early = now - started < 3000;
  return {
    as_of: new Date(now).toISOString(),
    view_mode: 'exact',
    throttle_step: wave(90) > 0.8 ? 'shape_batch' : 'open',
    tokens_per_second: tokens,
    prompt_tokens_per_second: 420 * wave(37, 0.2),
    requests_per_second: 2.4 * wave(41),
    ttft_ms: early ? null : { p50: 90 + 40 * wave(27), p95: 310 + 500 * wave(53), p99: 1400 },
    itl_ms: early ? null : { p50: 11 + 3 * wave(19), p95: 24 + 8 * wave(33), p99: 61.2 },
    hit_rate: early ? null : 0.35 + 0.4 * wave(71),
    running: running[0] + running[1] + live,
    waiting: Math.round(2 * wave(17)),
    instances,
    atoms,
    decisions: decisions.slice(0, 20),
    faults: 0,
  };
}

function decide(tier) {
  const number = ++requestNumber;
  const rejected = number % 11 === 0;
  decisions.unshift({
    at: new Date().toISOString(),
    request: `req-${number.toString(16).padStart(6, '0')}`,
    tier,
    outcome: rejected ? 'reject' : number % 5 === 0 ? 'queue' : 'admit',
    instance: rejected ? null : number % 2,
    reason: rejected
      ? 'low tier refused: saturation 1.04 is above 1.00'
      : `lowest predicted time: 0.0${60 + (number % 30)} s of 2 candidates, 128 tokens cached`,
    predicted_hit_tokens: (number * 16) % 256,
    predicted_seconds: rejected ? null : 0.06 + (number % 30) / 1000,
  });
  decisions.length = Math.min(decisions.length, 200);
}

function answerSql(query, accept, response) {
  let rows;
  if (/\bFROM engine_steps\b/i.test(query) && /AS second/.test(query)) {
    rows = Array.from({ length: 290 }, (_, index) => ({
      second: new Date((Math.floor(Date.now() / 1000) - 300 + index) * 1000).toISOString(),
      decode_tokens: Math.round(
        60 + 140 * (0.5 + 0.5 * Math.sin(((Date.now() / 1000 - 300 + index) / 47) * 2 * Math.PI)),
      ),
      prefill_tokens: index % 7 === 0 ? 600 : 120,
    }));
  } else if (/\bFROM decisions\b/i.test(query)) {
    const one = /request_id = '([^']*)'/.exec(query);
    rows = decisions
      .filter((decision) => one === null || decision.request === one[1])
      .map(({ request, ...rest }) => ({
        ...rest,
        request_id: request,
        candidates: [{ instance: 0, total_seconds: 0.06 }],
      }));
  } else if (/\bFROM (requests|engine_steps|faults|information_schema\.columns)\b/i.test(query)) {
    rows = ['High', 'Medium', 'Low'].map((tier, index) => ({
      tier,
      requests: 120 * index,
      ttft_p50_ms: 91.25 + index,
    }));
  } else if (/^\s*select\s+(-?\d+)\s+as\s+(\w+)\s*$/i.test(query)) {
    const [, number, name] = /^\s*select\s+(-?\d+)\s+as\s+(\w+)\s*$/i.exec(query);
    rows = [{ [name]: Number(number) }];
  } else {
    refuse(response, 400, `cannot plan the statement: there is no such table in: ${query.slice(0, 80)}`, 'sql_plan');
    return;
  }
  if (accept.includes('text/csv')) {
    response.writeHead(200, { 'Content-Type': 'text/csv' });
    const names = Object.keys(rows[0] ?? {});
    response.end(
      [names.join(','), ...rows.map((row) => names.map((name) => JSON.stringify(row[name])).join(','))].join('\n'),
    );
    return;
  }
  json(response, 200, rows);
}

async function chat(response) {
  decide('High');
  live++;
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  for (let token = 0; token < 40 && !response.destroyed; token++) {
    tokenTimes.push(Date.now());
    response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: ` t${token}` } }] })}\n\n`);
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
  tokenTimes.splice(0, Math.max(0, tokenTimes.length - 5000));
  live--;
  response.end('data: [DONE]\n\n');
}

function streamFleet(request, response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  const send = () => response.write(`event: fleet\ndata: ${JSON.stringify(fleet())}\n\n`);
  send();
  const timer = setInterval(send, 1000);
  request.on('close', () => clearInterval(timer));
}

async function serveFile(path, response) {
  const file = join(dist, normalize(path === '/' ? '/index.html' : path));
  try {
    const content = await readFile(file);
    response.writeHead(200, { 'Content-Type': types[extname(file)] ?? 'application/octet-stream' });
    response.end(content);
  } catch {
    refuse(response, 404, `nothing is at ${path}`, 'not_found');
  }
}

async function bodyOf(request) {
  let text = '';
  for await (const piece of request) text += piece;
  return JSON.parse(text);
}

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, 'http://page');
  if (pathname === '/v1/live') return streamFleet(request, response);
  if (pathname === '/v1/models') return json(response, 200, { object: 'list', data: [{ id: model, object: 'model' }] });
  if (pathname === '/v1/chat/completions') return chat(response);
  if (pathname === '/sql') return answerSql((await bodyOf(request)).query, request.headers.accept ?? '', response);
  return serveFile(pathname, response);
});

for (let index = 0; index < 12; index++) decide(['High', 'Medium', 'Low'][index % 3]);
setInterval(() => decide(['Medium', 'Low'][requestNumber % 2]), 4000).unref();
server.listen(port, '127.0.0.1', () =>
  console.log(`the page with a made-up fleet: http://127.0.0.1:${server.address().port}/`),
);
