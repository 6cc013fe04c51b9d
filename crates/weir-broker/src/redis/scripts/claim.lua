-- Enters a connection into its device's record, and evicts those that are too many.
--
-- KEYS: 1 the record (sorted set): connection and node, by the time when the connection was accepted (microseconds).
-- ARGV: 1 channel of the device, 2 the node, 3 the connection, 4 its age (microseconds), 5 when it was accepted at the
-- latest (nothing: unknown), 6 connections that may stay, 7 for how long to keep the record (ms), 8 whether the nodes that
-- follow are those that live right now (1), or were so recently (0), then the nodes.
-- Answers: 1, or 0: too many, and which nodes live must be known now; nothing has changed.
local key = KEYS[1]
local time = redis.call('TIME')
-- By the age alone, a claim that comes late would count for newer than it is.
local accepted = math.min(time[1] * 1000000 + time[2] - ARGV[4], tonumber(ARGV[5]) or math.huge)
local claim = ARGV[3] .. ' ' .. ARGV[2]
local is_new = redis.call('ZADD', key, string.format('%.0f', accepted), claim)
redis.call('PEXPIRE', key, ARGV[7])
local kept_max = tonumber(ARGV[6])
if redis.call('ZCARD', key) <= kept_max then
  return 1
end
local lives = { [ARGV[2]] = true }
for index = 9, #ARGV do
  lives[ARGV[index]] = true
end
for _, other in ipairs(redis.call('ZRANGE', key, 0, -1)) do
  if not lives[string.match(other, ' (%S+)$')] then
    -- The claims of a node end with it. It may also have begun just now.
    if ARGV[8] == '0' then
      if is_new == 1 then
        redis.call('ZREM', key, claim)
      end
      return 0
    end
    redis.call('ZREM', key, other)
  end
end
local evicted = redis.call('ZCARD', key) - kept_max
if evicted > 0 then
  local claims = redis.call('ZPOPMIN', key, evicted)
  for index = 1, #claims, 2 do
    redis.call('SPUBLISH', ARGV[1], '\3' .. claims[index])
  end
end
return 1
