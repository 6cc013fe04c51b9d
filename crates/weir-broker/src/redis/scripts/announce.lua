-- Announces a node: renews the lease of its number, or leases one.
--
-- KEYS: 1 whose cluster this is (string), 2 numbers (hash), 3 until when each node lives (sorted set), 4 what each tells of
-- itself (hash), 5 stays (sorted set: see dead.lua), 6 stays that have ended (sorted set).
-- ARGV: 1 id of the cluster, 2 the node, 3 for how long it lives, 4 for how long it has its number (ms), 5 the number that
-- it has (0: none), 6 where to begin to look for a free one, 7 what it tells of itself (nothing: it begins), 8 its stay
-- (nothing: none has begun), 9 the stay that comes next.
-- Answers: its number (0: none is free), whether the next stay has begun (1; else 0) and the time (microseconds), or the id
-- of another cluster.
local cluster = redis.call('GET', KEYS[1])
if not cluster then
  redis.call('SET', KEYS[1], ARGV[1])
elseif cluster ~= ARGV[1] then
  return cluster
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local micros = string.format('%.0f', time[1] * 1000000 + time[2])

local function is_free(number)
  local lease = redis.call('HGET', KEYS[2], number)
  if not lease then
    return true
  end
  local node, till = string.match(lease, '^(%S+) (%d+)$')
  return node == ARGV[2] or tonumber(till) <= now
end
local number = tonumber(ARGV[5])
if number == 0 or not is_free(number) then
  -- A number comes again as late as possible: ids that were made with it may still be around.
  local from = tonumber(redis.call('HGET', KEYS[2], 'next') or ARGV[6])
  number = 0
  for step = 0, 1022 do
    local candidate = (from - 1 + step) % 1023 + 1
    if is_free(candidate) then
      number = candidate
      redis.call('HSET', KEYS[2], 'next', candidate % 1023 + 1)
      break
    end
  end
  if number == 0 then
    return { 0, 0, '0' }
  end
end
redis.call('HSET', KEYS[2], number, ARGV[2] .. ' ' .. string.format('%.0f', now + ARGV[4]))
redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[2])
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[7])
end
if ARGV[8] ~= '' and redis.call('ZSCORE', KEYS[5], ARGV[8]) then
  redis.call('ZADD', KEYS[5], 0, ARGV[8])
  return { number, 0, micros }
end
-- Others have ended the stay, or Redis has lost it. What is left of it goes, and of earlier ones that Redis may remember.
local earlier = redis.call('ZRANGE', KEYS[5], 0, -1)
if ARGV[8] ~= '' then
  earlier[#earlier + 1] = ARGV[8]
end
for _, stay in ipairs(earlier) do
  if string.match(stay, '^[^:]+') == ARGV[2] and stay ~= ARGV[9] then
    redis.call('ZREM', KEYS[5], stay)
    redis.call('ZADD', KEYS[6], string.format('%.0f', now), stay)
  end
end
redis.call('ZADD', KEYS[5], 0, ARGV[9])
return { number, 1, micros }
