-- Adds a revocation.
--
-- KEYS: 1 what is known of the log (hash), 2 the log (stream).
-- ARGV: 1 channel, 2 the device, 3 for how long revocations are kept (ms).
-- Answers: its id.
local time = log_begins(KEYS[1])
local oldest = string.format('%.0f', math.max(time - ARGV[3], 0))
local id = redis.call('XADD', KEYS[2], 'MINID', '~', oldest, '*', 'd', ARGV[2])
redis.call('SPUBLISH', ARGV[1], '\4' .. id .. ' ' .. ARGV[2])
return id
