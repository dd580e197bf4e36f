-- store: one piece of the parcel, under its number.
--
-- keys   state    hash     token, pieces, size
--        pieces:  string   by number
--        labels   list     what was stored, in order
-- args   token    int      the caller's
--        number   int      which piece
--        piece    bytes    the piece
--        label    text     what people call it
--        more     list     further labels
-- reply  <pieces so far> <size so far>
--        TOKEN_STALE <the current one>
-- cost   O(labels)
-- full   refused
-- uses   token

if is_stale(token) then return { 'TOKEN_STALE', current } end
local before = redis.call('STRLEN', PIECES .. number)
redis.call('EXISTS', LABELS, PIECES .. number)
redis.call('LLEN', LABELS)

redis.call('SET', PIECES .. number, piece)
redis.call('RPUSH', LABELS, label)
for _, other in ipairs(more) do redis.call('RPUSH', LABELS, other) end
return {
  redis.call('HINCRBY', STATE, 'pieces', before > 0 and 0 or 1),
  redis.call('HINCRBY', STATE, 'size', #piece - before),
}
