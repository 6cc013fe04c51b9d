-- Notes since when the log of revocations is whole, as far as this Redis can know. Fields: r id of the data set, s since
-- when, l whether one before that may be lost. Answers the time (ms).
local function log_begins(key)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local before = redis.call('HGET', key, 'r')
  if before ~= replid then
    redis.call('HSET', key, 'r', replid, 's', string.format('%.0f', now))
    if before then
      redis.call('HSET', key, 'l', 1)
    end
  end
  return now
end
