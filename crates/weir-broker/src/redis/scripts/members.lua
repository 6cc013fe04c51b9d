-- The members of a topic.
--
-- KEYS: the first two of presence.lua, for each node.
-- ARGV: 1 behind which connection to begin ('-': at the first), 2 how many of each node, 3 up to how many devices are told
-- apart that are at several nodes.
-- Answers: connections, devices, then each member, by node.
local from = ARGV[1] == '-' and '-' or '(' .. ARGV[1] .. '\255'
local connections, devices, nodes = 0, 0, {}
local answer = { 0, 0 }
for index = 1, #KEYS, 2 do
  local here = redis.call('ZCARD', KEYS[index])
  if here > 0 then
    connections = connections + here
    devices = devices + redis.call('HLEN', KEYS[index + 1])
    nodes[#nodes + 1] = KEYS[index + 1]
    for _, member in ipairs(redis.call('ZRANGE', KEYS[index], from, '+', 'BYLEX', 'LIMIT', 0, ARGV[2])) do
      answer[#answer + 1] = member
    end
  end
end
if #nodes > 1 and devices <= tonumber(ARGV[3]) then
  local seen = {}
  devices = 0
  for _, node in ipairs(nodes) do
    for _, device in ipairs(redis.call('HKEYS', node)) do
      if not seen[device] then
        seen[device] = true
        devices = devices + 1
      end
    end
  end
end
answer[1], answer[2] = connections, devices
return answer
