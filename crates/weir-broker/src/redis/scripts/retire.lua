-- Takes a node's announcement back.
--
-- KEYS: as nodes.lua, 4 numbers (hash).
-- ARGV: 1 the node, 2 its number, 3 its stay.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[3])
local lease = redis.call('HGET', KEYS[4], ARGV[2])
if lease and string.match(lease, '^%S+') == ARGV[1] then
  redis.call('HDEL', KEYS[4], ARGV[2])
end
return 1
