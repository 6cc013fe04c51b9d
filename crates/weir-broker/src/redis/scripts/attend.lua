-- A node has subscribers to a topic from now on, or has none any more.
--
-- KEYS: 1 the topic's occupancy (hash), 2 the number of the node's last call (or nothing).
-- ARGV: 1 come or go, 2 stay, 3 the stay before (or empty), 4 the node that asks, 5 whether it knows the answers to all that
-- it asked before (1 or 0), 6 for how long to keep the hash, 7 the same without subscribers (ms), 8 the number of the call
-- (empty: another node ends a stay).
-- Answers: the numbers of the occupancy that the asking node has begun, and of the one that it has ended. 0: none that it
-- does not know.
--
-- Fields: n the number of the newest occupancy, b the node that began it, v the number of the last one that ended, w the node
-- that ended it and the stay that went; all others are stays with subscribers.
local key, stay, before, node, is_sure = KEYS[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
if ARGV[8] ~= '' then
  local late = refuse_late(KEYS[2], ARGV[8])
  if late then
    return late
  end
end
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'n', 0, 'b', '', 'v', 0, 'w', '')
end
local at = redis.call('HMGET', key, 'n', 'b', 'v', 'w')
local number, ending = tonumber(at[1]), node .. ' ' .. stay
local function count()
  return redis.call('HLEN', key) - 4
end
local moved = before ~= '' and redis.call('HDEL', key, before) or 0
local begun, ended = 0, 0
if not is_sure then
  begun = at[2] == node and number or 0
  ended = at[4] == ending and tonumber(at[3]) or 0
end
if ARGV[1] == 'come' then
  local was_empty = count() + moved == 0
  redis.call('HSET', key, stay, 1)
  if was_empty then
    local time = redis.call('TIME')
    begun = math.max(time[1] * 1000000 + time[2], number + 1)
    redis.call('HSET', key, 'n', string.format('%.0f', begun), 'b', node)
  end
elseif redis.call('HDEL', key, stay) + moved > 0 and count() == 0 then
  ended = number
  redis.call('HSET', key, 'v', at[1], 'w', ending)
end
redis.call('PEXPIRE', key, count() > 0 and ARGV[6] or ARGV[7])
return { begun, ended }
