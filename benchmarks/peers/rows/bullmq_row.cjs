// BullMQ on Node: handler and producer. The same as side/handling.py and side/produce.py, whose
// words it speaks. CommonJS, because only `require` finds modules by NODE_PATH.

const fs = require('node:fs')
const readline = require('node:readline')
const { Queue, Worker } = require('bullmq')

const PAYLOAD_BYTES = 106
const BATCH = 500

const address = new URL(process.env.BENCH_URL)
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null }
const keepNothing = { removeOnComplete: true }

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

async function handle ({ data }) {
  if (data.kind === 'drain') {
    drained(data)
  } else if (data.kind === 'pickup') {
    tell({ kind: 'pickup', ms: steadyMs() - data.at })
  } else if (data.kind === 'delayed') {
    tell({ kind: 'delayed', ms: Date.now() - data.at })
  } else if (data.kind === 'long') {
    tell({ kind: 'long', pid: process.pid, at: steadyMs() / 1000 })
    await new Promise(resolve => setTimeout(resolve, data.of * 1000))
  }
}

function work () {
  const worker = new Worker('bench', handle, { connection, concurrency: 100 })
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
