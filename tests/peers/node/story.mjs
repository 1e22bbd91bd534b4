// Runs the stories of a client, and prints a line about each.
const [address, secured, prefix, ...only] = process.argv.slice(2);
const PATIENCE_MS = 60_000;

export { address, secured, prefix };

export async function tell(name, body) {
  if (only.length && !only.includes(name)) return;
  const begun = Date.now();
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('it does not end')), PATIENCE_MS);
  });
  try {
    await Promise.race([body(`${prefix}-${name}`), late]);
    console.log('ok', name, Date.now() - begun);
  } catch (error) {
    console.log('failed', name, String(error).replaceAll('\n', ' '), String(error?.errors ?? ''));
  } finally {
    clearTimeout(timer);
  }
}

export function end() {
  console.log('end');
  process.exit(0);
}

export function same(what, found, expected) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${what}: expected ${other}, found ${one}`);
}

export async function until(what, holds) {
  for (let stop = Date.now() + PATIENCE_MS; !(await holds()); ) {
    if (Date.now() > stop) throw new Error(`not in time: ${what}`);
    await new Promise((next) => setTimeout(next, 50));
  }
}
