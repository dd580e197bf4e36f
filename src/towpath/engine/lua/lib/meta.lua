-- meta: the queue's own numbers, changed by this call: tick, token, totals. Written once.
--
-- uses   queue

-- From the loader: READ_MORE_NUMBERS, which reads into `meta` the numbers that only the long way names;
-- FIELD_OF, the field of each number; and WRITE_NUMBERS, which packs the fields that have changed.
local meta_changes, field_of = {}, FIELD_OF  -- the names of fields

if not remembered then
  READ_MORE_NUMBERS
end

local function set_meta(name, value)
  meta[name] = value
  meta_changes[field_of[name]] = true
end

local function count(name)
  set_meta(name, meta[name] + 1)
end

-- A tick is an order number, not a time: after a million quick submits it is far ahead of the clock.
local function next_tick()
  set_meta('tick', math.max(now, meta.tick + 1))
  return meta.tick
end

-- Tokens also grow across a fail-over that lost writes, because the clock has gone on meanwhile.
local function next_token()
  set_meta('token', math.max(now_us, meta.token + 1))
  return meta.token
end

local function write_meta()
  local fields = {}
  local function add(field, numbers)
    fields[#fields + 1] = field
    fields[#fields + 1] = numbers
  end
  WRITE_NUMBERS
  if #fields > 0 then redis.call('HSET', META, unpack(fields)) end
end
