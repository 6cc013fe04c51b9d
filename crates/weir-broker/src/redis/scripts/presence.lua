-- Enters members of one node into a topic's presence, or takes them out.
--
-- KEYS: 1 members (sorted set: connection and device, by connection), 2 connections of each device (hash).
-- ARGV: 1 whether they enter (1) or exit (0), 2 for how long to keep them (ms), then connection and device of each.
-- Answers: how many members the node has in the topic.
for index = 3, #ARGV, 2 do
  local member = ARGV[index] .. ARGV[index + 1]
  if ARGV[1] == '1' then
    if redis.call('ZADD', KEYS[1], 0, member) == 1 then
      redis.call('HINCRBY', KEYS[2], ARGV[index + 1], 1)
    end
  elseif redis.call('ZREM', KEYS[1], member) == 1 then
    if redis.call('HINCRBY', KEYS[2], ARGV[index + 1], -1) <= 0 then
      redis.call('HDEL', KEYS[2], ARGV[index + 1])
    end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return redis.call('ZCARD', KEYS[1])
