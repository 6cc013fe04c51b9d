-- Begins each script that gives or compares positions: stops on a replica, and finds the id of the data set. Redis draws
-- a new id when a replica becomes a primary, that is when accepted messages may be lost.
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this is a replica')
end
local replid = string.sub(string.match(info, 'master_replid:(%x+)'), 1, 16)
-- Begins a new epoch of a topic behind this offset.
local function begin(key, epoch, top)
  redis.call('HSET', key, 'e', epoch, 'r', replid, 's', top or '0')
end
