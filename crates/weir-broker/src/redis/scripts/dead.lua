-- Finds nodes that have been dead for so long that their stays end. One node looks at a time.
--
-- KEYS: 1 until when each node lives (sorted set), 2 stays, and for how long each was seen without its node (sorted set; ms,
-- 0: the node lives), 3 stays that have ended, by when (sorted set), 4 who looks (hash).
-- ARGV: 1 the node that looks, 2 for how long it alone looks from now on, 3 how long a stay outlives its node, 4 the most
-- that one look adds: while nobody can look, no node is dead for longer (times in ms).
-- Answers: nothing if it is another node's turn; else stays that have ended and may have members, oldest first.
--
-- Fields: n the node that looks, t until when, s when it last looked.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = redis.call('HMGET', KEYS[4], 'n', 't', 's')
if at[1] and at[1] ~= ARGV[1] and tonumber(at[2]) > now then
  return nil
end
local function number(value)
  return string.format('%.0f', value)
end
redis.call('HSET', KEYS[4], 'n', ARGV[1], 't', number(now + ARGV[2]), 's', number(now))
local pause = math.max(0, math.min(now - (at[3] or now), tonumber(ARGV[4])))
local stays = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for index = 1, #stays, 2 do
  local stay, dead = stays[index], tonumber(stays[index + 1])
  local lives = redis.call('ZSCORE', KEYS[1], string.match(stay, '^[^:]+'))
  if lives and tonumber(lives) > now then
    if dead > 0 then
      redis.call('ZADD', KEYS[2], 0, stay)
    end
  elseif dead > 0 and dead + pause > tonumber(ARGV[3]) then
    redis.call('ZREM', KEYS[2], stay)
    redis.call('ZADD', KEYS[3], number(now), stay)
  else
    -- Seen for the first time, it counts from now.
    redis.call('ZADD', KEYS[2], number(dead > 0 and dead + pause or 1), stay)
  end
end
return redis.call('ZRANGE', KEYS[3], 0, 15)
