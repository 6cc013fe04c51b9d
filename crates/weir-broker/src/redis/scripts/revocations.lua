-- Reads revocations.
--
-- KEYS: as revoke.lua.
-- ARGV: 1 an id (nothing: from the beginning), 2 how many after it, 3 for how long revocations are kept (ms).
-- Answers: 1 if none is missing (else 0), then id and device of each.
local time = log_begins(KEYS[1])
local at = redis.call('HMGET', KEYS[1], 's', 'l')
local trimmed = 0
if redis.call('EXISTS', KEYS[2]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[2])
  local fields = {}
  for index = 1, #info, 2 do
    fields[info[index]] = info[index + 1]
  end
  trimmed = fields['entries-added'] - fields['length']
end
local is_complete
if ARGV[1] == '' then
  is_complete = trimmed == 0 and not at[2]
else
  local since = tonumber(string.match(ARGV[1], '^%d+'))
  is_complete = since >= tonumber(at[1]) and (trimmed == 0 or since >= time - ARGV[3])
end
local answer = { is_complete and 1 or 0 }
local from = ARGV[1] == '' and '-' or '(' .. ARGV[1]
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', ARGV[2])) do
  answer[#answer + 1] = entry[1]
  answer[#answer + 1] = entry[2][2]
end
return answer
