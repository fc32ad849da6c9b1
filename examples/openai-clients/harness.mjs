// What the scripts of this folder share. Each call prints a line. The first call whose result differs
// from the API of its client ends the run with exit code 1.
//
//   US, EU            the balancers' base URLs (http://127.0.0.1:8601)
//   ADMIN             the first balancer's admin API
//   KEY, SMALL, TINY  API keys; SMALL and TINY are limited to one request per minute
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';

export const { US, EU, ADMIN, KEY, SMALL, TINY } = process.env;
let passed = 0;

// call makes one call and prints its result.
export async function call(name, make) {
  try {
    console.log(`ok    ${name.padEnd(28)} ${await make()}`);
    passed++;
  } catch (error) {
    console.log(`FAIL  ${name.padEnd(28)} ${error.stack ?? error}`);
    console.log(`${passed} passed, 1 failed`);
    process.exit(1);
  }
}

// end prints the number of calls.
export function end() {
  console.log(`${passed} passed, 0 failed`);
}

// failed makes a call that must fail with an error of a kind and status, and returns the error.
export async function failed(make, kind, status) {
  const error = await make().then(() => assert.fail('the request succeeded'), (e) => e);
  assert.ok(error instanceof kind, `want ${kind.name}, got ${error.stack}`);
  assert.equal(error.status, status);
  assert.ok(error.requestID, 'the error has no request id');
  return error;
}

// collect reads a stream to its end.
export async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

// outstanding returns the number of outstanding requests of the first region's replicas.
export async function outstanding() {
  const snapshot = await (await fetch(ADMIN + '/v1/snapshot')).json();
  return snapshot.regions.flatMap((r) => r.replicas).reduce((sum, r) => sum + r.outstanding, 0);
}

export async function becomesZero(count, within = 5_000) {
  for (const end = Date.now() + within; Date.now() < end; await pause(50)) {
    if ((await count()) === 0) return;
  }
  assert.fail(`still ${await count()} after ${within} ms`);
}
