-- Takes topics out of the index of a stay, unless they were written to it again.
--
-- KEYS: 1 the index (sorted set: topics, by the numbers of their entries).
-- ARGV: number and topic of each entry.
-- Answers: how many topics are left.
for index = 1, #ARGV, 2 do
  local number = redis.call('ZSCORE', KEYS[1], ARGV[index + 1])
  if number and tonumber(number) <= tonumber(ARGV[index]) then
    redis.call('ZREM', KEYS[1], ARGV[index + 1])
  end
end
return redis.call('ZCARD', KEYS[1])
