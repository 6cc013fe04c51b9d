-- The nodes that live.
--
-- KEYS: 1 until when each lives (sorted set), 2 what each tells of itself (hash), 3 stays (sorted set: see dead.lua).
-- Answers: each node, what it tells of itself (nothing: it has not said anything yet), and its stay (nothing: it has none).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, node in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE')) do
  redis.call('ZREM', KEYS[1], node)
  redis.call('HDEL', KEYS[2], node)
end
local stays = {}
for _, stay in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  stays[string.match(stay, '^[^:]+')] = stay
end
local answer = {}
for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  answer[#answer + 1] = node
  answer[#answer + 1] = redis.call('HGET', KEYS[2], node) or ''
  answer[#answer + 1] = stays[node] or ''
end
return answer
