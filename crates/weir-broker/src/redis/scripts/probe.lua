-- Sends an empty message, which shows that subscriptions work, and that this Redis still is a primary.
--
-- KEYS: 1 the channel.
return redis.call('SPUBLISH', KEYS[1], '')
