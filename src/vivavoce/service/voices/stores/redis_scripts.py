"""What redis does in one step, in its language Lua. Every script has one key, the hash of a namespace.

The hash holds three fields for each voice, `head:ID`, `about:ID` and `data:ID`, where ID is the name without its case,
and one more, `state`, that every change sets to something new. As index and values are one key, neither can be there
without the other, whatever is deleted, evicted or restored.
"""

from __future__ import annotations

SAVE = """
local key, id, head, about, data = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local prefix, may_replace, max_voices, max_bytes = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local old = redis.call('HGET', key, 'head:' .. id)
if old == head then return {'kept'} end
if old then
  local name = string.sub(old, prefix + 1)
  if name ~= string.sub(head, prefix + 1) then return {'twin', name} end
  if may_replace ~= '1' then return {'taken'} end
end
if max_voices >= 0 then
  local voices, bytes = 0, 0
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) == 'data:' and field ~= 'data:' .. id then
      voices = voices + 1
      bytes = bytes + redis.call('HSTRLEN', key, field)
    end
  end
  if not old and voices + 1 > max_voices then return {'many'} end
  if bytes + string.len(data) > max_bytes then return {'large'} end
end
redis.call('HSET', key, 'head:' .. id, head, 'about:' .. id, about, 'data:' .. id, data, 'state', head)
return {'kept'}
"""
"""ARGV: id, head, about, data, bytes of a head before its name, "1" to replace, most voices (−1: any), most bytes.

Answers {"kept"}, {"taken"}, {"twin", the name that differs in case only}, {"many"} or {"large"}. The same head twice is
the same save twice: the answer to the first was lost.
"""

REMOVE = """
local key, id = KEYS[1], ARGV[1]
if redis.call('HDEL', key, 'head:' .. id, 'about:' .. id, 'data:' .. id) == 0 then return 0 end
redis.call('HSET', key, 'state', ARGV[2])
if redis.call('HLEN', key) == 1 then redis.call('DEL', key) end
return 1
"""
"""ARGV: id, a new state. Answers whether there was something to remove."""

LIST = """
local key, kind, found = KEYS[1], ARGV[1], {}
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, string.len(kind)) == kind then
    found[#found + 1] = redis.call('HGET', key, field)
  end
end
return {redis.call('HGET', key, 'state'), found}
"""
"""ARGV: "head:" or "about:". Answers the state, and those fields of all voices as of that state."""
