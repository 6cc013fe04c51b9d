-- Sends a message that has an idempotency key, unless one with that key was sent before.
--
-- KEYS: 1 the idempotency key.
-- ARGV: 1 channel, 2 the message, 3 for how long to remember the key (ms).
-- Answers: how many nodes the first message with the key has reached.
local known = redis.call('GET', KEYS[1])
if known then
  return tonumber(known)
end
local reached = redis.call('SPUBLISH', ARGV[1], ARGV[2])
if reached > 0 then
  redis.call('SET', KEYS[1], reached, 'PX', ARGV[3])
end
return reached
