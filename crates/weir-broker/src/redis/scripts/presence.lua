-- Changes which members of one node are in a topic's presence, and tells it on the topic's channel.
--
-- KEYS: 1 members (sorted set: connection and device, by connection), 2 connections of each device (hash), 3 the number of
-- the node's last call (or nothing), 4 members that the node had in its stay before (or nothing).
-- ARGV: 1 what they do: enter, exit, or end; 2 for how long to keep them (ms), 3 channel, 4 the number of the call (nothing:
-- another node ends a stay), then connection and device of each; of those that end, how many at most instead.
-- Answers: how many members are left.
local key, devices, before = KEYS[1], KEYS[2], KEYS[4]
local joined, left = {}, {}

if ARGV[4] ~= '' then
  local late = refuse_late(KEYS[3], ARGV[4])
  if late then
    return late
  end
end

-- The member with this connection, if it is another than this one.
local function other(from, connection, member)
  for _, found in ipairs(redis.call('ZRANGE', from, '[' .. connection, '(' .. connection .. '\255', 'BYLEX')) do
    if found ~= member then
      return found
    end
  end
end
local function remove(member)
  redis.call('ZREM', key, member)
  local device = string.sub(member, 17)
  if redis.call('HINCRBY', devices, device, -1) <= 0 then
    redis.call('HDEL', devices, device)
  end
  left[#left + 1] = member
end
-- The member with this connection in the stay before, where it is not any more then.
local function take(connection)
  local found = before and other(before, connection)
  if found then
    redis.call('ZREM', before, found)
  end
  return found
end

if ARGV[1] == 'end' then
  -- Their devices are counted no more when all have left.
  local popped = redis.call('ZPOPMIN', key, ARGV[5])
  for index = 1, #popped, 2 do
    left[#left + 1] = popped[index]
  end
end
for index = 5, ARGV[1] == 'end' and 0 or #ARGV, 2 do
  local connection = ARGV[index]
  local earlier = take(connection)
  local member
  if ARGV[1] == 'exit' then
    member = other(key, connection)
    if member then
      remove(member)
    end
  else
    member = connection .. ARGV[index + 1]
    if redis.call('ZADD', key, 0, member) == 1 then
      redis.call('HINCRBY', devices, ARGV[index + 1], 1)
      local replaced = other(key, connection, member)
      if replaced then
        remove(replaced)
      end
      -- A member that comes from the stay before has not left in between.
      if earlier ~= member then
        joined[#joined + 1] = member
      end
    end
  end
  if earlier and earlier ~= member then
    left[#left + 1] = earlier
  end
end

if #joined + #left > 0 then
  local lengths, members = { #joined }, {}
  for _, some in ipairs({ joined, left }) do
    for _, member in ipairs(some) do
      lengths[#lengths + 1] = #member
      members[#members + 1] = member
    end
  end
  redis.call('SPUBLISH', ARGV[3], '\5' .. table.concat(lengths, ' ') .. '\n' .. table.concat(members))
end
local count = redis.call('ZCARD', key)
if count == 0 then
  redis.call('UNLINK', devices)
else
  redis.call('PEXPIRE', key, ARGV[2])
  redis.call('PEXPIRE', devices, ARGV[2])
end
return count
