-- The nodes that live.
--
-- KEYS: 1 until when each lives (sorted set), 2 what each tells of itself (hash).
-- Answers: each node and what it tells of itself (nothing: it has not said anything yet).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, node in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE')) do
  redis.call('ZREM', KEYS[1], node)
  redis.call('HDEL', KEYS[2], node)
end
local answer = {}
for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  answer[#answer + 1] = node
  answer[#answer + 1] = redis.call('HGET', KEYS[2], node) or ''
end
return answer
