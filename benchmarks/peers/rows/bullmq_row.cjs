// BullMQ on Node: handler and producer. The same as side/handling.py and side/produce.py, whose
// words it speaks. CommonJS, because only `require` finds modules by NODE_PATH.

const fs = require('node:fs')
const readline = require('node:readline')
const { Queue, Worker } = require('bullmq')

const PAYLOAD_BYTES = 106
const BATCH = 500

const address = new URL(process.env.BENCH_URL)
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null }
const withDefaults = process.env.BENCH_DEFAULTS !== undefined
const keepNothing = withDefaults ? {} : { removeOnComplete: true }

const steadyMs = () => Number(process.hrtime.bigint()) / 1e6
const cpuSeconds = () => {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e6
}

// -- handler -------------------------------------------------------------------------------------

const runs = new Map()

function tell (facts) {
  fs.appendFileSync(process.env.BENCH_REPORT, JSON.stringify(facts) + '\n')
}

function drained ({ run, of: jobs }) {
  const one = runs.get(run) ?? { count: 0, began: steadyMs(), cpu: cpuSeconds() }
  runs.set(run, one)
  one.count += 1
  if (one.count === jobs) {
    const seconds = (steadyMs() - one.began) / 1000
    tell({ kind: 'drain', run, jobs, seconds, cpu: cpuSeconds() - one.cpu })
  }
  if (one.count > jobs) tell({ kind: 'excess', run, jobs: one.count })
}

const storms = new Map()

function stormed ({ run, of: jobs, at }) {
  const now = Date.now()
  const one = storms.get(run) ?? { ran: 0, latest: 0, behind: 0, early: 0 }
  storms.set(run, one)
  one.ran += 1
  if (at < one.latest) one.behind += 1
  if (now < at) one.early += 1
  one.latest = Math.max(one.latest, at)
  if (one.ran === jobs) tell({ kind: 'storm', at: now, behind: one.behind, early: one.early })
}

async function handle ({ data }) {
  if (data.kind === 'drain') {
    drained(data)
  } else if (data.kind === 'pickup') {
    tell({ kind: 'pickup', ms: steadyMs() - data.at })
  } else if (data.kind === 'delayed') {
    tell({ kind: 'delayed', ms: Date.now() - data.at })
  } else if (data.kind === 'storm') {
    stormed(data)
  } else if (data.kind === 'long') {
    tell({ kind: 'long', pid: process.pid, at: steadyMs() / 1000 })
    await new Promise(resolve => setTimeout(resolve, data.of * 1000))
  }
}

function work () {
  const worker = new Worker('bench', handle, { connection, ...(withDefaults ? {} : { concurrency: 100 }) })
  worker.on('error', problem => console.error(problem))
}

// -- producer ------------------------------------------------------------------------------------

function payloadOf (kind, { run = '', of = 0, at = 0 } = {}) {
  const payload = { kind, run, of, at, pad: '' }
  payload.pad = 'x'.repeat(Math.max(0, PAYLOAD_BYTES - JSON.stringify(payload).length))
  return payload
}

const orders = {
  async one (queue, { run, of, count }) {
    const payload = payloadOf('drain', { run, of })
    const began = steadyMs()
    for (let i = 0; i < count; i++) await queue.add('work', payload, keepNothing)
    return { seconds: (steadyMs() - began) / 1000 }
  },
  async many (queue, { run, of, count }) {
    const job = { name: 'work', data: payloadOf('drain', { run, of }), opts: keepNothing }
    const began = steadyMs()
    for (let left = count; left > 0; left -= BATCH) {
      await queue.addBulk(new Array(Math.min(BATCH, left)).fill(job))
    }
    return { seconds: (steadyMs() - began) / 1000 }
  },
  async pickup (queue) {
    await queue.add('work', payloadOf('pickup', { at: steadyMs() }), keepNothing)
    return {}
  },
  async delayed (queue, { delays_ms: delays }) {
    const now = Date.now()
    for (const delay of delays) {
      const payload = payloadOf('delayed', { at: now + delay })
      await queue.add('work', payload, { ...keepNothing, delay: now + delay - Date.now() })
    }
    return {}
  },
  async storm (queue, { run, count, lead_s: lead, span_s: span }) {
    const first = Date.now() + lead * 1000
    const dues = Array.from({ length: count }, (_, n) => Math.round(first + span * 1000 * n / count))
    for (let i = count - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1))
      ;[dues[i], dues[j]] = [dues[j], dues[i]]
    }
    for (let from = 0; from < count; from += BATCH) {
      const now = Date.now()
      await queue.addBulk(dues.slice(from, from + BATCH).map(due => ({
        name: 'work',
        data: payloadOf('storm', { run, of: count, at: due }),
        opts: { ...keepNothing, timestamp: now, delay: Math.max(0, due - now) }
      })))
    }
    return { first_ms: first, in_time: Date.now() < first }
  },
  async long (queue, { seconds }) {
    await queue.add('work', payloadOf('long', { of: seconds }), keepNothing)
    return {}
  }
}

async function produce () {
  const queue = new Queue('bench', { connection })
  await queue.waitUntilReady()
  console.log(JSON.stringify({ ready: true }))
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line)
    console.log(JSON.stringify(await orders[order.do](queue, order)))
  }
  process.exit(0)
}

if (process.argv[2] === 'work') work()
else produce()
