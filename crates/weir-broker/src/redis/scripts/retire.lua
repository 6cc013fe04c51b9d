-- Takes a node's announcement back.
--
-- KEYS: as nodes.lua, 3 numbers (hash).
-- ARGV: 1 the node, 2 its number.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
local lease = redis.call('HGET', KEYS[3], ARGV[2])
if lease and string.match(lease, '^%S+') == ARGV[1] then
  redis.call('HDEL', KEYS[3], ARGV[2])
end
return 1
