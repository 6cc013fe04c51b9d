-- Takes over topics that have come from other primaries of a Redis Cluster. Those of a primary that lives, with the data
-- set in which the topic was written, have lost nothing. Others begin a new epoch.
--
-- KEYS: the topics (hashes).
-- ARGV: 1 an epoch for those that need a new one, then the ids of the data sets of the other primaries.
local lives = {}
for index = 2, #ARGV do
  lives[string.sub(ARGV[index], 1, 16)] = true
end
for _, key in ipairs(KEYS) do
  local at = redis.call('HMGET', key, 'e', 'r', 'o')
  if at[1] and at[2] ~= replid then
    if lives[at[2]] then
      redis.call('HSET', key, 'r', replid)
    else
      begin(key, ARGV[1], at[3])
    end
  end
end
return redis.status_reply('OK')
