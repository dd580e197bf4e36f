-- exchange: settle what is finished and claim what is next, in one round trip.
--
-- keys   as those of the verbs it is made of
-- args   settle   list     of {verb, its args}: complete, fail, release, renew
--        claim    list     the args of claim
-- reply  <answers in order> <leases> <next due> <ready left> <now>
-- moves  those of the verbs it is made of
-- cost   the sum of them
-- full   works
-- short  plain_exchange
-- uses   keys clock calls meta record notify jobs moves lanes ends held complete fail release renew claim send sets plan close answer_one
-- runs   answer_one(exchange, exchange_memory, recall_exchange)

local VERBS = { complete = complete, fail = fail, release = release, renew = renew }

local function exchange(settle, wish)
  local answers, ids = {}, {}
  for i, item in ipairs(settle) do ids[i] = item[2] end
  read_jobs(ids)
  for i, item in ipairs(settle) do answers[i] = VERBS[item[1]](unpack(item, 2)) end
  if wish[3] == 0 then return { answers, {}, 0, 0, now } end
  local claimed = claim(unpack(wish))
  return { answers, unpack(claimed) }
end

local function exchange_memory(answer)
  return { answer[1], claim_memory({ unpack(answer, 2) }) }
end

local function recall_exchange(memory)
  return { memory[1], unpack(recall_claim(memory[2])) }
end
