-- The newest positions of topics, and remembers them for longer.
--
-- KEYS: the topics (hashes).
-- ARGV: 1 an epoch for those that need a new one, 2 for how long to remember them at least (ms).
-- Answers: epoch and offset of the last message, of each.
local answer = {}
for _, key in ipairs(KEYS) do
  local at = redis.call('HMGET', key, 'e', 'r', 'o')
  local epoch = at[1]
  if is_foreign(at[2]) then
    return redis.error_reply(FOREIGN)
  end
  if not epoch or at[2] ~= replid then
    epoch = ARGV[1]
    begin(key, epoch, at[3])
  end
  if redis.call('PTTL', key) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', key, ARGV[2])
  end
  answer[#answer + 1] = epoch
  answer[#answer + 1] = at[3] or '0'
end
return answer
